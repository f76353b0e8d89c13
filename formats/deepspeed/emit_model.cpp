#include <map>
#include <set>
#include <string>

#include "ebb/formats/core/units.h"
#include "ebb/formats/deepspeed/config.h"
#include "ebb/formats/deepspeed/emit_files.h"

namespace ebb::formats::deepspeed {
namespace {

// A tensor inside a storage of the file being written.
struct Placed {
  std::uint32_t storage = 0;
  std::uint64_t first = 0;
  Shape shape;
};

class ModelFile : EngineFile {
 public:
  using EngineFile::EngineFile;

  OutputFile write(std::string name) {
    if (what_.stage == 3)
      place_partitioned();
    else
      place_whole();
    for (const Whole& buffer : what_.buffers) place(buffer.name, whole_tensor(buffer.tensor));
    for (const auto& [alias, owner] : what_.tied)
      if (placed_.contains(owner)) place(alias, placed_.at(owner));
    dict([&] {
      tensors();
      shapes();
      counters();
      for (const auto& [key, value] : what_.client) entry(key, *value);
    });
    return finish(std::move(name), rank_);
  }

 private:
  void place(const std::string& name, const Placed& where) {
    if (placed_.try_emplace(name, where).second) order_.push_back(name);
  }
  Placed whole_tensor(std::uint32_t tensor) {
    const TensorEntry& entry = content_.tensors[tensor];
    return {add_storage(entry.dtype, {TensorData{tensor, whole(entry.shape)}}), 0, entry.shape};
  }

  // Stages 1 and 2: a group's weights are views into one storage, padding included.
  void place_whole() {
    for (const OutFlat& flat : flats_) {
      DType dtype = what_.model_dtype;
      bool same = true;
      for (const Trained* param : flat.params)
        same = same && dtype_of(*param) == dtype_of(*flat.params.front());
      if (same) dtype = dtype_of(*flat.params.front());
      std::vector<StoragePart> parts;
      std::vector<std::uint64_t> firsts;
      std::uint64_t end = 0;
      for (std::size_t p = 0; p < flat.params.size(); ++p) {
        const Trained& param = *flat.params[p];
        if (!same) {
          place(param.name, {add_storage(dtype_of(param), {weights(param)}), 0, param.shape});
          continue;
        }
        firsts.push_back(end);
        parts.emplace_back(weights(param));
        end += volume(param.shape) + flat.gaps[p];
        if (flat.gaps[p] > 0) parts.emplace_back(ZeroElems{flat.gaps[p]});
      }
      if (!same) continue;
      const std::uint64_t full = flat.full_elems(Rank{0}) * what_.world;
      if (full > end) parts.emplace_back(ZeroElems{full - end});
      const std::uint32_t storage = add_storage(dtype, std::move(parts));
      for (std::size_t p = 0; p < firsts.size(); ++p)
        place(flat.params[p]->name, {storage, firsts[p], flat.params[p]->shape});
    }
    for (const Whole& frozen : what_.frozen) place(frozen.name, whole_tensor(frozen.tensor));
  }

  // A parameter that is also the master is what other formats made of one; the model's own copy
  // has the model's dtype.
  DType dtype_of(const Trained& param) const {
    const bool own_copy = param.param && *param.param != param.source;
    return own_copy ? content_.tensors[*param.param].dtype : what_.model_dtype;
  }
  StoragePart weights(const Trained& param) const {
    TensorData data{param.param.value_or(param.source), whole(param.shape)};
    if (content_.tensors[data.tensor].dtype != dtype_of(param)) data.as = dtype_of(param);
    return data;
  }

  // Stage 3: the module holds nothing; frozen parameters are cut like the trained ones.
  void place_partitioned() {
    for (const OutFlat& flat : flats_)
      for (const Trained* param : flat.params) place(param->name, nothing(dtype_of(*param)));
    for (const Whole& frozen : what_.frozen)
      place(frozen.name, nothing(content_.tensors[frozen.tensor].dtype));
  }
  Placed nothing(DType dtype) { return {add_storage(dtype, {}), 0, {0}}; }

  void put(const Placed& tensor) {
    TorchFileWriter::tensor(tensor.storage, tensor.first, tensor.shape);
  }

  void tensors() {
    entry("module", [&] {
      ordered_dict([&] {
        for (const std::string& name : order_) entry(name, [&] { put(placed_.at(name)); });
      });
    });
    list(kBufferNames, [&] {
      for (const Whole& buffer : what_.buffers) string(buffer.name);
    });
    entry("optimizer", nullptr);
  }

  void shapes() {
    list("param_shapes", [&] {
      for (const OutFlat& flat : flats_)
        ordered_dict([&] {
          for (const Trained* param : flat.params)
            entry(param->name, [&] { torch_size(param->shape); });
        });
    });
    frozen_entries("frozen_param_shapes",
                   [&](const Whole& frozen) { torch_size(content_.tensors[frozen.tensor].shape); });
    dict("shared_params", [&] {
      if (rank_ != Rank{0}) return;
      for (const auto& [alias, owner] : what_.tied) entry(alias, owner);
    });
    frozen_entries("frozen_param_fragments", [&](const Whole& frozen) {
      put(what_.stage == 3 ? fragment(frozen.tensor) : placed_.at(frozen.name));
    });
  }

  // A loader wants all frozen parameters here, or None.
  void frozen_entries(std::string_view key, auto put_one) {
    if (what_.stage == 1 || what_.frozen.empty()) return entry(key, nullptr);
    entry(key, [&] {
      ordered_dict([&] {
        for (const Whole& frozen : what_.frozen) entry(frozen.name, [&] { put_one(frozen); });
      });
    });
  }

  // ceil(numel / world) elements a rank, zeros after the last one.
  Placed fragment(std::uint32_t tensor) {
    const TensorEntry& entry = content_.tensors[tensor];
    const std::uint64_t numel = volume(entry.shape);
    const std::uint64_t part = div_ceil(numel, what_.world);
    const std::uint64_t first = std::min(part * index_of(rank_), numel);
    const std::uint64_t count = std::min(part, numel - first);
    std::vector<StoragePart> parts;
    if (count > 0)
      for (Box& box : boxes_of(entry.shape, {first, count}))
        parts.emplace_back(TensorData{tensor, std::move(box)});
    if (part > count) parts.emplace_back(ZeroElems{part - count});
    return {add_storage(entry.dtype, std::move(parts)), 0, {part}};
  }

  void counters() {
    for (const std::string_view key : {"lr_scheduler", "data_sampler", "random_ltd"})
      entry_or(key, Value{});
    entry_or("skipped_steps", Value::of_int(0));
    entry("global_steps", what_.step);
    for (const std::string_view key : {"global_samples", "universal_checkpoint_info"})
      known_entry(key);
    entry("dp_world_size", what_.world);
    entry("mp_world_size", 1);
    dict("checkpoint_parallel_dimensions", [&] {
      entry("pp_degree", 1);
      entry("tp_degree", 1);
    });
    entry("ds_config", what_.config);
    entry("ds_version", what_.version);
  }

  std::map<std::string, Placed> placed_;
  std::vector<std::string> order_;
};

}  // namespace

OutputFile model_file(const Output& output, Rank rank) {
  const std::string stem =
      (output.what.stage == 3 ? "zero_pp_rank_" + std::to_string(index_of(rank)) + "_" : "") +
      "mp_rank_00_model_states";
  return ModelFile(output, rank, stem).write(output.folder + stem + ".pt");
}

}  // namespace ebb::formats::deepspeed
