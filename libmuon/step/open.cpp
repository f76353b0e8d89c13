// Where an engine's state comes from: the store, another store, a checkpoint, initial weights.
#include <algorithm>
#include <array>
#include <map>

#include "ebb/formats/conversion/content_view.h"
#include "ebb/formats/registry.h"
#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libswap/read/load.h"
#include "ebb/libswap/tree/file_tree.h"

namespace ebb::libmuon {

using formats::Code;
using formats::DType;
using formats::Error;
using formats::TensorEntry;
using libswap::Pager;

namespace {

std::span<float> segment_floats(std::span<std::byte> tile,
                                const formats::native::Segment& segment) {
  auto* data = reinterpret_cast<float*>(tile.data() + segment.offset);
  return {data, segment.count};
}

// Formats that keep no separate master weights hold the same numbers as parameters.
const TensorEntry* find_state(const formats::Catalog& catalog, std::string_view param,
                              std::string_view state) {
  const auto find = [&](std::string_view wanted) -> const TensorEntry* {
    for (const TensorEntry& tensor : catalog.tensors)
      if (tensor.name == param && tensor.state == wanted) return &tensor;
    return nullptr;
  };
  const TensorEntry* tensor = find(state);
  return tensor == nullptr && state == "master" ? find("param") : tensor;
}

Result<> check_state(const TensorEntry* tensor, const ParamSpec& param, std::string_view state,
                     const formats::Catalog& catalog) {
  const std::string what = std::string(state) + " of " + param.name;
  if (tensor == nullptr)
    return Error{Code::incomplete, "the " + catalog.format + " checkpoint has no " + what,
                 "ckpt-inspect --tensors lists what it has"};
  if (tensor->shape != param.shape)
    return Error{Code::layout,
                 what + " has shape " + formats::to_string(tensor->shape) + " in the checkpoint, " +
                     formats::to_string(param.shape) + " in the model",
                 {}};
  if (tensor->dtype != DType::f32 && tensor->dtype != DType::bf16)
    return Error{Code::unsupported,
                 what + " is stored as " + std::string(name_of(tensor->dtype)) +
                     "; F32 and BF16 can be resumed",
                 {}};
  return {};
}

// Everything that is kept as bf16 reads as fp32.
formats::ContentView widened(const formats::Checkpoint& checkpoint) {
  formats::Catalog content;
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
  StateSource(const formats::Checkpoint& checkpoint, const ModelSpec& model)
      : checkpoint_(checkpoint), model_(model) {}

  Result<> fill(std::span<const formats::native::Segment> segments, std::span<std::byte> tile) {
    std::vector<libswap::Wanted> wanted;
    for (const auto& segment : segments) {
      EBB_TRY_ASSIGN(const std::uint32_t tensor, tensor_of(segment));
      std::span<std::byte> into = std::as_writable_bytes(segment_floats(tile, segment));
      const formats::Shape& shape = checkpoint_.catalog().tensors[tensor].shape;
      for (formats::Box& box : formats::boxes_of(shape, {segment.first, segment.count})) {
        const std::uint64_t bytes = formats::volume(box.extent) * sizeof(float);
        wanted.push_back({tensor, std::move(box), into.first(bytes)});
        into = into.subspan(bytes);
      }
    }
    EBB_TRY(loader_.load(wanted));
    return {};
  }

 private:
  Result<std::uint32_t> tensor_of(const formats::native::Segment& segment) {
    const std::pair key(segment.param, segment.state);
    if (const auto known = tensors_.find(key); known != tensors_.end()) return known->second;
    const formats::Catalog& catalog = checkpoint_.catalog();
    const ParamSpec& param = model_.params[segment.param];
    const std::string& state = names_[segment.state];
    const TensorEntry* tensor = find_state(catalog, param.name, state);
    EBB_TRY(check_state(tensor, param, state, catalog));
    const auto number = static_cast<std::uint32_t>(tensor - catalog.tensors.data());
    tensors_.emplace(key, number);
    return number;
  }

  const formats::Checkpoint& checkpoint_;
  const ModelSpec& model_;
  const std::vector<std::string> names_ = state_names();
  const formats::ContentView content_ = widened(checkpoint_);
  libswap::Loader loader_{content_};
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> tensors_;
};

// A store on a disk that is too small is refused before a byte is written, for all ranks together.
Result<> check_disk(Communicator& ranks, libswap::IoBackend& backend,
                    const std::filesystem::path& directory, std::uint64_t mine) {
  std::array<std::int64_t, 1> all{static_cast<std::int64_t>(mine)};
  EBB_TRY(ranks.sum(all));
  EBB_TRY_ASSIGN(const std::uint64_t free, backend.free_bytes(directory));
  const auto wanted = static_cast<std::uint64_t>(all[0]);
  if (wanted <= free) return {};
  return Error{Code::no_space,
               directory.string() + ": the store needs " + std::to_string(wanted) + " bytes, " +
                   std::to_string(free) + " are free",
               "name another directory, or use fewer slots"};
}

}  // namespace

Result<> Engine::Impl::attach(const InitialWeights& initial,
                              const formats::Checkpoint* checkpoint) {
  const auto& current = directory.current();
  const bool same = current && current->world == ranks.world() &&
                    current->layout_digest == parts.plan.digest() &&
                    current->tile_bytes == config.tile_bytes;
  if (same) return agree_all(resume(*current), "resuming its store");
  std::unique_ptr<formats::Checkpoint> previous;
  formats::native::Uuid parent{};
  if (current) {
    parent = current->uuid;
    EBB_TRY_ASSIGN(auto tree, libswap::open_tree(current->path));
    EBB_TRY_ASSIGN(previous, formats::describe(std::move(tree)));
    checkpoint = previous.get();
  }
  EBB_TRY(agree_all(make_store(parent), "making its store"));
  const Result<> filled = checkpoint != nullptr ? fill_from(*checkpoint) : fill_from(initial);
  EBB_TRY(agree_all(filled, "filling its store"));
  EBB_TRY_ASSIGN(const bool begun, begin_snapshot());
  EBB_CHECK(begun);
  EBB_TRY(settle_snapshot(Patience::wait));
  EBB_TRY(agree_all(directory.adopt(), "replacing the previous store"));
  if (current)
    origin = "transferred the store of " + std::to_string(current->world) + " ranks";
  else if (checkpoint != nullptr)
    origin = "loaded a " + checkpoint->catalog().format + " checkpoint of " +
             std::to_string(checkpoint->catalog().world) + " ranks";
  else
    origin = "created";
  origin += " at step " + std::to_string(step);
  return {};
}

Result<> Engine::Impl::resume(const libswap::SwapDirectory::Entry& current) {
  store_path = current.path;
  Result<std::unique_ptr<libswap::Store>> opened =
      libswap::Store::open(io, current.path, parts.plan.rank(), ranks.world());
  EBB_TRY_ASSIGN(const std::int64_t all_open, ranks.agree(opened ? 1 : 0));
  if (!opened) return std::move(opened).error();
  if (all_open == 0) return Error{Code::peer, "another rank could not open its store", {}};
  store = std::move(*opened);
  EBB_TRY_ASSIGN(const auto manifest, store->recover(ranks));
  if (!manifest)
    return Error{Code::incomplete, current.path.string() + ": no generation was committed", {}};
  EBB_TRY_ASSIGN(pager, Pager::open(io, *store, parts.split, config.trace));
  EBB_TRY(pager->load_residents());
  step = manifest->step;
  blobs = manifest->blobs;
  origin = "resumed the store at step " + std::to_string(step);
  if (const auto passed_over = store->passed_over()) origin += "; " + *passed_over;
  if (manifest->fingerprint != kernel_fingerprint())
    origin += " (it was written with other kernels: " + manifest->fingerprint + ")";
  return {};
}

Result<> Engine::Impl::make_store(const formats::native::Uuid& parent) {
  EBB_TRY(
      check_disk(ranks, io.backend(), directory.path(), libswap::Store::disk_bytes(parts.store)));
  EBB_TRY_ASSIGN(const auto fresh, directory.fresh());
  libswap::Store::Config wanted = parts.store;
  wanted.directory = fresh.path;
  wanted.uuid = fresh.uuid;
  wanted.parent = parent;
  store_path = fresh.path;
  Result<std::unique_ptr<libswap::Store>> created = libswap::Store::create(io, wanted);
  EBB_TRY_ASSIGN(const std::int64_t all_made, ranks.agree(created ? 1 : 0));
  if (!created) return std::move(created).error();
  if (all_made == 0) return Error{Code::peer, "another rank could not make its store", {}};
  store = std::move(*created);
  EBB_TRY(store->recover(ranks));
  EBB_TRY_ASSIGN(pager, Pager::open(io, *store, parts.split, config.trace));
  return {};
}

Result<> Engine::Impl::fill_from(const InitialWeights& initial) {
  step = 0;
  return pager->sweep(
      Pager::Mode::create, step, [&](std::uint64_t tile, std::span<std::byte> bytes) -> Result<> {
        for (const auto& segment : parts.plan.segments(parts.plan.visits()[tile]))
          if (segment.state == static_cast<std::uint32_t>(StateId::master))
            initial(segment.param, {segment.first, segment.count}, segment_floats(bytes, segment));
        return {};
      });
}

Result<> Engine::Impl::fill_from(const formats::Checkpoint& checkpoint) {
  const formats::Catalog& catalog = checkpoint.catalog();
  step = static_cast<std::uint64_t>(std::max<std::int64_t>(0, catalog.step.value_or(0)));
  for (const formats::ValueEntry& value : catalog.values)
    if (value.value.kind == formats::Value::Kind::bytes)
      blobs.push_back({value.key, value.value.raw});
  StateSource source(checkpoint, config.model);
  return pager->sweep(Pager::Mode::create, step,
                      [&](std::uint64_t tile, std::span<std::byte> bytes) {
                        return source.fill(parts.plan.segments(parts.plan.visits()[tile]), bytes);
                      });
}

}  // namespace ebb::libmuon
