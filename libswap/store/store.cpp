#include "ebb/libswap/store/store.h"

#include <algorithm>
#include <utility>

#include "ebb/formats/native/store_files.h"
#include "ebb/libswap/store/blobs.h"
#include "ebb/libswap/store/first_said.h"
#include "ebb/libswap/store/rank_files.h"
#include "ebb/libswap/store/recovery.h"
#include "ebb/libswap/store/slot_table.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {
namespace {

using formats::native::BlockPlace;
using formats::native::Superblock;

Superblock superblock_of(const Store::Config& config) {
  Superblock s;
  s.store = config.uuid;
  s.parent = config.parent;
  s.rank = config.rank;
  s.world = config.world;
  s.tile_bytes = config.tile_bytes;
  s.block_bytes = std::min(config.block_bytes, config.tile_bytes);
  s.slots = config.slots;
  s.tiles = config.tiles;
  s.region_bytes = formats::align_up(std::max(config.manifest_bytes, formats::native::kBlock),
                                     formats::native::kBlock);
  s.layout_digest = config.layout_digest;
  return s;
}

// What ranks tell each other in step 5, the worst lowest, and in step 7.
enum Prepared : std::int64_t { distrusted = 0, failed = 1, would_fill_up = 2, prepared = 3 };
enum Abandoned : std::int64_t { unusable = 0, impossible_here = 1, still_possible = 2 };

constexpr const char* kStartAgain = "start again: the last committed generation will be recovered";
Error cannot_agree(const Error& why) {
  return {Code::state, "ranks could not agree: " + why.message, kStartAgain};
}

constexpr const char* kNoMore = "; nothing can be committed here any more";

}  // namespace

struct Store::Impl {
  Impl(std::unique_ptr<RankFiles> opened, std::uint64_t next)
      : files(std::move(opened)),
        slots(files->superblock().tiles, files->superblock().slots),
        next_generation(next) {}

  std::vector<std::uint32_t> crcs_of(std::uint64_t tile, std::uint32_t slot, std::uint64_t step,
                                     std::span<const std::byte> bytes) const;
  Place place_at(std::uint64_t tile, std::uint32_t slot) const {
    return {files->data(), formats::native::tile_offset(files->superblock(), tile, slot), slot};
  }
  // Pins what another process reads; what nobody reads any more is free again.
  void look_for_readers() EBB_REQUIRES(mutex);
  // The agreement is over; a reader that came after this rank's answer either finds room or finds
  // the new generation.
  void commit() EBB_REQUIRES(mutex);
  Error why_no_cut() const EBB_REQUIRES(mutex);
  Result<> fill(Manifest& manifest);
  Result<> write_manifest(const Manifest& manifest);
  Abandoned abandon_here();
  Error stop(const Error& why);
  Error distrusted_somewhere(Agreement& ranks);
  Result<> usable() const EBB_REQUIRES(mutex);

  const std::unique_ptr<RankFiles> files;
  mutable Mutex mutex;
  SlotTable slots EBB_GUARDED_BY(mutex);
  // Generations pinned for other processes.
  std::vector<std::uint64_t> read_elsewhere EBB_GUARDED_BY(mutex);
  bool recovered EBB_GUARDED_BY(mutex) = false;
  std::optional<std::string> passed_over EBB_GUARDED_BY(mutex);
  std::uint64_t next_generation EBB_GUARDED_BY(mutex) = 1;
  // The pending generation's: it may be on the disk.
  bool manifest_issued EBB_GUARDED_BY(mutex) = false;
  std::optional<Error> stopped EBB_GUARDED_BY(mutex);
};

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

Store::Config Store::config_for(Manifest content, std::uint64_t tile_bytes) {
  Config config;
  config.tile_bytes = tile_bytes;
  config.tiles = content.tiles.size();
  for (auto& tile : content.tiles)
    tile.crcs.assign(formats::div_ceil(tile_bytes, config.block_bytes), 0);
  config.manifest_bytes = encode(content).size() + Blobs::kMostBytes;
  return config;
}

std::uint64_t Store::disk_bytes(const Config& config) {
  const Superblock superblock = superblock_of(config);
  return formats::native::data_file_bytes(superblock) +
         formats::native::meta_file_bytes(superblock) + formats::native::kBlock;
}

Result<> Store::check(const Config& config) {
  auto possible = formats::native::check_geometry(superblock_of(config), "a store");
  if (possible) return {};
  return Error{Code::usage, possible.error().message};
}

