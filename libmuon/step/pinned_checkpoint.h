// PinnedCheckpoint: a committed generation that stays readable while this object lives, whatever is
// committed after it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/libswap/store/store.h"
#include "ebb/libswap/sys/home_process.h"

namespace ebb::libmuon {

class PinnedCheckpoint {
 public:
  // Pins the generation in this rank's store; `step` is the step it is at.
  static Result<PinnedCheckpoint> pin(std::shared_ptr<libswap::Store> store,
                                      std::filesystem::path directory, std::uint64_t generation,
                                      std::uint64_t step);
  ~PinnedCheckpoint();  // unpins; in a child made by fork() it stays pinned
  PinnedCheckpoint(PinnedCheckpoint&&) noexcept = default;
  PinnedCheckpoint& operator=(PinnedCheckpoint&&) = delete;

  std::uint64_t generation() const { return generation_; }
  std::uint64_t step() const { return step_; }
  // All ranks' parts of this generation and no other. One rank is enough to write it.
  Result<std::unique_ptr<Checkpoint>> describe() const;

 private:
  PinnedCheckpoint(std::shared_ptr<libswap::Store> store, std::filesystem::path directory,
                   std::uint64_t generation, std::uint64_t step);

  libswap::HomeProcess process_{"export"};
  std::shared_ptr<libswap::Store> store_;  // null: moved from
  std::filesystem::path directory_;
  std::uint64_t generation_ = 0;
  std::uint64_t step_ = 0;
};

}  // namespace ebb::libmuon
