// Where an engine's state comes from: the store, another store, a checkpoint, initial weights.
#include <algorithm>
#include <map>

#include "ebb/formats/conversion/content_view.h"
#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/formats/registry.h"
#include "ebb/libmuon/comm/together.h"
#include "ebb/libmuon/step/continuity.h"
#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/scattered_store.h"
#include "ebb/libswap/read/load.h"

namespace ebb::libmuon {

namespace {

std::span<float> segment_floats(std::span<std::byte> tile,
                                const formats::native::Segment& segment) {
  auto* data = reinterpret_cast<float*>(tile.data() + segment.offset);
  return {data, segment.count};
}

// A catalog's tensors by parameter and state.
class TensorIndex {
 public:
  explicit TensorIndex(const Catalog& catalog) {
    for (const TensorEntry& tensor : catalog.tensors)
      tensors_.emplace(std::pair<std::string_view, std::string_view>(tensor.name, tensor.state),
                       &tensor);
  }
  // Formats that keep no separate master weights hold the same numbers as parameters.
  const TensorEntry* find(std::string_view param, std::string_view state) const {
    const auto found = tensors_.find({param, state});
    if (found != tensors_.end()) return found->second;
    return state == "master" ? find(param, "param") : nullptr;
  }

 private:
  std::map<std::pair<std::string_view, std::string_view>, const TensorEntry*> tensors_;
};

Result<> check_state(const TensorEntry* tensor, const ParamSpec& param, std::string_view state,
                     const Catalog& catalog) {
  const std::string what = compose("{} of {}", state, param.name);
  if (tensor == nullptr)
    return Error{Code::incomplete, compose("the {} checkpoint has no {}", catalog.format, what),
                 "ckpt-inspect --tensors lists what it has"};
  if (tensor->shape != param.shape)
    return Error{Code::layout,
                 compose("{} has shape {} in the checkpoint, {} in the model", what,
                         formats::to_string(tensor->shape), formats::to_string(param.shape))};
  if (tensor->dtype != DType::f32 && tensor->dtype != DType::bf16)
    return Error{Code::unsupported, compose("{} is stored as {}; F32 and BF16 can be resumed", what,
                                            name_of(tensor->dtype))};
  return {};
}

std::vector<std::string> states_of(const ModelSpec& model, std::uint32_t param) {
  if (is_muon(model, param)) return {"master", "momentum_buffer"};
  return {"master", "exp_avg", "exp_avg_sq"};
}

Result<> check_states(const Catalog& catalog, const ModelSpec& model) {
  const TensorIndex tensors(catalog);
  for (std::uint32_t param = 0; param < model.params.size(); ++param)
    for (const std::string& state : states_of(model, param))
      EBB_TRY(check_state(tensors.find(model.params[param].name, state), model.params[param], state,
                          catalog));
  return {};
}

// Everything that is kept as bf16 reads as fp32.
formats::ContentView widened(const Checkpoint& checkpoint) {
  Catalog content;
  std::vector<formats::MadeOf> made_of;
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) {
    TensorEntry& wide = content.tensors.emplace_back(tensor);
    if (tensor.dtype == DType::bf16) wide.dtype = DType::f32;
    made_of.push_back({static_cast<std::uint32_t>(made_of.size())});
  }
  return {checkpoint, std::move(content), std::move(made_of)};
}

// A checkpoint's tensors as this engine's states.
class StateSource {
 public:
  StateSource(const Checkpoint& checkpoint, const ModelSpec& model)
      : checkpoint_(checkpoint), model_(model) {}

  Result<> fill(std::span<const formats::native::Segment> segments, std::span<std::byte> tile) {
    std::vector<libswap::Wanted> wanted;
    for (const auto& segment : segments) {
      const std::uint32_t tensor = tensor_of(segment);
      std::span<std::byte> into = std::as_writable_bytes(segment_floats(tile, segment));
      const Shape& shape = checkpoint_.catalog().tensors[tensor].shape;
      for (Box& box : formats::boxes_of(shape, {segment.first, segment.count})) {
        const std::uint64_t bytes = formats::volume(box.extent) * sizeof(float);
        wanted.push_back({tensor, std::move(box), into.first(bytes)});
        into = into.subspan(bytes);
      }
    }
    EBB_TRY(loader_.load(wanted));
    return {};
  }

