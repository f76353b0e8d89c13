#include "ebb/libmuon/step/pinned_checkpoint.h"

#include <utility>

#include "ebb/formats/native/ebb.h"
#include "ebb/libswap/tree/file_tree.h"

namespace ebb::libmuon {

PinnedCheckpoint::PinnedCheckpoint(std::shared_ptr<libswap::Store> store,
                                   std::filesystem::path directory, std::uint64_t generation,
                                   std::uint64_t step)
    : store_(std::move(store)),
      directory_(std::move(directory)),
      generation_(generation),
      step_(step) {}

Result<PinnedCheckpoint> PinnedCheckpoint::pin(std::shared_ptr<libswap::Store> store,
                                               std::filesystem::path directory,
                                               std::uint64_t generation, std::uint64_t step) {
  EBB_TRY(store->pin(generation));
  return PinnedCheckpoint(std::move(store), std::move(directory), generation, step);
}

PinnedCheckpoint::~PinnedCheckpoint() {
  if (store_ && process_.here()) store_->unpin(generation_);
  process_.let_go(std::move(store_));
}

Result<std::unique_ptr<Checkpoint>> PinnedCheckpoint::describe() const {
  EBB_TRY_ASSIGN(auto tree, libswap::open_tree(directory_));
  return formats::describe_ebb_generation(std::move(tree), generation_);
}

}  // namespace ebb::libmuon
