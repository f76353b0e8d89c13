// Where an engine's state comes from: the store, another store, a checkpoint, initial weights.
#include <algorithm>

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/formats/registry.h"
#include "ebb/libmuon/comm/together.h"
#include "ebb/libmuon/step/continuity.h"
#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/scattered_store.h"
#include "ebb/libmuon/step/stored_state.h"

namespace ebb::libmuon {

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

Error drops_state(const StoredState& stored, std::string_view format) {
  std::string message =
      compose("the {} checkpoint holds state of parameters that the model has not: {}", format,
              stored.lost);
  if (!stored.fresh.empty())
    message += compose("; it has not these of the model: {}", stored.fresh);
  return {Code::layout, std::move(message),
          "a name that changed: ckpt-convert --rename; parameters that are gone: "
          "EngineConfig::dropped = DroppedState::allowed goes on without their state. Until then "
          "nothing changes"};
}

std::string ranks_text(std::uint32_t world) { return compose("{} ranks", world); }

}  // namespace

Result<> Engine::Impl::attach(const InitialWeights& initial, const Checkpoint* checkpoint) {
  const auto current = directory->current();
  EBB_TRY_ASSIGN(const bool mine_here, has_own_folder(current));
  const bool mine_fits = mine_here && current->world == ranks.world() &&
                         current->layout_digest == parts.plan.digest() &&
                         current->tile_bytes == config.tile_bytes;
  EBB_TRY_ASSIGN(const std::int64_t all_fit, ranks.agree(mine_fits ? 1 : 0));
  if (all_fit == 1) {
    EBB_TRY_ASSIGN(const bool resumed, resume(*current));
    if (resumed) return {};
  }
  std::unique_ptr<ScatteredStore> scattered;
  std::unique_ptr<Checkpoint> previous;
  if (current) {
    const auto folders = directory->folders_of(current->uuid);
    EBB_TRY_ASSIGN(scattered, ScatteredStore::open(ranks, io.backend(), folders));
  }
  Beginning from{initial, checkpoint, scattered.get(), {}};
  const auto begin = [&]() -> Result<> {
    if (scattered) {
      EBB_TRY_ASSIGN(previous, formats::describe(scattered->tree()));
      from.checkpoint = previous.get();
    }
    return from.checkpoint != nullptr ? begin_from(from) : Result<>();
  };
  EBB_TRY(work(scattered.get(), "reading what it begins from", begin));
  EBB_TRY(choose_products(from.checkpoint == nullptr ? "" : from.checkpoint->catalog().producer));
  note(computing->note());
  EBB_TRY_ASSIGN(const auto fresh, directory->fresh(ranks));
  const auto parent = current ? current->uuid : formats::native::Uuid{};
  if (Result<> made = make_and_fill(fresh, parent, from); !made) {
    snapshots.reset();
    const Result<> holds_none = store ? store->holds_none() : Result<>();
    sweep.reset();
    store.reset();
    // The first failure is the news.
    static_cast<void>(directory->discard(ranks, fresh.uuid, holds_none).has_value());
    return made;
  }
  EBB_TRY(directory->adopt(ranks));
  if (current)
    origin = "transferred the store of " + ranks_text(current->world);
  else if (checkpoint != nullptr)
    origin = compose("loaded a {} checkpoint of {}", checkpoint->catalog().format,
                     ranks_text(checkpoint->catalog().world));
  else
    origin = "created";
  origin += compose(" at step {}{}", steps.now(), (notes.empty() ? "" : " (" + notes + ")"));
  return {};
}

// Resuming in place needs this rank's own folder in its own directory.
Result<bool> Engine::Impl::has_own_folder(
    const std::optional<libswap::SwapDirectory::Entry>& current) const {
  if (!current) return false;
  return io.backend().exists(current->path /
                             formats::native::rank_directory(parts.plan.rank(), current->world));
}