 private:
  // REQUIRES: check_states() found it.
  std::uint32_t tensor_of(const formats::native::Segment& segment) const {
    const TensorEntry* tensor =
        index_.find(model_.params[segment.param].name, names_[segment.state]);
    EBB_CHECK(tensor != nullptr);
    return static_cast<std::uint32_t>(tensor - checkpoint_.catalog().tensors.data());
  }

  const Checkpoint& checkpoint_;
  const ModelSpec& model_;
  const std::vector<std::string> names_ = state_names();
  const formats::ContentView content_ = widened(checkpoint_);
  const TensorIndex index_{checkpoint_.catalog()};
  libswap::Loader loader_{content_};
};

bool same_places(const formats::native::Manifest& manifest, const StatePlan& plan) {
  if (manifest.states != state_names() || manifest.tiles.size() != plan.tiles().size())
    return false;
  for (std::size_t i = 0; i < manifest.tiles.size(); ++i)
    if (manifest.tiles[i].segments != plan.segments(plan.tiles()[i])) return false;
  return true;
}

std::string ranks_text(std::uint32_t world) { return compose("{} ranks", world); }

}  // namespace

Result<> Engine::Impl::attach(const InitialWeights& initial, const Checkpoint* checkpoint) {
  const auto current = directory.current();
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
    const auto folders = directory.folders_of(current->uuid);
    EBB_TRY_ASSIGN(scattered, ScatteredStore::open(ranks, io.backend(), folders));
  }
  const auto begin = [&]() -> Result<> {
    if (scattered) {
      EBB_TRY_ASSIGN(previous, formats::describe(scattered->tree()));
      checkpoint = previous.get();
    }
    return checkpoint != nullptr ? begin_from(*checkpoint) : Result<>();
  };
  EBB_TRY(work(scattered.get(), "reading what it begins from", begin));
  EBB_TRY_ASSIGN(const auto fresh, directory.fresh(ranks));
  const auto parent = current ? current->uuid : formats::native::Uuid{};
  const Beginning from{initial, checkpoint, scattered.get()};
  if (Result<> made = make_and_fill(fresh, parent, from); !made) {
    pending.reset();
    const Result<> holds_none = store ? store->holds_none() : Result<>();
    sweep.reset();
    store.reset();
    // The first failure is the news.
    static_cast<void>(directory.discard(ranks, fresh.uuid, holds_none).has_value());
    return made;
  }
  EBB_TRY(directory.adopt(ranks));
  if (current)
    origin = "transferred the store of " + ranks_text(current->world);
  else if (checkpoint != nullptr)
    origin = compose("loaded a {} checkpoint of {}", checkpoint->catalog().format,
                     ranks_text(checkpoint->catalog().world));
  else
    origin = "created";
  origin += compose(" at step {}{}", step, (notes.empty() ? "" : " (" + notes + ")"));
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
  EBB_TRY(make_store(fresh, parent));
  EBB_TRY(work(from.scattered, "filling its store", [&] {
    return from.checkpoint != nullptr ? fill_from(*from.checkpoint) : fill_from(from.initial);
  }));
  EBB_TRY_ASSIGN(const bool begun, begin_snapshot());
  EBB_CHECK(begun);
  EBB_TRY(wait_for_snapshot());
  return {};
}

Result<> Engine::Impl::open_sweep() {
  const Sweep::Ports ports{
      .gradient = [this](const Transit& transit) { return own_gradient(transit); },
      .weight = [this](const Transit& transit) { return own_weight(transit); },
      .steps_taken = [this](std::uint32_t param) { return steps_taken(param); },
  };
  EBB_TRY_ASSIGN(
      sweep, Sweep::open({config.model, parts.plan, parts.chunks, io, *store, pool, config.trace},
                         parts.split, ports));
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
  EBB_TRY(together(ranks, "resuming its store", [&] { return take_over(*manifest); }));
  origin =
      compose("resumed the store at step {}{}", step, (notes.empty() ? "" : " (" + notes + ")"));
  return true;
}

Result<> Engine::Impl::take_over(const formats::native::Manifest& manifest) {
  EBB_TRY_ASSIGN(const Catalog trained, groups_of(manifest));
  EBB_TRY_ASSIGN(notes, compare_groups(config.model, trained));
  if (const auto passed_over = store->passed_over()) note(*passed_over);
  if (const std::uint32_t slots = store->superblock().slots; slots != config.slots)
    note(compose("it was made with {} slots a tile and keeps them", slots));
  if (manifest.fingerprint != kernel_fingerprint())
    note("it was written with other kernels: " + manifest.fingerprint);
  EBB_TRY(open_sweep());
  EBB_TRY(sweep->cache().load_residents());
  step = committed_step = manifest.step;
  set_steps(manifest.param_steps);
  blobs = manifest.blobs;
  return {};
}