Result<std::unique_ptr<Store>> Store::create(IoQueue& io, const Config& config) {
  EBB_TRY(check(config));
  EBB_TRY_ASSIGN(auto files, RankFiles::create(io, config.directory, superblock_of(config)));
  return std::unique_ptr<Store>(new Store(std::make_unique<Impl>(std::move(files), 1)));
}

Result<std::unique_ptr<Store>> Store::open(IoQueue& io, const fs::path& directory, Rank rank,
                                           std::uint32_t world) {
  EBB_TRY_ASSIGN(auto files, RankFiles::open(io, directory, rank, world));
  const std::uint64_t next = files->found().newest_seen() + 1;
  return std::unique_ptr<Store>(new Store(std::make_unique<Impl>(std::move(files), next)));
}

const Superblock& Store::superblock() const { return impl_->files->superblock(); }

Result<std::optional<Manifest>> Store::recover(Agreement& ranks) {
  EBB_TRY_ASSIGN(Recovered recovered, recover_generation(*impl_->files, ranks));
  const MutexLock lock(impl_->mutex);
  impl_->recovered = true;
  impl_->next_generation = recovered.next_generation;
  impl_->passed_over = std::move(recovered.passed_over);
  if (!recovered.manifest) return std::optional<Manifest>();
  std::vector<TileVersion> tiles;
  tiles.reserve(recovered.manifest->tiles.size());
  for (const formats::native::Tile& tile : recovered.manifest->tiles)
    tiles.push_back({tile.slot, true, tile.written_step,
                     std::make_shared<const std::vector<std::uint32_t>>(tile.crcs)});
  impl_->slots.restore(recovered.manifest->generation, recovered.region, std::move(tiles));
  return std::move(recovered.manifest);
}

std::optional<std::string> Store::passed_over() const {
  const MutexLock lock(impl_->mutex);
  return impl_->passed_over;
}

Store::Place Store::read_place(std::uint64_t tile) const {
  const MutexLock lock(impl_->mutex);
  return impl_->place_at(tile, impl_->slots.newest(tile).slot);
}

std::uint64_t Store::step_of(std::uint64_t tile) const {
  const MutexLock lock(impl_->mutex);
  return impl_->slots.newest(tile).step;
}

Result<Store::Write> Store::begin_write(std::uint64_t tile, std::uint64_t step) {
  const MutexLock lock(impl_->mutex);
  if (!impl_->recovered)
    return Error{Code::state,
                 impl_->files->data_name() + ": no tile can be written before the ranks recovered"};
  if (const auto slot = impl_->slots.place(tile, step))
    return Write{impl_->place_at(tile, *slot), tile, step};
  return Error{
      Code::busy,
      compose("{}: tile {} has no free slot: pinned generations and a pending one hold all {}",
              impl_->files->data_name(), tile, superblock().slots),
      "release the export, or create the store with more slots"};
}

void Store::wrote(Write write) {
  auto crcs = when_memory(
      [&] { return std::make_shared<const std::vector<std::uint32_t>>(std::move(write.crcs)); });
  const MutexLock lock(impl_->mutex);
  impl_->slots.wrote(
      write.tile, write.step,
      {static_cast<std::uint8_t>(write.place.slot), true, write.step, std::move(crcs)});
}

void Store::seal(Write& write, std::span<const std::byte> bytes) const {
  write.crcs = impl_->crcs_of(write.tile, write.place.slot, write.step, bytes);
}

std::vector<std::uint32_t> Store::Impl::crcs_of(std::uint64_t tile, std::uint32_t slot,
                                                std::uint64_t step,
                                                std::span<const std::byte> bytes) const {
  const Superblock& s = files->superblock();
  const std::uint64_t block_bytes = s.block_bytes;
  EBB_CHECK(bytes.size() % block_bytes == 0);
  BlockPlace place{s.store, s.rank, tile, slot, 0, step};
  std::vector<std::uint32_t> crcs;
  crcs.reserve(bytes.size() / block_bytes);
  for (; place.block < bytes.size() / block_bytes; ++place.block)
    crcs.push_back(
        formats::native::block_crc(place, bytes.subspan(place.block * block_bytes, block_bytes)));
  return crcs;
}

Result<> Store::verify(std::uint64_t tile, std::span<const std::byte> bytes) const {
  TileVersion version;
  {
    const MutexLock lock(impl_->mutex);
    version = impl_->slots.newest(tile);
  }
  if (!version.written)
    return Error{Code::state,
                 compose("{}: tile {} was never written", impl_->files->data_name(), tile)};
  const auto crcs = impl_->crcs_of(tile, version.slot, version.step, bytes);
  const std::size_t blocks = std::min(crcs.size(), version.crcs->size());
  for (std::size_t block = 0; block < blocks; ++block)
    if (crcs[block] != (*version.crcs)[block])
      return damaged_block(
          impl_->files->data_name(),
          impl_->place_at(tile, version.slot).offset + block * superblock().block_bytes, tile,
          block);
  return {};
}

