// EarlierStore: the content of a store that keeps it in other places than the buffers that are
// registered now: of another number of ranks, tile size or order, or in other ranks' directories.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/libswap/read/load.h"
#include "ebb/libswap/space/buffers.h"
#include "ebb/libswap/store/scattered_store.h"

namespace ebb::libswap {

class EarlierStore {
 public:
  // Collective. `folders`: where this rank may find parts of it. Code::incomplete where it lacks a
  // tensor; Code::layout where a tensor is another one than was registered, or is not registered.
  static Result<std::unique_ptr<EarlierStore>> open(Ranks& ranks, IoBackend& backend,
                                                    const std::vector<fs::path>& folders,
                                                    const Buffers& buffers);
  std::uint64_t step() const;
  const Catalog& catalog() const { return checkpoint_->catalog(); }
  // Collective: ScatteredStore::run().
  Result<> run(Ranks& ranks, std::string_view doing, const std::function<Result<>()>& work) {
    return files_->run(ranks, doing, work);
  }
  // Inside the work of run().
  Result<> fill(const Buffers::Buffer& buffer, std::span<std::byte> bytes);

 private:
  explicit EarlierStore(std::unique_ptr<ScatteredStore> files) : files_(std::move(files)) {}
  Result<> read();
  Result<> compare(const Buffers& buffers) const;

  const std::unique_ptr<ScatteredStore> files_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::optional<Loader> loader_;
  std::map<std::pair<std::string_view, std::string_view>, std::uint32_t> tensors_;
};

}  // namespace ebb::libswap
