#include "ebb/libmuon/step/state_home.h"

#include <algorithm>
#include <utility>

#include "ebb/formats/native/store_files.h"
#include "ebb/libmuon/comm/together.h"
#include "ebb/libmuon/step/continuity.h"
#include "ebb/libmuon/step/manifest_template.h"

namespace ebb::libmuon {

using formats::native::Manifest;

namespace {

// A store may be older than some of our states: it has none of them.
bool same_places(const formats::native::Manifest& manifest, const StatePlan& plan) {
  const std::vector<std::string>& names = plan.columns().names();
  const bool same_names = manifest.states.size() <= names.size() &&
                          std::equal(manifest.states.begin(), manifest.states.end(), names.begin());
  if (!same_names || manifest.tiles.size() != plan.tiles().size()) return false;
  for (std::size_t i = 0; i < manifest.tiles.size(); ++i)
    if (manifest.tiles[i].segments != plan.segments(plan.tiles()[i])) return false;
  return true;
}

// What lies in each tile, for people.
std::vector<std::string> tile_names(const ModelSpec& model, const StatePlan& plan) {
  std::vector<std::string> names;
  const auto& states = plan.columns().names();
  for (const TileEntry& tile : plan.tiles()) {
    const auto segments = plan.segments(tile);
    names.push_back(compose(
        "{} {}{}", model.params[plan.param_of(segments.front())].name,
        states[segments.front().state],
        segments.size() == 1 ? std::string() : compose(" and {} more", segments.size() - 1)));
  }
  return names;
}

}  // namespace

StateHome::StateHome(const Setup& setup, StepCount& steps, libswap::SwapDirectory& directory)
    : setup_(setup), steps_(steps), directory_(&directory) {}

// Resuming in place needs this rank's own folder in its own directory.
Result<bool> StateHome::has_own_folder(const std::optional<Entry>& current) const {
  if (!current) return false;
  return setup_.io.backend().exists(current->path /
                                    formats::native::rank_directory(setup_.rank(), current->world));
}

Result<bool> StateHome::fits() const {
  const auto current = directory_->current();
  EBB_TRY_ASSIGN(const bool mine_here, has_own_folder(current));
  const bool mine_fits = mine_here && current->world == setup_.ranks.world() &&
                         current->layout_digest == setup_.plan().digest() &&
                         current->tile_bytes == setup_.config.tile_bytes;
  EBB_TRY_ASSIGN(const std::int64_t all_fit, setup_.ranks.agree(mine_fits ? 1 : 0));
  return all_fit == 1;
}

Result<std::optional<Manifest>> StateHome::open(const Entry& current) {
  Communicator& ranks = setup_.ranks;
  path_ = current.path;
  EBB_TRY(together(ranks, "opening its store", [&]() -> Result<> {
    EBB_TRY_ASSIGN(store_,
                   libswap::Store::open(setup_.io, current.path, setup_.rank(), ranks.world()));
    return {};
  }));
  EBB_TRY_ASSIGN(auto manifest, store_->recover(ranks));
  if (!manifest)
    return Error{Code::incomplete, current.path.string() + ": no generation was committed"};
  EBB_TRY_ASSIGN(const std::int64_t all_same,
                 ranks.agree(same_places(*manifest, setup_.plan()) ? 1 : 0));
  if (all_same == 1) return manifest;
  store_.reset();
  return std::optional<Manifest>();
}

Result<> StateHome::compare(const Manifest& manifest, const Computing& computing) {
  EBB_TRY_ASSIGN(const Catalog trained, groups_of(manifest));
  EBB_TRY_ASSIGN(notes_, compare_groups(setup_.config.model, trained));
  if (const auto passed_over = store_->passed_over()) note(*passed_over);
  if (const std::uint32_t slots = store_->superblock().slots; slots != setup_.config.slots)
    note(compose("it was made with {} slots a tile and keeps them", slots));
  if (manifest.fingerprint != computing.fingerprint())
    note("it was written with other kernels: " + manifest.fingerprint);
  note(computing.note());
  return {};
}

Result<> StateHome::open_cache(const Computing& computing) {
  const EngineConfig& config = setup_.config;
  if (config.trace != nullptr)
    config.trace->name_tiles(setup_.rank(), tile_names(config.model, setup_.plan()));
  EBB_TRY_ASSIGN(
      cache_, libswap::TileCache::open(setup_.io, *store_, computing.pool(), setup_.prepared.homes,
                                       computing.kernels().device(), config.trace));
  kernels_ = computing.fingerprint();
  watch_snapshots();
  return {};
}

Result<> StateHome::take_over(const Manifest& manifest) {
  EBB_TRY(cache_->load_residents());
  resumed_step_ = manifest.step;
  steps_.set(manifest.step, manifest.param_steps);
  blobs_.take(manifest.blobs);
  return {};
}

Result<> StateHome::read(Beginning& from) {
  return from.work("reading what it begins from", [&]() -> Result<> {
    EBB_TRY_ASSIGN(const Beginning::Known known, from.read());
    if (from.checkpoint() == nullptr) return {};
    steps_.set(known.step, known.taken);
    notes_ = known.notes;
    note(blobs_.take(from.checkpoint()->catalog()));
    return {};
  });
}

Result<std::shared_ptr<libswap::Store>> StateHome::make_store(
    const libswap::SwapDirectory& in, const Entry& fresh,
    const formats::native::Uuid& parent) const {
  Communicator& ranks = setup_.ranks;
  libswap::Store::Config wanted = setup_.prepared.store;
  EBB_TRY(in.check_space(ranks, libswap::Store::disk_bytes(wanted)));
  wanted.directory = fresh.path;
  wanted.uuid = fresh.uuid;
  wanted.parent = parent;
  std::shared_ptr<libswap::Store> made;
  EBB_TRY(together(ranks, "making its store", [&]() -> Result<> {
    EBB_TRY_ASSIGN(made, libswap::Store::create(setup_.io, wanted));
    return {};
  }));
  EBB_TRY(made->recover(ranks));
  return made;
}

Result<> StateHome::make(const Entry& fresh, const formats::native::Uuid& parent) {
  EBB_TRY_ASSIGN(store_, make_store(*directory_, fresh, parent));
  path_ = fresh.path;
  return {};
}

Result<> StateHome::adopt() { return directory_->adopt(setup_.ranks); }

void StateHome::discard(const Entry& fresh) {
  snapshots_.reset();
  const Result<> holds_none = store_ ? store_->holds_none() : Result<>();
  cache_.reset();
  store_.reset();
  // The first failure is the news.
  static_cast<void>(directory_->discard(setup_.ranks, fresh.uuid, holds_none).has_value());
}

void StateHome::note(const std::string& text) {
  if (!text.empty()) notes_ += (notes_.empty() ? "" : "; ") + text;
}

void StateHome::set_origin(const std::string& what) {
  origin_ =
      compose("{} at step {}{}", what, steps_.now(), (notes_.empty() ? "" : " (" + notes_ + ")"));
}

void StateHome::watch_snapshots() {
  const auto meet = [this](std::string_view doing, const std::function<Result<>()>& work) {
    return together(setup_.ranks, doing, work);
  };
  snapshots_.emplace(*cache_, *store_, setup_.ranks, meet, setup_.config.trace);
}

Result<> StateHome::settle(libswap::Snapshots::Mode mode) {
  EBB_TRY(snapshots_->settle(mode));
  return adopt_if_due();
}

Result<> StateHome::adopt_if_due() {
  if (!adopt_due_ || !snapshots_->committed_step()) return {};
  EBB_TRY(adopt());  // an error leaves it due: the generation is committed
  adopt_due_ = false;
  return {};
}

libswap::Snapshots::MakeManifest StateHome::manifest() const {
  return [groups = setup_.config.model.groups, blobs_now = blobs_.all(), ahead = steps_.ahead(),
          step_now = steps_.now(), kernels = kernels_, &params = setup_.config.model.params,
          &plan = setup_.plan()]() mutable {
    auto manifest = manifest_template(params, groups, plan);
    manifest.fingerprint = kernels;
    manifest.blobs = std::move(blobs_now);
    for (std::size_t i = 0; i < ahead.size(); ++i)
      manifest.param_steps[params[i].name] = static_cast<std::int64_t>(step_now) + ahead[i];
    return manifest;
  };
}

Result<bool> StateHome::begin_snapshot(const std::function<Result<>()>& before_cut) {
  EBB_TRY_ASSIGN(const bool begun, snapshots_->begin(steps_.now(), manifest(), before_cut));
  EBB_TRY(adopt_if_due());
  return begun;
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

Result<PinnedCheckpoint> StateHome::pin() const {
  return PinnedCheckpoint::pin(store_, path_, committed_generation(), committed_step());
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
  if (snapshots_) {
    counted_.add(cache_->stats());
    counted_.snapshots_put_off += snapshots_->put_off();
  }
  snapshots_.reset();
  cache_.reset();
  store_.reset();
  notes_.clear();
}

// All of it is copied before anything of the engine changes.
Result<> StateHome::move_to(libswap::SwapDirectory& other) {
  Communicator& ranks = setup_.ranks;
  EBB_TRY_ASSIGN(const auto fresh, other.fresh(ranks));
  auto made = make_store(other, fresh, store_->superblock().store);
  Result<> copied = made ? Result<>() : made.error();
  if (made)
    copied =
        together(ranks, "copying its state", [&]() -> Result<> { return cache_->copy_to(**made); });
  if (!copied) {
    made = std::shared_ptr<libswap::Store>();
    // The first failure is the news; nothing was committed there.
    static_cast<void>(other.discard(ranks, fresh.uuid, {}).has_value());
    return copied;
  }
  cache_->move_to(**made);
  store_ = *std::move(made);
  counted_.snapshots_put_off += snapshots_->put_off();
  watch_snapshots();
  resumed_step_ = 0;
  path_ = fresh.path;
  directory_ = &other;
  adopt_due_ = true;
  return {};
}

void StateHome::add_to(EngineStats& stats) const {
  stats.add(counted_);
  stats.snapshots_put_off += counted_.snapshots_put_off;
  if (!snapshots_) return;
  stats.add(cache_->stats());
  stats.snapshots_put_off += snapshots_->put_off();
}

}  // namespace ebb::libmuon
