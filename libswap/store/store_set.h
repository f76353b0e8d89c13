// SwapDirectory: the folder a user names with --swap. Holds one lock and stores in folders of their
// own; knows which store is current and replaces it without ever having none.
//
// One per process, shared by its rank threads; every call from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "ebb/libswap/store/store.h"

namespace ebb::libswap {

class SwapDirectory {
 public:
  struct Entry {
    Uuid uuid{};
    fs::path path;  // <swap dir>/store-<uuid>
    std::uint32_t world = 0;
    std::uint64_t tile_bytes = 0;
    std::uint64_t layout_digest = 0;
  };
  // Makes the folder if its parent exists; takes <dir>/lock, else Code::busy naming the holder's
  // pid. Removes leftovers: stores without a committed generation, and stores their child
  // superseded.
  static Result<std::unique_ptr<SwapDirectory>> open(IoQueue& io, const fs::path& directory);
  ~SwapDirectory();

  const fs::path& path() const;
  // The store to resume: it has a committed generation and no committed child. Several such stores
  // are Code::state at open(), naming them.
  std::optional<Entry> current() const;

  // A new store's name, drawn once: the same for every rank thread until adopt().
  Result<Entry> fresh();
  // The fresh store could not be made or filled: what lies of it goes, and the next fresh() draws
  // another name. Idempotent: every rank thread may call it.
  Result<> discard(const Uuid& fresh);
  // The fresh store has a committed generation: it becomes current, what it supersedes is removed.
  // Code::state if it has none. Idempotent: every rank thread may call it.
  Result<> adopt();

 private:
  struct Impl;
  explicit SwapDirectory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ebb::libswap