Result<> Engine::Impl::work(ScatteredStore* from, std::string_view doing,
                            const std::function<Result<>()>& mine) {
  return from != nullptr ? from->run(ranks, doing, mine) : together(ranks, doing, mine);
}

Result<> Engine::Impl::make_and_fill(const libswap::SwapDirectory::Entry& fresh,
                                     const formats::native::Uuid& parent, const Beginning& from) {
  EBB_TRY_ASSIGN(store, make_store(*directory, fresh, parent));
  store_path = fresh.path;
  EBB_TRY(agree_all(open_sweep(), "making room for its state"));
  EBB_TRY(work(from.scattered, "filling its store", [&] {
    return from.checkpoint != nullptr ? fill_from_checkpoint(from) : fill_from(from.initial);
  }));
  highs_kept = steps.now();
  EBB_TRY_ASSIGN(const bool begun, begin_snapshot());
  EBB_CHECK(begun);
  EBB_TRY(wait_for_snapshot());
  return {};
}

Result<> Engine::Impl::open_sweep() {
  if (config.trace != nullptr)
    config.trace->name_tiles(parts.plan.rank(), tile_names(config.model, parts.plan));
  Sweep::Ports ports{
      .gradient = [this](std::size_t chunk,
                         const Transit& part) { return own_gradient(part, chunk); },
      .weight = [this](std::size_t chunk, const Transit& part) { return own_weight(part, chunk); },
      .high = [this](std::size_t chunk, const Transit& part) { return own_high(part, chunk); },
      .steps_taken = [this](std::uint32_t param) { return steps.taken(param); },
  };
  if (updates != nullptr) {
    ports.decay = [this](std::size_t chunk, const Transit& part) {
      return updates->decay(chunk, part);
    };
    ports.update = [this](std::size_t chunk, const Transit& part) {
      return updates->part(Updates::Kind::update, chunk, part);
    };
    ports.result = [this](std::size_t chunk, const Transit& part) {
      return updates->part(Updates::Kind::result, chunk, part);
    };
    ports.moments = [this](std::size_t chunk, const Transit& moments) {
      return updates->moments(chunk, moments);
    };
  }
  const Sweep::Parts with{config.model,         parts.plan,        parts.chunks, computing->pool(),
                          computing->kernels(), computing->bf16(), config.trace};
  EBB_TRY_ASSIGN(sweep, Sweep::open(with, io, *store, parts.homes, parts.memory.workspace, ports));
  watch_snapshots();
  return {};
}

Result<bool> Engine::Impl::resume(const libswap::SwapDirectory::Entry& current) {
  store_path = current.path;
  EBB_TRY(together(ranks, "opening its store", [&]() -> Result<> {
    EBB_TRY_ASSIGN(store, libswap::Store::open(io, current.path, parts.plan.rank(), ranks.world()));
    return {};
  }));
  EBB_TRY_ASSIGN(const auto manifest, store->recover(ranks));
  if (!manifest)
    return Error{Code::incomplete, current.path.string() + ": no generation was committed"};
  EBB_TRY_ASSIGN(const std::int64_t all_same,
                 ranks.agree(same_places(*manifest, parts.plan) ? 1 : 0));
  if (all_same == 0) {
    store.reset();
    return false;
  }
  EBB_TRY(choose_products(manifest->fingerprint));
  EBB_TRY(together(ranks, "resuming its store", [&] { return take_over(*manifest); }));
  origin = compose("resumed the store at step {}{}", steps.now(),
                   (notes.empty() ? "" : " (" + notes + ")"));
  return true;
}

