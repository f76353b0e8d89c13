// Private to libswap/space: the parts of a SwapSpace.
//   swap_space.cpp    leases, snapshots            open.cpp   create, resume, transfer
//   residency.cpp     what is in memory            frames.cpp which frames go next
//   buffers.cpp       what lies in which tile      device_room.cpp  pieces of a device's memory
#pragma once

#include <optional>

#include "ebb/libswap/space/device_room.h"
#include "ebb/libswap/space/earlier_store.h"
#include "ebb/libswap/space/residency.h"
#include "ebb/libswap/space/swap_space.h"
#include "ebb/libswap/state/state_home.h"
#include "ebb/libswap/sys/home_process.h"

namespace ebb::libswap {

struct SwapSpace::Impl {
  Impl(IoQueue& queue, SwapDirectory& swap, Ranks& world, const SwapSpaceConfig& given)
      : io(queue),
        ranks(world),
        config(given),
        home(queue, world, swap, store_config, given.trace) {}

  // open.cpp
  Result<> plan();
  std::vector<Setting> settings() const;
  Result<> attach(const InitialContent& initial);
  // False: some rank's part of it lies in other places.
  Result<bool> resume(const SwapDirectory::Entry& current);
  // Its content is the earlier store's, if there is one.
  Result<> fill_and_commit(EarlierStore* earlier, const InitialContent& initial);
  Result<> make_room();
  Result<> fill(const InitialContent& content);
  Snapshots::MakeManifest manifest() const;
  void close();

  // swap_space.cpp
  Result<> usable() const;
  Result<const Buffers::Buffer*> find(BufferId buffer) const;
  Residency::Piece piece_of(BufferId buffer) const;
  Error held_in_the_way(const Buffers::Buffer& wanted, std::string_view budget) const;
  Result<> can_serve(Tier tier) const;
  // The host's bytes of a buffer.
  Result<std::span<std::byte>> bring(BufferId buffer, Access access);
  void let_go(BufferId buffer, Access access);
  // Their copy on the device.
  Result<Buffer> lift(const Buffers::Buffer& buffer, std::span<std::byte> bytes);

  struct Leases {
    std::uint32_t reading = 0;
    bool modifying = false;
  };

  const HomeProcess process{"swap space"};
  IoQueue& io;
  Ranks& ranks;
  SwapSpaceConfig config;
  Buffers buffers;
  Store::Config store_config;  // without directory and uuids
  std::uint64_t frames = 0;
  bool open = false;

  std::unique_ptr<Pool> pool;
  StateHome home;
  std::optional<Residency> residency;
  std::optional<DeviceRoom> device_room;
  std::vector<Leases> leases;  // by buffer
  std::uint64_t step = 0;      // of the last cut; what is released from then on is at the next one
  bool changed = false;        // since then
  std::uint64_t acquires = 0;
};

}  // namespace ebb::libswap
