// SwapDirectory: the folder a user names with --swap. Holds one lock and stores in folders of their
// own; knows which store is current and replaces it without ever having none.
//
// Ranks are threads that share one object, or processes with one each: over one directory, one
// each, or any number between. One of the ranks that share a directory acts in it for all. Calls
// marked [C] are collective: all ranks, same order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

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
  // [C] For a process that is one of the ranks. Makes the folder if its parent exists; takes
  // <dir>/lock, else Code::busy naming the holder's pid. Removes leftovers: stores without a
  // committed generation, and stores their child superseded.
  // `sources`: directories of a run of another number of ranks, of which this rank may reach any
  // part. What they hold is read, never changed.
  static Result<std::unique_ptr<SwapDirectory>> open(IoQueue& io, const fs::path& directory,
                                                     Ranks& ranks,
                                                     std::vector<fs::path> sources = {});
  // For a process whose threads are all the ranks there are.
  static Result<std::unique_ptr<SwapDirectory>> open(IoQueue& io, const fs::path& directory);
  ~SwapDirectory();  // unlocks; in a child made by fork() the lock stays with its parent

  const fs::path& path() const;
  // The store to resume: it has a committed generation and no committed child. The same store on
  // every rank, in its own directory. Several such stores are Code::state at open(), naming them; a
  // rank's folder that is in no rank's directory is Code::incomplete, naming it.
  std::optional<Entry> current() const;
  // Stores that lay in the ranks' directories at open() under other names than theirs, so that
  // nobody resumes from them: "; passed over: " and where, for each; "" where there are none.
  std::string passed_over() const;
  // Where this rank may reach a part of that store: in its directory and in its sources.
  std::vector<fs::path> folders_of(const Uuid& store) const;

  // [C] A new store's name, drawn by rank 0 and kept until adopt() or discard(). Code::state behind
  // a discard() that left a store to be judged.
  Result<Entry> fresh(Ranks& ranks);
  // [C] Code::no_space where the ranks whose directories lie on one file system need more than it
  // has, together, beside the current store. `mine`: this rank's share.
  Result<> check_space(Ranks& ranks, std::uint64_t mine) const;
  // [C] The fresh store could not be made or filled. Where all ranks say that no generation of it
  // can be on their disks, what lies of it goes, and the next fresh() draws another name.
  // Elsewhere, and where a rank is gone, all of it stays: parts of a generation whose other parts
  // were removed are nothing that anybody could judge. The next open() judges the whole; until then
  // fresh() answers Code::state. REQUIRES: this rank has closed its part.
  Result<> discard(Ranks& ranks, const Uuid& fresh, const Result<>& holds_none);
  // [C] The fresh store has a committed generation: it becomes current, what it supersedes is
  // removed. Code::state if it has none.
  Result<> adopt(Ranks& ranks);
  // [C] Removes the current store, if there is one, though nothing takes its place yet.
  Result<> drop(Ranks& ranks);

 private:
  struct Impl;
  explicit SwapDirectory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ebb::libswap
