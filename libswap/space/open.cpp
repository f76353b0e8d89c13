// Where a SwapSpace's content comes from: the store, a store of other places, the caller.
#include <algorithm>

#include "ebb/formats/native/manifest_limits.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/space/earlier_store.h"
#include "ebb/libswap/space/swap_space_impl.h"

namespace ebb::libswap {
namespace {

namespace native = formats::native;

constexpr std::uint64_t kBlockBytes = 256u << 10;  // of a checksum

std::uint64_t manifest_bytes(native::Manifest manifest, std::uint64_t tile_bytes) {
  const std::uint64_t blocks = formats::div_ceil(tile_bytes, kBlockBytes);
  for (native::Tile& tile : manifest.tiles) tile.crcs.assign(blocks, 0);
  return encode(manifest).size() + Blobs::kMostBytes;
}

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
  store_config = {.rank = ranks.rank(),
                  .world = ranks.world(),
                  .tile_bytes = config.tile_bytes,
                  .block_bytes = std::min(config.tile_bytes, kBlockBytes),
                  .slots = config.slots,
                  .tiles = buffers.tiles(),
                  .manifest_bytes = manifest_bytes(content, config.tile_bytes),
                  .layout_digest = buffers.digest()};
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
  const auto current = directory.current();
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
  self.origin += self.directory.passed_over();
  self.leases.resize(self.buffers.all().size());
  self.open = true;
  return {};
}

void SwapSpace::Impl::close() {
  snapshots.reset();
  residency.reset();
  device_room.reset();
  cache.reset();
  store.reset();
}

Result<> SwapSpace::Impl::attach(const InitialContent& initial) {
  const auto current = directory.current();
  const bool fits =
      current && current->world == ranks.world() && current->tile_bytes == config.tile_bytes &&
      current->layout_digest == store_config.layout_digest &&
      io.backend().exists(current->path / native::rank_directory(ranks.rank(), ranks.world()));
  EBB_TRY_ASSIGN(const std::int64_t all_fit, ranks.agree(fits ? 1 : 0));
  if (all_fit == 1) {
    EBB_TRY_ASSIGN(const bool resumed, resume(*current));
    if (resumed) return {};
  }
  std::unique_ptr<EarlierStore> earlier;
  if (current) {
    auto opened = EarlierStore::open(current->path, buffers);
    EBB_TRY(agree_all(ranks, opened ? Result<>() : opened.error(), "reading the earlier store"));
    earlier = std::move(*opened);
    step = earlier->step();
    if (const std::string left = blobs.take(earlier->catalog()); !left.empty()) notes = "; " + left;
  }
  const InitialContent content =
      earlier ? [&](BufferId buffer,
                    std::span<std::byte>
                        bytes) { return earlier->fill(buffers.all()[index_of(buffer)], bytes); }
              : initial;
  EBB_TRY_ASSIGN(const auto fresh, directory.fresh(ranks));
  if (Result<> made = make(fresh, current ? current->uuid : Uuid{}, content); !made) {
    const Result<> holds_none = store ? store->holds_none() : Result<>();
    close();
    // The first failure is the news.
    static_cast<void>(directory.discard(ranks, fresh.uuid, holds_none).has_value());
    return made;
  }
  EBB_TRY(directory.adopt(ranks));
  origin = earlier ? compose("transferred the store of {} ranks at step {}{}", current->world, step,
                             notes)
                   : compose("created at step {}", step);
  return {};
}

Result<bool> SwapSpace::Impl::resume(const SwapDirectory::Entry& current) {
  store_path = current.path;
  auto opened = Store::open(io, current.path, ranks.rank(), ranks.world());
  EBB_TRY(agree_all(ranks, opened ? Result<>() : opened.error(), "opening its store"));
  store = std::move(*opened);
  EBB_TRY_ASSIGN(const auto manifest, store->recover(ranks));
  if (!manifest)
    return Error{Code::incomplete, current.path.string() + ": no generation was committed"};
  EBB_TRY_ASSIGN(const std::int64_t all_same,
                 ranks.agree(same_places(*manifest, buffers.manifest()) ? 1 : 0));
  if (all_same == 0) {
    store.reset();
    return false;
  }
  EBB_TRY(agree_all(ranks, make_room(), "making room for its state"));
  step = manifest->step;
  blobs.take(manifest->blobs);
  const auto passed_over = store->passed_over();
  origin = compose("resumed the store at step {}{}", step,
                   passed_over ? " (" + *passed_over + ")" : std::string());
  return true;
}

Result<> SwapSpace::Impl::make_room() {
  EBB_TRY_ASSIGN(pool, Pool::start(config.threads));
  const Homes homes{std::vector<Tier>(buffers.tiles(), Tier::nvme), frames};
  EBB_TRY_ASSIGN(cache, TileCache::open(io, *store, *pool, homes, nullptr, config.trace));
  residency.emplace(buffers, *cache, *pool, config.tile_bytes, frames);
  if (config.device != nullptr) {
    EBB_TRY_ASSIGN(device_room, DeviceRoom::make(*config.device, config.device_bytes));
  }
  const auto together = [this](std::string_view doing, const std::function<Result<>()>& work) {
    return agree_all(ranks, work(), doing);
  };
  snapshots.emplace(*cache, *store, ranks, together, config.trace);
  return {};
}

Result<> SwapSpace::Impl::make(const SwapDirectory::Entry& fresh, const Uuid& parent,
                               const InitialContent& content) {
  EBB_TRY(directory.check_space(ranks, Store::disk_bytes(store_config)));
  Store::Config wanted = store_config;
  wanted.directory = fresh.path;
  wanted.uuid = fresh.uuid;
  wanted.parent = parent;
  store_path = fresh.path;
  auto created = Store::create(io, wanted);
  EBB_TRY(agree_all(ranks, created ? Result<>() : created.error(), "making its store"));
  store = std::move(*created);
  EBB_TRY(store->recover(ranks));
  EBB_TRY(agree_all(ranks, make_room(), "making room for its state"));
  EBB_TRY(agree_all(ranks, fill(content), "filling its store"));
  EBB_TRY_ASSIGN(const bool begun, snapshots->begin(step, manifest()));
  EBB_CHECK(begun);
  EBB_TRY(snapshots->wait());
  return {};
}

// Of the present; made on any thread.
Snapshots::MakeManifest SwapSpace::Impl::manifest() const {
  return [this, kept = blobs.all()]() mutable {
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
  return cache->settle();
}

}  // namespace ebb::libswap
