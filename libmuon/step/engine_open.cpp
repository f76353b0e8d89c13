// Where an engine's state comes from: the store, another store, a checkpoint, initial weights.
#include <algorithm>
#include <iterator>

#include "ebb/libmuon/comm/check_communicator.h"
#include "ebb/libmuon/step/check_start.h"
#include "ebb/libmuon/step/continuity.h"
#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/manifest_template.h"
#include "ebb/libmuon/step/settings.h"

namespace ebb::libmuon {

namespace {

std::string ranks_text(std::uint32_t world) { return compose("{} ranks", world); }

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

Result<std::unique_ptr<Engine>> Engine::open(const EngineConfig& config, Communicator& ranks,
                                             libswap::IoQueue& io,
                                             libswap::SwapDirectory& directory,
                                             const Start& start) {
  const auto make = [&]() -> Result<std::unique_ptr<Impl>> {
    const bool takes = config.accelerator != nullptr && ranks.takes(config.accelerator->device());
    EBB_TRY_ASSIGN(Prepared prepared,
                   prepare(config, ranks.rank(), takes ? Side::device : Side::host));
    if (prepared.plan.world() != ranks.world())
      return Error{Code::layout, compose("{} are for {} ranks, {} are here",
                                         config.partition.axes.empty()
                                             ? "the layouts"
                                             : "the axes " + text_of(config.partition.axes),
                                         prepared.plan.world(), ranks.world())};
    EBB_TRY(check(start, config.model.params.size(), directory.current().has_value(),
                  directory.path().string()));
    auto impl = std::make_unique<Impl>(config, ranks, io, directory, std::move(prepared));
    EBB_TRY(impl->make_rooms());
    EBB_TRY(impl->bind(start.weights));
    return impl;
  };
  EBB_TRY(check_communicator(ranks));
  auto made = make();
  EBB_TRY(libswap::agree_all(ranks, made ? Result<>() : made.error(), "planning its state"));
  auto settings = settings_of(config, (*made)->setup.plan().columns());
  std::ranges::move(settings_of(start), std::back_inserter(settings));
  const auto current = directory.current();
  settings.push_back(
      {"the store to resume", current ? formats::native::to_string(current->uuid) : "none"});
  EBB_TRY(libswap::same_everywhere(ranks, settings));
  std::unique_ptr<Impl> impl = std::move(*made);
  EBB_TRY(impl->run->start());
  if (Result<> attached = impl->attach(start); !attached) {
    ranks.abort();  // nobody may wait for this rank in a collective it never reaches
    return std::move(attached).error();
  }
  impl->home.add_to_origin(directory.passed_over());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Impl::Impl(const EngineConfig& config, Communicator& ranks, libswap::IoQueue& io,
                   libswap::SwapDirectory& directory, Prepared prepared)
    : setup(config, ranks, io, std::move(prepared)),
      steps(setup.config.model.params),
      home(io, ranks, directory, setup.prepared.store, setup.config.trace),
      weights(setup) {}

Result<> Engine::Impl::make_rooms() {
  EBB_TRY_ASSIGN(computing, Computing::make(setup));
  EBB_TRY_ASSIGN(gradients, Gradients::make(setup, *computing, steps));
  EBB_TRY_ASSIGN(run, StepRun::make(setup, *computing, *gradients, weights, steps));
  return {};
}

Result<> Engine::Impl::choose_products(std::string_view kept) {
  EBB_TRY(computing->choose(kept));
  run->choose(computing->choice());
  return {};
}

Result<> Engine::Impl::open_sweep() {
  const EngineConfig& config = setup.config;
  if (config.trace != nullptr)
    config.trace->name_tiles(setup.rank(), tile_names(config.model, setup.plan()));
  EBB_TRY(home.open_cache(computing->pool(), setup.prepared.homes, computing->kernels().device()));
  return run->open_sweep(home.cache());
}

Result<> Engine::Impl::bind(std::span<const libswap::Buffer> given) {
  for (std::uint32_t param = 0; param < given.size(); ++param)
    if (setup.plan().here(param)) EBB_TRY(weights.bind(param, given[param]));
  return {};
}

Result<> Engine::Impl::attach(const Start& start) {
  if (start.begin == Begin::given) return begin_anew(start);
  EBB_TRY_ASSIGN(const bool fits, home.fits());
  if (fits) {
    EBB_TRY_ASSIGN(const bool resumed, resume(*home.directory().current(), start.expected));
    if (resumed) return {};
  }
  return begin_anew(start);
}

Result<bool> Engine::Impl::resume(const libswap::SwapDirectory::Entry& current,
                                  const ExpectedStore& expected) {
  EBB_TRY_ASSIGN(const auto manifest, home.open(current, [&](const auto& stored) {
    return same_places(stored, setup.plan());
  }));
  if (!manifest) return false;
  EBB_TRY(check(expected, {current.uuid, manifest->generation, manifest->step}));
  EBB_TRY(choose_products(manifest->fingerprint));
  EBB_TRY(setup.ranks.together("resuming its store", [&] { return take_over(*manifest); }));
  weights.set_kept(steps.now());
  home.set_origin("resumed the store", steps.now());
  return true;
}

Result<> Engine::Impl::compare(const formats::native::Manifest& manifest) {
  EBB_TRY_ASSIGN(const Catalog trained, groups_of(manifest));
  EBB_TRY_ASSIGN(const std::string notes, compare_groups(setup.config.model, trained));
  home.note(notes);
  if (const auto passed_over = home.store()->passed_over()) home.note(*passed_over);
  if (const std::uint32_t slots = home.store()->superblock().slots; slots != setup.config.slots)
    home.note(compose("it was made with {} slots a tile and keeps them", slots));
  if (manifest.fingerprint != computing->fingerprint())
    home.note("it was written with other kernels: " + manifest.fingerprint);
  home.note(computing->note());
  return {};
}

Result<> Engine::Impl::take_over(const formats::native::Manifest& manifest) {
  EBB_TRY(compare(manifest));
  EBB_TRY(open_sweep());
  EBB_TRY(home.take_over(manifest));
  steps.set(manifest.step, manifest.param_steps);
  return {};
}

Result<> Engine::Impl::read(Beginning& from) {
  return from.work("reading what it begins from", [&]() -> Result<> {
    EBB_TRY_ASSIGN(const Beginning::Known known, from.read());
    if (from.checkpoint() == nullptr) return {};
    steps.set(known.step, known.taken);
    home.note(known.notes);
    home.note(home.blobs().take(from.checkpoint()->catalog()));
    return {};
  });
}

Result<> Engine::Impl::begin_anew(const Start& start) {
  libswap::SwapDirectory& directory = home.directory();
  const auto current = directory.current();
  const bool reads_store = current && start.begin != Begin::given;
  Beginning from(setup, start);
  if (reads_store) EBB_TRY(from.open_store(directory.folders_of(current->uuid)));
  EBB_TRY(read(from));
  EBB_TRY(agree_all(check_bound(from), "looking at the weights that it begins from"));
  EBB_TRY(choose_products(from.fingerprint()));
  home.note(computing->note());
  if (start.old_store == OldStore::dropped_first) EBB_TRY(directory.drop(setup.ranks));
  if (Result<> made = home.begin_anew([&] { return fill_and_commit(from); }); !made) {
    if (made.error().code != Code::no_space || reads_store || !directory.current()) return made;
    Error full = std::move(made).error();
    full.hint = "OldStore::dropped_first removes the old store before; or " + full.hint;
    return full;
  }
  if (reads_store)
    home.set_origin("transferred the store of " + ranks_text(current->world), steps.now());
  else if (start.checkpoint != nullptr)
    home.set_origin(compose("loaded a {} checkpoint of {}", start.checkpoint->catalog().format,
                            ranks_text(start.checkpoint->catalog().world)),
                    steps.now());
  else
    home.set_origin("created", steps.now());
  return {};
}

Result<> Engine::Impl::check_bound(const Beginning& from) const {
  for (std::uint32_t param = 0; param < setup.plan().params(); ++param)
    if (from.takes_bound(param) && weights.bound(param)) EBB_TRY(weights.finite(param, *computing));
  return {};
}

Result<> Engine::Impl::fill_and_commit(Beginning& from) {
  const auto fill = [&]() -> Result<> {
    EBB_TRY(agree_all(open_sweep(), "making room for its state"));
    EBB_TRY(from.work("filling its store", [&] { return from.fill(run->sweep(), steps.now()); }));
    EBB_TRY(take_bound(from));
    weights.set_kept(steps.now());
    EBB_TRY_ASSIGN(const bool begun, begin_snapshot());
    EBB_CHECK(begun);
    EBB_TRY(wait_for_snapshot());
    return {};
  };
  Result<> filled = fill();
  if (!filled) run->close_sweep();
  return filled;
}

// Of halves the low ones are 0 already.
Result<> Engine::Impl::take_bound(const Beginning& from) {
  const auto of = [&](std::uint32_t param) { return from.takes_bound(param); };
  bool any = false;
  for (std::uint32_t param = 0; param < setup.plan().params(); ++param) any = any || of(param);
  if (!any) return {};
  return ended_well(setup.bound_masters() ? run->keep_bound(of) : run->take_weights(of));
}

}  // namespace ebb::libmuon
