// A tree that counts the bytes which are read out of it, and keeps what was decoded: for tests that
// nothing is read or decoded twice.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/source_tree.h"

namespace ebb::test_support {

class CountingTree : public ForwardingTree {
 public:
  using ForwardingTree::ForwardingTree;

  std::uint64_t read() const { return read_; }  // bytes
  // What each call to decoded() said how long it is.
  const std::vector<std::uint64_t>& decoded_bytes() const { return decoded_bytes_; }

  Result<std::shared_ptr<const formats::ByteSource>> open(std::string_view name) const override {
    EBB_TRY_ASSIGN(auto source, ForwardingTree::open(name));
    return std::shared_ptr<const formats::ByteSource>(
        std::make_shared<Counted>(std::move(source), read_));
  }
  Result<Decoded> decoded(const std::string& key, std::uint64_t bytes,
                          const std::function<Result<Decoded>()>& make) const override {
    decoded_bytes_.push_back(bytes);
    if (!kept_.contains(key)) {
      EBB_TRY_ASSIGN(kept_[key], make());
    }
    return kept_[key];
  }

 private:
  class Counted : public formats::ByteSource {
   public:
    Counted(std::shared_ptr<const formats::ByteSource> source, std::uint64_t& read)
        : source_(std::move(source)), read_(read) {}
    std::uint64_t size() const override { return source_->size(); }
    std::string_view name() const override { return source_->name(); }
    Result<> read(std::uint64_t offset, std::span<std::byte> into) const override {
      read_ += into.size();
      return source_->read(offset, into);
    }

   private:
    std::shared_ptr<const formats::ByteSource> source_;
    std::uint64_t& read_;
  };

  mutable std::uint64_t read_ = 0;
  mutable std::vector<std::uint64_t> decoded_bytes_;
  mutable std::map<std::string, Decoded> kept_;
};

}  // namespace ebb::test_support