Result<> Engine::Impl::take_over(const formats::native::Manifest& manifest) {
  EBB_TRY_ASSIGN(const Catalog trained, groups_of(manifest));
  EBB_TRY_ASSIGN(notes, compare_groups(config.model, trained));
  if (const auto passed_over = store->passed_over()) note(*passed_over);
  if (const std::uint32_t slots = store->superblock().slots; slots != config.slots)
    note(compose("it was made with {} slots a tile and keeps them", slots));
  if (manifest.fingerprint != computing->fingerprint())
    note("it was written with other kernels: " + manifest.fingerprint);
  note(computing->note());
  EBB_TRY(open_sweep());
  EBB_TRY(sweep->cache().load_residents());
  resumed_step = manifest.step;
  steps.set(manifest.step, manifest.param_steps);
  highs_kept = steps.now();
  blobs.take(manifest.blobs);
  return {};
}

Result<std::shared_ptr<libswap::Store>> Engine::Impl::make_store(
    const libswap::SwapDirectory& in, const libswap::SwapDirectory::Entry& fresh,
    const formats::native::Uuid& parent) {
  libswap::Store::Config wanted = parts.store;
  EBB_TRY(in.check_space(ranks, libswap::Store::disk_bytes(wanted)));
  wanted.directory = fresh.path;
  wanted.uuid = fresh.uuid;
  wanted.parent = parent;
  std::shared_ptr<libswap::Store> made;
  EBB_TRY(together(ranks, "making its store", [&]() -> Result<> {
    EBB_TRY_ASSIGN(made, libswap::Store::create(io, wanted));
    return {};
  }));
  EBB_TRY(made->recover(ranks));
  return made;
}

// All that can be refused without a store is refused before there is one.
Result<> Engine::Impl::begin_from(Beginning& from) {
  const Catalog& catalog = from.checkpoint->catalog();
  EBB_TRY_ASSIGN(StoredState stored, find_stored(catalog, config.model, parts.plan));
  if (config.dropped == DroppedState::refused && !stored.lost.empty())
    return drops_state(stored, catalog.format);
  from.held = std::move(stored.held);
  if (!from.initial && std::ranges::find(from.held, Held::nothing) != from.held.end())
    return Error{Code::usage, "parameters have no initial weights: " + stored.differences,
                 "pass initial weights to Engine::open"};
  EBB_TRY_ASSIGN(notes, compare_groups(config.model, catalog, from.held));
  if (!stored.differences.empty()) note(stored.differences);
  EBB_TRY_ASSIGN(auto taken, formats::counted_steps(*from.checkpoint));
  // Where nobody counts for all, the step is that of the parameter that has taken the most.
  std::int64_t most = 0;
  for (const auto& [name, counted] : taken) most = std::max(most, counted);
  const auto step =
      static_cast<std::uint64_t>(std::max<std::int64_t>(0, catalog.step.value_or(most)));
  for (std::size_t i = 0; i < from.held.size(); ++i)
    if (from.held[i] != Held::all) taken[config.model.params[i].name] = 0;
  steps.set(step, taken);
  if (const std::string left = blobs.take(catalog); !left.empty()) note(left);
  return {};
}

void Engine::Impl::note(const std::string& text) {
  if (!text.empty()) notes += (notes.empty() ? "" : "; ") + text;
}

Result<> Engine::Impl::fill_from(const InitialWeights& initial) {
  return sweep->create(
      steps.now(), [&](std::uint64_t tile, std::span<std::byte> bytes) -> Result<> {
        for (const auto& segment : parts.plan.segments(parts.plan.tiles()[tile])) {
          if (!parts.plan.columns().of_masters(segment.state)) continue;
          const std::string& name = config.model.params[segment.param].name;
          EBB_TRY(fill_masters(name, segment, bytes, masters_from(initial, segment.param, name)));
        }
        return {};
      });
}

Result<> Engine::Impl::fill_from_checkpoint(const Beginning& from) {
  StateSource source(*from.checkpoint, config.model, parts.plan, from.held, from.initial);
  return sweep->create(steps.now(), [&](std::uint64_t tile, std::span<std::byte> bytes) {
    return source.fill(parts.plan.segments(parts.plan.tiles()[tile]), bytes);
  });
}

}  // namespace ebb::libmuon