// Parameters that are not counted have taken `step` steps.
void Engine::Impl::set_steps(const std::map<std::string, std::int64_t>& taken) {
  std::vector<std::int64_t> ahead;
  for (const ParamSpec& param : config.model.params) {
    const auto found = taken.find(param.name);
    ahead.push_back(found == taken.end() ? 0 : found->second - static_cast<std::int64_t>(step));
  }
  const bool all_alike = std::ranges::all_of(ahead, [](std::int64_t steps) { return steps == 0; });
  steps_ahead = all_alike ? std::vector<std::int64_t>() : std::move(ahead);
}

Result<> Engine::Impl::make_store(const libswap::SwapDirectory::Entry& fresh,
                                  const formats::native::Uuid& parent) {
  libswap::Store::Config wanted = parts.store;
  if (!steps_ahead.empty())
    for (const ParamSpec& param : config.model.params)
      wanted.manifest_bytes += param.name.size() + 32;
  EBB_TRY(directory.check_space(ranks, libswap::Store::disk_bytes(wanted)));
  wanted.directory = fresh.path;
  wanted.uuid = fresh.uuid;
  wanted.parent = parent;
  store_path = fresh.path;
  EBB_TRY(together(ranks, "making its store", [&]() -> Result<> {
    EBB_TRY_ASSIGN(store, libswap::Store::create(io, wanted));
    return {};
  }));
  EBB_TRY(store->recover(ranks));
  return agree_all(open_sweep(), "making room for its state");
}

// All that can be refused without a store is refused before there is one.
Result<> Engine::Impl::begin_from(const Checkpoint& checkpoint) {
  const Catalog& catalog = checkpoint.catalog();
  EBB_TRY(check_states(catalog, config.model));
  EBB_TRY_ASSIGN(notes, compare_groups(config.model, catalog));
  EBB_TRY_ASSIGN(const auto taken, formats::counted_steps(checkpoint));
  // Where nobody counts for all, the step is that of the parameter that has taken the most.
  std::int64_t most = 0;
  for (const auto& [name, steps] : taken) most = std::max(most, steps);
  step = static_cast<std::uint64_t>(std::max<std::int64_t>(0, catalog.step.value_or(most)));
  set_steps(taken);
  take_blobs(catalog);
  return {};
}

// What a store cannot keep beside its state is left behind, and said.
void Engine::Impl::take_blobs(const Catalog& catalog) {
  std::uint64_t total = 0;
  std::string left;
  for (const ValueEntry& value : catalog.values) {
    if (value.value.kind != Value::Kind::bytes) continue;
    const std::uint64_t bytes = blob_bytes(value.key.size(), value.value.raw.size());
    if (total + bytes <= kMostBlobBytes) {
      total += bytes;
      blobs.push_back({value.key, value.value.raw});
    } else {
      left += compose("{}{} of {} bytes", left.empty() ? "" : ", ", printable(value.key),
                      value.value.raw.size());
    }
  }
  if (!left.empty())
    note(compose("left behind, beyond the {} bytes of values that a store keeps: {}",
                 kMostBlobBytes, left));
}

void Engine::Impl::note(const std::string& text) { notes += (notes.empty() ? "" : "; ") + text; }

Result<> Engine::Impl::fill_from(const InitialWeights& initial) {
  return sweep->create(step, [&](std::uint64_t tile, std::span<std::byte> bytes) -> Result<> {
    for (const auto& segment : parts.plan.segments(parts.plan.tiles()[tile]))
      if (segment.state == static_cast<std::uint32_t>(StateId::master))
        initial(segment.param, {segment.first, segment.count}, segment_floats(bytes, segment));
    return {};
  });
}

Result<> Engine::Impl::fill_from(const Checkpoint& checkpoint) {
  StateSource source(checkpoint, config.model);
  return sweep->create(step, [&](std::uint64_t tile, std::span<std::byte> bytes) {
    return source.fill(parts.plan.segments(parts.plan.tiles()[tile]), bytes);
  });
}

}  // namespace ebb::libmuon
