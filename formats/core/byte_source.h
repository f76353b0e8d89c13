// Where decoders read from: random access to one file, and the files of one checkpoint.
// Decoders stay pure: libswap implements these over real files, tests and fuzzers over memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  // Fills all of `into` or fails naming the file and the offset; never a short read.
  virtual Result<> read(std::uint64_t offset, std::span<std::byte> into) const = 0;
  // How messages call this file: its path as the user gave it.
  virtual std::string_view name() const = 0;
};

// The files below one checkpoint directory (or a single file, then one entry). Names are relative,
// '/'-separated, sorted bytewise; nothing outside the directory can be opened through it.
class SourceTree {
 public:
  struct Entry {
    std::string name;
    std::uint64_t size = 0;
  };
  virtual ~SourceTree() = default;
  virtual std::string_view root() const = 0;  // as the user gave it
  virtual const std::vector<Entry>& entries() const = 0;
  virtual Result<std::shared_ptr<const ByteSource>> open(std::string_view name) const = 0;
  // What the helper program `program` reports about `file`: for containers that a library reads
  // which is not to be trusted with hostile bytes. The program runs in a confined process of its
  // own and gets no bytes but the file's. Code::unsupported where there are no such programs.
  virtual Result<ByteVector> probe(std::string_view program, const ByteSource& file) const;
  // What can only be decoded whole and is read in parts, `bytes` long: `make` gives it, or an
  // earlier call with the same key and type did and the tree still keeps it. This one keeps
  // nothing. Safe from any thread.
  using Decoded = std::shared_ptr<const void>;
  virtual Result<Decoded> decoded(const std::string& key, std::uint64_t bytes,
                                  const std::function<Result<Decoded>()>& make) const;

  // `bytes` of `key`, from byte `first` of its `size`, were read. When that was the last of it that
  // nobody had seen: the CRC32 (zip's) of all of it, and the tree forgets it. This one remembers
  // nothing. Safe from any thread.
  virtual std::optional<std::uint32_t> seen(const std::string& key, std::uint64_t size,
                                            std::uint64_t first, ByteView bytes) const;

  // A shared lock on bytes [first, first + count) of a file, which may lie behind its end; count 0:
  // all from there on. Its writer sees it and leaves alone what the bytes stand for. It ends with
  // the result. nullptr: cannot be locked here. This one locks nothing. Safe from any thread.
  using Hold = std::shared_ptr<const void>;
  virtual Hold hold(std::string_view name, std::uint64_t first, std::uint64_t count) const;

  const Entry* find(std::string_view name) const {
    for (const Entry& entry : entries())
      if (entry.name == name) return &entry;
    return nullptr;
  }
};

// Reads [offset, offset+count) into a fresh vector; refuses counts above `limit` with Code::limit.
Result<ByteVector> read_bytes(const ByteSource& source, std::uint64_t offset, std::uint64_t count,
                              std::uint64_t limit);

// A file in memory: tests, fuzzers, decoded payloads.
class MemorySource : public ByteSource {
 public:
  MemorySource(std::string name, ByteVector bytes)
      : name_(std::move(name)), bytes_(std::move(bytes)) {}
  std::uint64_t size() const override { return bytes_.size(); }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override;
  std::string_view name() const override { return name_; }

 private:
  std::string name_;
  ByteVector bytes_;
};

}  // namespace ebb::formats