Result<> Store::Impl::usable() const {
  if (stopped) return *stopped;
  const Result<> trusted = files->trusted();
  if (trusted) return {};
  return Error{Code::state, trusted.error().message + kNoMore, trusted.error().hint};
}

Result<> Store::usable() const {
  const MutexLock lock(impl_->mutex);
  return impl_->usable();
}

Result<> Store::holds_none() const {
  const MutexLock lock(impl_->mutex);
  EBB_TRY(impl_->usable());
  if (impl_->slots.committed() == 0 && !impl_->slots.pending()) return {};
  return Error{Code::state, impl_->files->data_name() + ": it may hold a generation"};
}

void Store::Impl::look_for_readers() {
  std::erase_if(read_elsewhere, [this](std::uint64_t generation) EBB_REQUIRES(mutex) {
    if (files->is_read(generation)) return false;
    slots.unpin(generation);
    return true;
  });
  const std::uint64_t committed = slots.committed();
  if (committed == 0 || std::ranges::find(read_elsewhere, committed) != read_elsewhere.end())
    return;
  if (files->is_read(committed) && slots.pin(committed)) read_elsewhere.push_back(committed);
}

void Store::Impl::commit() {
  look_for_readers();
  if (!slots.can_commit() && std::erase(read_elsewhere, slots.committed()) > 0)
    slots.unpin(slots.committed());
  slots.commit();
}

Error Store::Impl::why_no_cut() const {
  const std::string store = files->data_name();
  if (slots.pending())
    return {Code::busy, compose("{}: generation {} is still being written", store,
                                slots.pending()->generation)};
  const std::string slots_text = compose("{} slots", files->superblock().slots);
  if (!read_elsewhere.empty())
    return {Code::busy,
            compose("{}: another process reads generation {}; with {} the next one has to wait",
                    store, read_elsewhere.back(), slots_text),
            "a store of more slots goes on beside a reader"};
  return {Code::busy, store + ": pinned generations leave no room for another in " + slots_text,
          "release the export, or create the store with more slots"};
}

Result<> Store::can_cut() {
  const MutexLock lock(impl_->mutex);
  EBB_TRY(impl_->usable());
  if (!impl_->recovered)
    return Error{Code::state,
                 impl_->files->data_name() + ": nothing can be cut before the ranks recovered"};
  impl_->look_for_readers();
  if (impl_->slots.can_cut()) return {};
  return impl_->why_no_cut();
}

bool Store::room_to_sweep() const {
  const MutexLock lock(impl_->mutex);
  return impl_->slots.room_to_sweep();
}

std::uint64_t Store::cut(std::uint64_t step) {
  const MutexLock lock(impl_->mutex);
  impl_->slots.cut(impl_->next_generation, step);
  impl_->manifest_issued = false;
  return impl_->next_generation++;
}

// The part of the manifest that the cut knows.
Result<> Store::Impl::fill(Manifest& manifest) {
  const MutexLock lock(mutex);
  if (stopped) return *stopped;
  if (!slots.pending()) return Error{Code::state, files->data_name() + ": no cut to prepare"};
  const SlotTable::Cut& cut = *slots.pending();
  const Superblock& s = files->superblock();
  manifest.store = s.store;
  manifest.rank = s.rank;
  manifest.world = s.world;
  manifest.generation = cut.generation;
  manifest.step = cut.step;
  if (manifest.tiles.size() != cut.tiles.size())
    return Error{Code::layout,
                 compose("{}: a manifest of {} tiles for a store of {}", files->data_name(),
                         manifest.tiles.size(), cut.tiles.size())};
  for (std::size_t i = 0; i < cut.tiles.size(); ++i) {
    formats::native::Tile& tile = manifest.tiles[i];
    const TileVersion& version = cut.tiles[i];
    const std::uint64_t blocks = formats::div_ceil(tile.used_bytes, s.block_bytes);
    if (blocks > 0 && (!version.written || version.crcs->size() < blocks))
      return Error{Code::state,
                   compose("{}: tile {} was not written completely before the cut was prepared",
                           files->data_name(), i)};
    tile.slot = version.slot;
    tile.written_step = version.step;
    tile.crcs.clear();
    if (blocks > 0)
      tile.crcs.assign(version.crcs->begin(),
                       version.crcs->begin() + static_cast<std::ptrdiff_t>(blocks));
  }
  return {};
}

