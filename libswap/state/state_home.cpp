#include "ebb/libswap/state/state_home.h"

#include <utility>

#include "ebb/formats/native/store_files.h"

namespace ebb::libswap {

StateHome::StateHome(IoQueue& io, Ranks& ranks, SwapDirectory& directory,
                     const Store::Config& wanted, Trace* trace)
    : io_(io), ranks_(ranks), wanted_(wanted), trace_(trace), directory_(&directory) {}

// Resuming in place needs this rank's own folder in its own directory.
Result<bool> StateHome::has_own_part() const {
  const auto current = directory_->current();
  if (!current || current->world != ranks_.world() ||
      current->layout_digest != wanted_.layout_digest || current->tile_bytes != wanted_.tile_bytes)
    return false;
  return io_.backend().exists(current->path /
                              formats::native::rank_directory(ranks_.rank(), current->world));
}

Result<bool> StateHome::fits() const {
  const auto mine = has_own_part();
  EBB_TRY(agree_all(ranks_, mine ? Result<>() : mine.error(), "looking for its store"));
  EBB_TRY_ASSIGN(const std::int64_t all_fit, ranks_.agree(*mine ? 1 : 0));
  return all_fit == 1;
}

Result<std::optional<Manifest>> StateHome::open(
    const Entry& current, const std::function<bool(const Manifest& manifest)>& same_places) {
  path_ = current.path;
  EBB_TRY(ranks_.together("opening its store", [&]() -> Result<> {
    EBB_TRY_ASSIGN(store_, Store::open(io_, current.path, ranks_.rank(), ranks_.world()));
    return {};
  }));
  EBB_TRY_ASSIGN(auto manifest, store_->recover(ranks_));
  if (!manifest)
    return Error{Code::incomplete, current.path.string() + ": no generation was committed"};
  EBB_TRY_ASSIGN(const std::int64_t all_same, ranks_.agree(same_places(*manifest) ? 1 : 0));
  if (all_same == 1) return manifest;
  store_.reset();
  return std::optional<Manifest>();
}

Result<> StateHome::open_cache(Pool& pool, const Homes& homes, Device* device) {
  EBB_TRY_ASSIGN(cache_, TileCache::open(io_, *store_, pool, homes, device, trace_));
  watch_snapshots();
  return {};
}

Result<> StateHome::take_over(const Manifest& manifest) {
  EBB_TRY(cache_->load_residents());
  resumed_step_ = manifest.step;
  blobs_.take(manifest.blobs);
  return {};
}

Result<std::shared_ptr<Store>> StateHome::make_store(const SwapDirectory& in, const Entry& fresh,
                                                     const Uuid& parent) const {
  Store::Config wanted = wanted_;
  EBB_TRY(in.check_space(ranks_, Store::disk_bytes(wanted)));
  wanted.directory = fresh.path;
  wanted.uuid = fresh.uuid;
  wanted.parent = parent;
  std::shared_ptr<Store> made;
  EBB_TRY(ranks_.together("making its store", [&]() -> Result<> {
    EBB_TRY_ASSIGN(made, Store::create(io_, wanted));
    return {};
  }));
  EBB_TRY(made->recover(ranks_));
  return made;
}

Result<> StateHome::begin_anew(const std::function<Result<>()>& fill) {
  EBB_TRY_ASSIGN(const Entry fresh, directory_->fresh(ranks_));
  const auto make = [&]() -> Result<> {
    const auto old = directory_->current();
    EBB_TRY_ASSIGN(store_, make_store(*directory_, fresh, old ? old->uuid : Uuid{}));
    path_ = fresh.path;
    return fill();
  };
  if (Result<> made = make(); !made) {
    discard(fresh);
    return made;
  }
  return directory_->adopt(ranks_);
}

void StateHome::discard(const Entry& fresh) {
  snapshots_.reset();
  const Result<> holds_none = store_ ? store_->holds_none() : Result<>();
  cache_.reset();
  store_.reset();
  // The first failure is the news.
  static_cast<void>(directory_->discard(ranks_, fresh.uuid, holds_none).has_value());
}

void StateHome::note(const std::string& text) {
  if (!text.empty()) notes_ += (notes_.empty() ? "" : "; ") + text;
}

void StateHome::set_origin(const std::string& what, std::uint64_t step) {
  origin_ = compose("{} at step {}{}", what, step, (notes_.empty() ? "" : " (" + notes_ + ")"));
}

void StateHome::watch_snapshots() { snapshots_.emplace(*cache_, *store_, ranks_, trace_); }

Result<> StateHome::settle(Snapshots::Mode mode) {
  EBB_TRY(snapshots_->settle(mode));
  return adopt_if_due();
}

Result<> StateHome::adopt_if_due() {
  if (!adopt_due_ || !snapshots_->committed_step()) return {};
  EBB_TRY(directory_->adopt(ranks_));  // an error leaves it due: the generation is committed
  adopt_due_ = false;
  return {};
}

Result<bool> StateHome::begin_snapshot(std::uint64_t step, Snapshots::MakeManifest manifest,
                                       const std::function<Result<>()>& before_cut) {
  EBB_TRY_ASSIGN(const bool begun, snapshots_->begin(step, std::move(manifest), before_cut));
  EBB_TRY(adopt_if_due());
  return begun;
}

Result<std::uint64_t> StateHome::wait_snapshot() {
  EBB_TRY(settle(Snapshots::Mode::wait));
  return snapshots_->wait();
}

std::uint64_t StateHome::committed_generation() const {
  return store_ ? store_->committed_generation() : 0;
}

std::uint64_t StateHome::committed_step() const {
  const auto committed = snapshots_ ? snapshots_->committed_step() : std::nullopt;
  return committed.value_or(resumed_step_);
}

const Error* StateHome::snapshot_error() const {
  return snapshots_ ? snapshots_->error() : nullptr;
}

Result<> StateHome::has_committed() const {
  if (directory_->current()) return {};
  return Error{Code::state, directory_->path().string() + " holds no committed generation"};
}

// An export reads through the store that would be opened a second time.
Result<> StateHome::has_no_export() const {
  if (store_.use_count() == 1) return {};
  return Error{Code::busy, "an export holds a generation of this store",
               "finish the export, then go back"};
}

void StateHome::close() {
  counted_ = counted();
  snapshots_.reset();
  cache_.reset();
  store_.reset();
  notes_.clear();
}

// All of it is copied before anything of the client's changes.
Result<> StateHome::move_to(SwapDirectory& other) {
  EBB_TRY_ASSIGN(const Entry fresh, other.fresh(ranks_));
  auto made = make_store(other, fresh, store_->superblock().store);
  Result<> copied = made ? Result<>() : made.error();
  if (made)
    copied =
        ranks_.together("copying its state", [&]() -> Result<> { return cache_->copy_to(**made); });
  if (!copied) {
    made = std::shared_ptr<Store>();
    // The first failure is the news; nothing was committed there.
    static_cast<void>(other.discard(ranks_, fresh.uuid, {}).has_value());
    return copied;
  }
  cache_->move_to(**made);
  store_ = *std::move(made);
  counted_.snapshots_put_off = counted().snapshots_put_off;
  watch_snapshots();
  resumed_step_ = 0;
  path_ = fresh.path;
  directory_ = &other;
  adopt_due_ = true;
  return {};
}

StateHome::Counted StateHome::counted() const {
  Counted all = counted_;
  if (cache_) all.add(cache_->stats());
  if (snapshots_) all.snapshots_put_off += snapshots_->put_off();
  return all;
}

}  // namespace ebb::libswap
