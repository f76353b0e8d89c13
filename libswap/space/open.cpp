// Where a SwapSpace's content comes from: the store, a store of other places, the caller.
#include <algorithm>

#include "ebb/formats/native/manifest_limits.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/libswap/space/swap_space_impl.h"

namespace ebb::libswap {
namespace {

namespace native = formats::native;

bool same_places(const native::Manifest& a, const native::Manifest& b) {
  const auto same_param = [](const native::Param& x, const native::Param& y) {
    return x.name == y.name && x.shape == y.shape;
  };
  const auto same_tile = [](const native::Tile& x, const native::Tile& y) {
    return x.segments == y.segments;
  };
  return a.states == b.states && std::ranges::equal(a.params, b.params, same_param) &&
         std::ranges::equal(a.tiles, b.tiles, same_tile);
}

}  // namespace

// All that can be refused before anything is made.
Result<> SwapSpace::Impl::plan() {
  EBB_TRY(native::check_tile_bytes(config.tile_bytes));
  buffers.lay(config.tile_bytes);
  EBB_TRY(native::check_tiles(buffers.tiles(), config.tile_bytes));
  const native::Manifest content = buffers.manifest();
  EBB_TRY(native::check_limits(content));
  store_config = Store::config_for(content, config.tile_bytes);
  store_config.rank = ranks.rank();
  store_config.world = ranks.world();
  store_config.slots = config.slots;
  store_config.layout_digest = buffers.digest();
  EBB_TRY(Store::check(store_config));
  frames = std::min(config.budget_bytes / config.tile_bytes, Residency::most_frames(buffers));
  const std::uint64_t least = Residency::least_frames(buffers);
  if (frames >= least) return {};
  return Error{
      Code::no_memory,
      compose("a budget of {} bytes is too small for rank {}: the smallest that works is "
              "{} bytes, {} tiles",
              config.budget_bytes, index_of(ranks.rank()), least * config.tile_bytes, least),
      "give a larger budget or a smaller tile size"};
}

std::vector<Setting> SwapSpace::Impl::settings() const {
  std::vector<Setting> settings = buffers.settings();
  settings.push_back({"the number of slots", std::to_string(config.slots)});
  const auto current = home.directory().current();
  settings.push_back({"the store to resume", current ? native::to_string(current->uuid) : "none"});
  return settings;
}

Result<> SwapSpace::open(const InitialContent& initial) {
  Impl& self = *impl_;
  EBB_TRY(self.process.check());
  if (self.open) return Error{Code::state, "the space is open already"};
  EBB_TRY(agree_all(self.ranks, self.plan(), "planning its state"));
  EBB_TRY(same_everywhere(self.ranks, self.settings()));
  EBB_TRY(self.buffers.prove_shares(self.ranks));
  if (Result<> attached = self.attach(initial); !attached) {
    self.close();
    return attached;
  }
  self.home.add_to_origin(self.home.directory().passed_over());
  self.leases.resize(self.buffers.all().size());
  self.open = true;
  return {};
}

void SwapSpace::Impl::close() {
  residency.reset();
  device_room.reset();
  home.close();
}

Result<> SwapSpace::Impl::attach(const InitialContent& initial) {
  const auto current = home.directory().current();
  EBB_TRY_ASSIGN(const bool fits, home.fits());
  if (fits) {
    EBB_TRY_ASSIGN(const bool resumed, resume(*current));
    if (resumed) return {};
  }
  std::unique_ptr<EarlierStore> earlier;
  std::string left_behind;
  if (current) {
    EBB_TRY_ASSIGN(
        earlier, EarlierStore::open(ranks, io.backend(), home.directory().folders_of(current->uuid),
                                    buffers));
    step = earlier->step();
    left_behind = home.blobs().take(earlier->catalog());
  }
  EBB_TRY(home.begin_anew([&] { return fill_and_commit(earlier.get(), initial); }));
  home.set_origin(
      earlier ? compose("transferred the store of {} ranks", current->world) : "created", step);
  if (!left_behind.empty()) home.add_to_origin("; " + left_behind);
  return {};
}

Result<bool> SwapSpace::Impl::resume(const SwapDirectory::Entry& current) {
  const native::Manifest wanted = buffers.manifest();
  EBB_TRY_ASSIGN(const auto manifest, home.open(current, [&](const auto& stored) {
    return same_places(stored, wanted);
  }));
  if (!manifest) return false;
  const auto take_over = [&]() -> Result<> {
    EBB_TRY(make_room());
    return home.take_over(*manifest);
  };
  EBB_TRY(agree_all(ranks, take_over(), "making room for its state"));
  step = manifest->step;
  if (const auto passed_over = home.store()->passed_over()) home.note(*passed_over);
  home.set_origin("resumed the store", step);
  return true;
}

Result<> SwapSpace::Impl::make_room() {
  EBB_TRY_ASSIGN(pool, Pool::start(config.threads));
  const Homes homes{std::vector<Tier>(buffers.tiles(), Tier::nvme), frames};
  EBB_TRY(home.open_cache(*pool, homes, nullptr));
  residency.emplace(buffers, home.cache(), *pool, config.tile_bytes, frames);
  if (config.device != nullptr) {
    EBB_TRY_ASSIGN(device_room, DeviceRoom::make(*config.device, config.device_bytes));
  }
  return {};
}

// What the trainer fills is filled on its thread.
Result<> SwapSpace::Impl::fill_and_commit(EarlierStore* earlier, const InitialContent& initial) {
  EBB_TRY(agree_all(ranks, make_room(), "making room for its state"));
  const auto from_earlier = [&](BufferId buffer, std::span<std::byte> bytes) {
    return earlier->fill(buffers.all()[index_of(buffer)], bytes);
  };
  constexpr std::string_view kFilling = "filling its store";
  EBB_TRY(earlier != nullptr ? earlier->run(ranks, kFilling, [&] { return fill(from_earlier); })
                             : agree_all(ranks, fill(initial), kFilling));
  EBB_TRY_ASSIGN(const bool begun, home.begin_snapshot(step, manifest()));
  EBB_CHECK(begun);
  EBB_TRY(home.wait_snapshot());
  return {};
}

// Of the present; made on any thread.
Snapshots::MakeManifest SwapSpace::Impl::manifest() const {
  return [this, kept = home.blobs().all()]() mutable {
    native::Manifest manifest = buffers.manifest();
    manifest.blobs = std::move(kept);
    return manifest;
  };
}

Result<> SwapSpace::Impl::fill(const InitialContent& content) {
  for (std::uint32_t i = 0; i < buffers.extents().size(); ++i) {
    EBB_TRY_ASSIGN(const auto bytes, residency->to_fill(i));
    for (const std::uint32_t number : buffers.extents()[i].buffers) {
      if (!content) continue;  // zeros
      const Buffers::Buffer& buffer = buffers.all()[number];
      EBB_TRY(content(BufferId{number}, bytes.subspan(buffer.offset, buffer.bytes)));
    }
    residency->filled(i, step);
    residency->advance();
  }
  return home.cache().settle();
}

}  // namespace ebb::libswap
