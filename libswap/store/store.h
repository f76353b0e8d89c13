// Store: k fixed slots per tile in preallocated files, committed without rename
// (docs/formats/commit.md). One Store per rank. A slot that recovery could choose, or that a pin
// holds, is never written (I1).
//
// Threading: every call from any thread; calls that say "collective" in the same order on all
// ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/native/manifest.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/store/agreement.h"

namespace ebb::libswap {

using formats::native::Manifest;
using formats::native::Uuid;

class Store {
 public:
  struct Config {
    fs::path directory;  // <swap dir>/store-<uuid>; made if absent
    Uuid uuid{};
    Uuid parent{};
    Rank rank{};
    std::uint32_t world = 1;
    std::uint64_t tile_bytes = 4u << 20;  // multiple of 4096
    std::uint64_t block_bytes = 256u << 10;
    std::uint32_t slots = 3;
    std::uint64_t tiles = 0;
    std::uint64_t manifest_bytes = 0;  // worst case of encode(Manifest), rounded up
    std::uint64_t layout_digest = 0;
  };
  // What of it follows from the tiles' content; manifests have room for all blobs there may be.
  static Config config_for(Manifest content, std::uint64_t tile_bytes);
  struct Place {
    FileId file{};
    std::uint64_t offset = 0;
    std::uint32_t slot = 0;
  };
  // A tile's next version on its way to its place.
  struct Write {
    Place place;
    std::uint64_t tile = 0;
    std::uint64_t step = 0;
    std::vector<std::uint32_t> crcs = {};
  };

  // Bytes create() will reserve on this rank: to be checked against the disk before anything is
  // made.
  static std::uint64_t disk_bytes(const Config& config);
  // Whether create() could make such a store anywhere: Code::usage names the number that is wrong.
  static Result<> check(const Config& config);
  // Preallocates and writes every byte once. ENOSPC can only happen here; nothing is left behind
  // then.
  static Result<std::unique_ptr<Store>> create(IoQueue& io, const Config& config);
  static Result<std::unique_ptr<Store>> open(IoQueue& io, const fs::path& directory, Rank rank,
                                             std::uint32_t world);
  ~Store();

  const formats::native::Superblock& superblock() const;

  // Collective, and the first call after create() and open() alike: no tile may be written and
  // nothing cut before every rank is there. The newest generation prepared on all ranks; newer ones
  // are invalidated. nullopt after create. Code::incomplete names what each rank has when none is
  // common.
  Result<std::optional<Manifest>> recover(Agreement& ranks);
  // What recover() could not take although some rank holds it, for people: an interrupted snapshot
  // or damage. nullopt: there was nothing newer.
  std::optional<std::string> passed_over() const;

  // Where the tile's newest bytes are, and where its next version may go (by I1). `step` is the
  // step the new bytes are at: up to the step of a pending cut it is the cut's own write of that
  // tile (a resident tile that was dirty), above it the next step's. begin_write answers the same
  // place until wrote() and is refused (Code::busy) only when pins and generations leave no free
  // slot: never while room_to_sweep().
  Place read_place(std::uint64_t tile) const;
  std::uint64_t step_of(std::uint64_t tile) const;  // of those newest bytes
  Result<Write> begin_write(std::uint64_t tile, std::uint64_t step);
  // Takes the checksums of what will be written. `bytes`: the tile from its start, whole blocks, at
  // least the blocks that hold used bytes.
  void seal(Write& write, std::span<const std::byte> bytes) const;
  // The write to its place is complete (not: durable). REQUIRES: seal().
  void wrote(Write write);
  // The check every page-in makes; `bytes` as above. The error names file, offset, tile, block.
  Result<> verify(std::uint64_t tile, std::span<const std::byte> bytes) const;

  // Code::state, every time, once a disk did not keep its promise: nothing can be committed here.
  Result<> usable() const;
  // Code::state where a generation may be on this disk: committed, pending, or in doubt.
  Result<> holds_none() const;
  // Whether a cut taken now could commit and leave every tile a free slot. Code::busy while a
  // generation is pending, or while one that is pinned or that another process reads would take the
  // last slot; Code::state, every time, once the store has stopped.
  Result<> can_cut();
  // Whether every tile has a slot for its next version. False only while a pending generation holds
  // the last one (always with 2 slots, with 3 beside an export): agree() before the next sweep
  // writes.
  bool room_to_sweep() const;
  // Step 1 of the protocol: freezes which slot each tile is in, and with which CRCs. Afterwards
  //  - a write at a step <= `step` replaces the tile's version inside the cut (writes in flight at
  //  the
  //    cut, and dirty resident tiles). All of them must be reported by wrote() before prepare();
  //  - a write at a later step goes to another slot and leaves the cut alone. A tile that still
  //  owes the
  //    cut its write must not be changed in memory before that write is complete.
  // Returns the generation number. REQUIRES: can_cut(). Collective in effect: all ranks cut at the
  // same step.
  std::uint64_t cut(std::uint64_t step);
  // Steps 2-4: data durable, then the manifest, then the manifest durable. Blocks; any thread. Fill
  // all of `manifest` but store, rank, world, generation, step and the tiles' slot, written_step
  // and crcs.
  Result<> prepare(Manifest manifest);
  // Steps 5-6', collective. `prepared`: what prepare() answered on this rank, or why it was not
  // called (a write of the cut failed). Unless committed, the generation is abandoned and the
  // previous one stays. Code::state: a disk of some rank did not keep its promise; reopen to
  // recover.
  enum class Settled : std::uint8_t {
    committed,
    abandoned,  // some rank could not write it
    put_off,    // somebody reads the previous one, and no slot would have been left beside both
  };
  Result<Settled> agree(Agreement& ranks, const Result<>& prepared);

  // The committed generation stays readable until unpinned: its slots are not written.
  std::uint64_t committed_generation() const;
  Result<> pin(std::uint64_t generation);
  void unpin(std::uint64_t generation);

 private:
  struct Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ebb::libswap
