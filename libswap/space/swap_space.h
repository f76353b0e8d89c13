// SwapSpace: a trainer's own state, buffers of any size and type, in a byte budget of memory and in
// a store on disk; for trainers whose optimizer is not libmuon's. What lies in the store is a
// checkpoint that the tools read and that survives a crash.
//
// Register every buffer, open, then: prefetch, acquire, change, release, as often and in whatever
// order; from time to time snapshot. StateStore is the same for who wants less to do with it.
//
// Memory: the budget holds all bytes of buffers that are in memory, as frames of one tile; beside
// it lie tables, some 200 bytes a tile and a buffer. A buffer's bytes are dense and stay where they
// are while it is leased. A buffer larger than a tile takes a run of neighbouring frames
// (docs/embedding.md says what follows); buffers that fit share a tile.
//
// Threading: one thread owns a SwapSpace: all calls come from it, and leases end on it. Bytes that
// are leased may be read and changed by any thread. Ranks are threads or processes, each with a
// SwapSpace of its own. Calls marked [C] are collective: all ranks, same order. In a child made by
// fork() calls that answer a Result answer Code::state, stats() is zeros, and leases and the space
// end without a word to the parent.
//
// Errors: a page-in that fails costs the acquire that wanted it. A write-behind that fails is
// repeated, then loses nothing: the bytes stay in memory, and every call answers the error, until
// go_on() has it tried again. A failed sync is for ever: Code::state from snapshot().
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ebb/libswap/pager/tile_cache.h"
#include "ebb/libswap/space/buffers.h"
#include "ebb/libswap/store/store_set.h"

namespace ebb::libswap {

struct SwapSpaceConfig {
  std::uint64_t budget_bytes = 0;       // of this rank
  std::uint64_t tile_bytes = 1u << 20;  // a multiple of 4096; the same on all ranks
  std::uint32_t slots = 3;              // of a new store; with 2, snapshot() waits for its commit
  std::uint32_t threads = 1;            // that take checksums and copy
  Trace* trace = nullptr;               // borrowed
  // Where Tier::device is, and how much of its memory buffers acquired there may take; borrowed.
  Device* device = nullptr;
  std::uint64_t device_bytes = 0;
};

struct SwapSpaceStats {
  PagerStats pager;
  std::uint64_t acquires = 0;
  std::uint64_t stalls = 0;        // of them: the bytes were not there yet
  std::uint64_t copied_bytes = 0;  // so that a snapshot finds what was released last
  std::uint64_t snapshots_put_off = 0;
};

class SwapSpace {
 public:
  enum class Access : std::uint8_t { read, modify };
  enum class Release : std::uint8_t {
    clean,  // nothing was changed, or the changes are to be forgotten
    dirty,  // what the bytes are now is the buffer's content
  };

  // A buffer in the caller's hands. One that goes out of scope is released clean. It goes before
  // its SwapSpace does.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept { swap(other); }
    Lease& operator=(Lease&& other) noexcept {
      Lease(std::move(other)).swap(*this);
      return *this;
    }
    ~Lease();
    bool held() const { return space_ != nullptr; }
    BufferId buffer() const { return buffer_; }
    // Its bytes, where they were wanted; of what was acquired to be read nothing may be changed.
    Buffer memory() const { return memory_; }
    // In the order of register_buffer(); empty of a part that there is none of.
    Buffer memory_of(std::size_t part) const;
    // The same, in the host's memory; empty where they lie on the device.
    std::span<std::byte> bytes() const { return bytes_of(memory_); }
    std::span<std::byte> part(std::size_t number) const { return bytes_of(memory_of(number)); }

   private:
    friend class SwapSpace;
    void swap(Lease& other) noexcept;
    static std::span<std::byte> bytes_of(const Buffer& memory);

    SwapSpace* space_ = nullptr;
    BufferId buffer_{};
    Access access_ = Access::read;
    std::span<std::byte> bytes_;  // of the host
    Buffer memory_;               // those, or their copy on the device
  };
  // Fills what a new store begins with; the bytes are zero.
  using InitialContent = std::function<Result<>(BufferId buffer, std::span<std::byte> bytes)>;

  // All three outlive it.
  SwapSpace(IoQueue& io, SwapDirectory& directory, Ranks& ranks, const SwapSpaceConfig& config);
  ~SwapSpace();  // waits for I/O; what no snapshot committed is lost
  SwapSpace(const SwapSpace&) = delete;
  SwapSpace& operator=(const SwapSpace&) = delete;

  // Before open(), the same tensors in the same order on every rank; Code::state afterwards. The
  // parts of a buffer are acquired together; each begins on a multiple of 64 bytes.
  Result<BufferId> register_buffer(std::vector<BufferPart> parts);
  // [C] Resumes the directory's current store, or makes one: with the content that the current one
  // has, where it was made for other ranks, tiles or an order of its own; else with `initial`.
  // Every tensor of the resumed store must be registered, and the other way round: Code::layout and
  // Code::incomplete name the first that is not. After an error it is not open.
  Result<> open(const InitialContent& initial);
  // Of the generation it was opened with, 0 for a new store, then of the last snapshot.
  std::uint64_t step() const;
  const std::string& origin() const;  // "created", "resumed the store at step 12", ...

  // A hint that the buffer will be acquired, after those that were hinted at before.
  Result<> prefetch(BufferId buffer);
  // Of buffers to hint at before they are acquired: more are in the way of what stays in memory.
  std::uint64_t useful_bytes_ahead() const;
  // Its last released content. Waits where that is on the disk: a stall. Any number may read it at
  // once, or one modify it (else Code::state). Code::no_memory, at once, where only leases that the
  // caller holds are in the way: it names them. `tier`: where the bytes are wanted. On the device
  // they are a copy, beside those in the host's budget, until they are released.
  Result<Lease> acquire(BufferId buffer, Tier tier, Access access);
  // Behind `done`, for which it waits, nobody uses the bytes. After an error the lease is still
  // held, and its bytes are what they were.
  Result<> release(Lease& lease, Release how, const Event& done = {});
  // Waits until all that was released is written; what a crash leaves is the last snapshot's.
  Result<> flush();
  // What could not be written is tried again.
  void go_on();

  // What the trainer wants back after a resume (data position, generator): stored with the next
  // generations. Code::limit beyond 256 KiB of all.
  Result<> set_blob(std::string key, ByteVector bytes);
  const ByteVector* blob(std::string_view key) const;

  // [C] Makes a generation of what was released, at `step`, and returns: it becomes durable behind
  // the caller and is committed at a later call marked [C]. What is acquired to be modified counts
  // as it was acquired. False: the one before is still being written, or readers leave no room.
  // `step`: not below that of the one before, nor the same if anything was released dirty since.
  Result<bool> snapshot(std::uint64_t step);
  // [C] Commits the snapshot under way if every rank has written it; else does nothing.
  Result<> poll_snapshot();
  // [C] Waits for its commit; the generation's number, 0 if there is none. Its error if it was
  // abandoned: then the one before stays, and another may be begun.
  Result<std::uint64_t> wait_snapshot();

  const std::filesystem::path& store_directory() const;  // what ckpt-inspect reads
  SwapSpaceStats stats() const;

 private:
  struct Impl;
  void drop(Lease& lease);
  void end(Lease& lease);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ebb::libswap