Result<> Store::Impl::write_manifest(const Manifest& manifest) {
  const ByteVector bytes = encode(manifest);
  std::uint32_t region = 0;
  {
    const MutexLock lock(mutex);
    if (bytes.size() > files->superblock().region_bytes)
      return Error{Code::limit,
                   compose("{}: a manifest of {} bytes does not fit its region of {}",
                           files->data_name(), bytes.size(), files->superblock().region_bytes)};
    manifest_issued = true;
    region = slots.pending()->region;
  }
  return files->write_manifest(region, bytes);
}

Result<> Store::prepare(Manifest manifest) {
  EBB_TRY(impl_->fill(manifest));
  EBB_TRY(impl_->files->sync_data());  // I3: before the manifest that names these slots
  EBB_TRY(impl_->write_manifest(manifest));
  EBB_TRY(impl_->files->sync_meta());
  return impl_->files->check_files();
}

Error Store::Impl::stop(const Error& why) {
  const MutexLock lock(mutex);
  stopped = Error{Code::state,
                  compose("{}: generation {}: {}{}", files->store_name(),
                          slots.pending() ? slots.pending()->generation : 0, why.message, kNoMore),
                  why.hint};
  return *stopped;
}

// What became of the files of the lowest rank that cannot trust them: news to the others.
Error Store::Impl::distrusted_somewhere(Agreement& ranks) {
  const Result<> mine = files->trusted();
  const Rank rank = files->superblock().rank;
  const std::string message =
      mine ? "" : compose("rank {}: {}", index_of(rank), mine.error().message);
  const auto said = first_said(ranks, rank, message);
  if (!said) return cannot_agree(said.error());
  const auto hint = first_said(ranks, rank, mine ? "" : mine.error().hint);
  if (!hint) return cannot_agree(hint.error());
  return {Code::state, *said, *hint};
}

// Step 7 on this rank: whether the pending generation can still be chosen from what lies here.
Abandoned Store::Impl::abandon_here() {
  std::uint32_t region = 0;
  formats::native::ManifestHeader header;
  {
    const MutexLock lock(mutex);
    if (!manifest_issued) return files->trusted() ? impossible_here : unusable;
    region = slots.pending()->region;
    header = {files->superblock().store,
              files->superblock().rank,
              files->superblock().world,
              slots.pending()->generation,
              slots.pending()->step,
              0,
              true};
  }
  if (files->void_manifest(region, header)) return impossible_here;
  return files->trusted() ? still_possible : unusable;
}

Result<Store::Settled> Store::agree(Agreement& ranks, const Result<>& mine) {
  Prepared answer = !impl_->files->trusted() ? distrusted : mine ? prepared : failed;
  {
    const MutexLock lock(impl_->mutex);
    if (impl_->stopped) return *impl_->stopped;
    EBB_CHECK(impl_->slots.pending().has_value());
    impl_->look_for_readers();
    if (answer == prepared && !impl_->slots.can_commit()) answer = would_fill_up;
  }
  const Result<std::int64_t> worst = ranks.agree(answer);
  if (!worst) return impl_->stop(cannot_agree(worst.error()));
  if (*worst == prepared) {
    const MutexLock lock(impl_->mutex);
    impl_->commit();
    return Settled::committed;
  }
  if (*worst == distrusted) return impl_->stop(impl_->distrusted_somewhere(ranks));
  const Result<std::int64_t> abandoned = ranks.agree(impl_->abandon_here());
  if (!abandoned) return impl_->stop(cannot_agree(abandoned.error()));
  if (*abandoned == unusable) return impl_->stop(impl_->distrusted_somewhere(ranks));
  if (*abandoned != impossible_here)
    return impl_->stop({Code::state, "it could be neither committed nor abandoned durably",
                        std::string(kSaveElsewhere) + kStartAgain});
  const MutexLock lock(impl_->mutex);
  impl_->slots.abandon();
  return *worst == would_fill_up ? Settled::put_off : Settled::abandoned;
}

std::uint64_t Store::committed_generation() const {
  const MutexLock lock(impl_->mutex);
  return impl_->slots.committed();
}

Result<> Store::pin(std::uint64_t generation) {
  const MutexLock lock(impl_->mutex);
  if (impl_->slots.pin(generation)) return {};
  return Error{Code::state,
               compose("{}: generation {} cannot be pinned: the committed one is {}",
                       impl_->files->data_name(), generation, impl_->slots.committed())};
}

void Store::unpin(std::uint64_t generation) {
  const MutexLock lock(impl_->mutex);
  impl_->slots.unpin(generation);
}

}  // namespace ebb::libswap
