// EarlierStore: the content of a store that keeps it in other places than the buffers that are
// registered now: of another number of ranks, tile size or order.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "ebb/libswap/read/load.h"
#include "ebb/libswap/space/buffers.h"

namespace ebb::libswap {

class EarlierStore {
 public:
  // Code::incomplete where this rank does not reach all of it, or it lacks a tensor; Code::layout
  // where a tensor is another one than was registered, or is not registered.
  static Result<std::unique_ptr<EarlierStore>> open(const std::filesystem::path& folder,
                                                    const Buffers& buffers);
  std::uint64_t step() const;
  const Catalog& catalog() const { return checkpoint_->catalog(); }
  Result<> fill(const Buffers::Buffer& buffer, std::span<std::byte> bytes);

 private:
  explicit EarlierStore(std::unique_ptr<Checkpoint> checkpoint);
  Result<> compare(const Buffers& buffers) const;

  const std::unique_ptr<Checkpoint> checkpoint_;
  Loader loader_;
  std::map<std::pair<std::string_view, std::string_view>, std::uint32_t> tensors_;
};

}  // namespace ebb::libswap
