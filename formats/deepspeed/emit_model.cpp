#include <map>
#include <set>
#include <string>

#include "ebb/formats/core/units.h"
#include "ebb/formats/deepspeed/emit_files.h"
#include "ebb/formats/deepspeed/emit_pickle.h"

namespace ebb::formats::deepspeed {
namespace {

// A tensor inside a storage of the file being written.
struct Placed {
  std::uint32_t storage = 0;
  std::uint64_t first = 0;
  Shape shape;
};

class ModelFile {
 public:
  ModelFile(const Output& output, Rank rank, std::string folder)
      : what_(output.what),
        content_(output.content),
        flats_(output.flats),
        rank_(rank),
        file_(output.content, std::move(folder)),
        pickle_(file_.pickle()) {}

  OutputFile write(std::string name) {
    if (what_.stage == 3)
      place_partitioned();
    else
      place_whole();
    for (const Whole& buffer : what_.buffers) place(buffer.name, whole_tensor(buffer.tensor));
    for (const auto& [alias, owner] : what_.tied)
      if (placed_.contains(owner)) place(alias, placed_.at(owner));
    pickle_dict(pickle_, [&] {
      tensors();
      shapes();
      counters();
      for (const auto& [key, value] : what_.client) entry(key, *value);
    });
    return file_.finish(std::move(name), rank_);
  }

 private:
  void place(const std::string& name, const Placed& where) {
    if (placed_.try_emplace(name, where).second) order_.push_back(name);
  }
  Placed whole_tensor(std::uint32_t tensor) {
    const TensorEntry& entry = content_.tensors[tensor];
    return {file_.add_storage(entry.dtype, {TensorData{tensor, whole(entry.shape)}}), 0,
            entry.shape};
  }

  // Stages 1 and 2: a group's weights are views into one storage, padding included.
  void place_whole() {
    for (const OutFlat& flat : flats_) {
      DType dtype = what_.model_dtype;
      bool same = true;
      for (const Trained* param : flat.params())
        same = same && dtype_of(*param) == dtype_of(*flat.params().front());
      if (same) dtype = dtype_of(*flat.params().front());
      std::vector<StoragePart> parts;
      std::vector<std::uint64_t> firsts;
      std::uint64_t end = 0;
      for (std::size_t p = 0; p < flat.params().size(); ++p) {
        const Trained& param = *flat.params()[p];
        if (!same) {
          place(param.name, {file_.add_storage(dtype_of(param), {weights(param)}), 0, param.shape});
          continue;
        }
        firsts.push_back(end);
        parts.emplace_back(weights(param));
        end += volume(param.shape) + flat.gaps()[p];
        if (flat.gaps()[p] > 0) parts.emplace_back(ZeroElems{flat.gaps()[p]});
      }
      if (!same) continue;
      const std::uint64_t full = flat.full_elems(Rank{0}) * what_.world;
      if (full > end) parts.emplace_back(ZeroElems{full - end});
      const std::uint32_t storage = file_.add_storage(dtype, std::move(parts));
      for (std::size_t p = 0; p < firsts.size(); ++p)
        place(flat.params()[p]->name, {storage, firsts[p], flat.params()[p]->shape});
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
      for (const Trained* param : flat.params()) place(param->name, nothing(dtype_of(*param)));
    for (const Whole& frozen : what_.frozen)
      place(frozen.name, nothing(content_.tensors[frozen.tensor].dtype));
  }
  Placed nothing(DType dtype) { return {file_.add_storage(dtype, {}), 0, {0}}; }

  void put(const Placed& tensor) { file_.tensor(tensor.storage, tensor.first, tensor.shape); }
  void entry(std::string_view key, const Value& value) {
    pickle_.string(key);
    file_.value(value);
  }
  void entry_or(std::string_view key, const Value& otherwise) {
    const Value* known = what_.value(key);
    entry(key, known != nullptr ? *known : otherwise);
  }

  void tensors() {
    pickle_.string("module");
    pickle_ordered_dict(pickle_, [&] {
      for (const std::string& name : order_) {
        pickle_.string(name);
        put(placed_.at(name));
      }
    });
    pickle_.string("buffer_names");
    pickle_list(pickle_, [&] {
      for (const Whole& buffer : what_.buffers) pickle_.string(buffer.name);
    });
    pickle_.string("optimizer");
    pickle_.none();
  }

  void shapes() {
    pickle_.string("param_shapes");
    pickle_list(pickle_, [&] {
      for (const OutFlat& flat : flats_)
        pickle_ordered_dict(pickle_, [&] {
          for (const Trained* param : flat.params()) {
            pickle_.string(param->name);
            pickle_.torch_size(param->shape);
          }
        });
    });
    pickle_.string("frozen_param_shapes");
    frozen_entries(
        [&](const Whole& frozen) { pickle_.torch_size(content_.tensors[frozen.tensor].shape); });
    pickle_.string("shared_params");
    pickle_dict(pickle_, [&] {
      if (rank_ != Rank{0}) return;
      for (const auto& [alias, owner] : what_.tied) {
        pickle_.string(alias);
        pickle_.string(owner);
      }
    });
    pickle_.string("frozen_param_fragments");
    frozen_entries([&](const Whole& frozen) {
      what_.stage == 3 ? put(fragment(frozen.tensor)) : put(placed_.at(frozen.name));
    });
  }

  // A loader wants all frozen parameters here, or None.
  template <typename Put>
  void frozen_entries(Put put_one) {
    if (what_.stage == 1 || what_.frozen.empty()) return pickle_.none();
    pickle_ordered_dict(pickle_, [&] {
      for (const Whole& frozen : what_.frozen) {
        pickle_.string(frozen.name);
        put_one(frozen);
      }
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
    return {file_.add_storage(entry.dtype, std::move(parts)), 0, {part}};
  }

  void counters() {
    for (const std::string_view key : {"lr_scheduler", "data_sampler", "random_ltd"})
      entry_or(key, Value{});
    entry_or("skipped_steps", Value::of_int(0));
    pickle_.string("global_steps");
    pickle_.integer(what_.step);
    for (const std::string_view key : {"global_samples", "universal_checkpoint_info"})
      if (const Value* known = what_.value(key)) entry(key, *known);
    pickle_entry(pickle_, "dp_world_size", what_.world);
    pickle_entry(pickle_, "mp_world_size", 1);
    pickle_.string("checkpoint_parallel_dimensions");
    pickle_dict(pickle_, [&] {
      pickle_entry(pickle_, "pp_degree", 1);
      pickle_entry(pickle_, "tp_degree", 1);
    });
    entry("ds_config", what_.config);
    pickle_.string("ds_version");
    pickle_.string(what_.version);
  }

  const Content& what_;
  const Catalog& content_;
  const std::vector<OutFlat>& flats_;
  Rank rank_;
  TorchFileWriter file_;
  PickleWriter& pickle_;
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
