#include <algorithm>
#include <string>

#include "ebb/formats/deepspeed/config.h"
#include "ebb/formats/deepspeed/emit_files.h"

namespace ebb::formats::deepspeed {
namespace {

class OptimizerFile : EngineFile {
 public:
  using EngineFile::EngineFile;

  OutputFile write(std::string name) {
    dict([&] {
      dict("optimizer_state_dict", [&] { what_.stage == 3 ? stage3() : stage12(); });
      entry("ds_config", what_.config);
      entry("ds_version", what_.version);
    });
    return finish(std::move(name), rank_);
  }

  // Stages 1 and 2 take the groups from the top, stage 3 groups and steps from the inner dict.
  OutputFile write_global(std::string name) {
    dict([&] {
      if (plain_) scaler();
      known_entry("clip_grad");
      if (plain_) stage_number();
      numbers("partition_count", [&](const OutFlat&) { return what_.world; });
      entry("ds_version", what_.version);
      param_groups();
      dict("optimizer_state_dict", [&] {
        dict("state", [&] {
          for (std::size_t i = 0; i < flats_.size(); ++i) {
            if (!flats_[i].steps) continue;
            integer(static_cast<std::int64_t>(i));
            dict([&] { step_entry(flats_[i]); });
          }
        });
        param_groups();
      });
    });
    return finish(std::move(name), rank_);
  }

 private:
  void stage12() {
    if (plain_) scaler();
    known_entry("clip_grad");
    entry("base_optimizer_state", [&] { base_state(); });
    list("single_partition_of_fp32_groups", [&] {
      for (const OutFlat& flat : flats_)
        partition(flat, flat.master,
                  flat.full_elems(rank_) - (plain_ ? flat.padding_elems(rank_) : 0));
    });
    if (plain_) stage_number();
    numbers("group_paddings", [&](const OutFlat& flat) { return flat.padding_elems(rank_); });
    if (plain_) gaps();
    numbers("partition_count", [&](const OutFlat&) { return what_.world; });
    entry("ds_version", what_.version);
    list("param_slice_mappings", [&] {
      for (const OutFlat& flat : flats_) slices(flat);
    });
  }

  void gaps() {
    list("param_alignment_paddings", [&] {
      for (const OutFlat& flat : flats_)
        list([&] {
          for (const std::uint64_t gap : flat.gaps) integer(static_cast<std::int64_t>(gap));
        });
    });
  }

  void stage3() {
    stage_number();
    scaler();
    known_entry("clip_grad");
    entry("partition_count", what_.world);
    entry("optimizer_state_dict", [&] { base_state(); });
    list("fp32_flat_groups", [&] {
      for (const OutFlat& flat : flats_) partition(flat, flat.master, flat.full_elems(rank_));
    });
  }

  void stage_number() {
    entry("zero_stage", [&] {
      call1("deepspeed.runtime.zero.config", "ZeroStageEnum", [&] { integer(what_.stage); });
    });
  }

  void numbers(std::string_view key, auto number) {
    list(key, [&] {
      for (const OutFlat& flat : flats_) integer(static_cast<std::int64_t>(number(flat)));
    });
  }

  // The scaler of a run that had none keeps the scale at 1. In half precision stages 1 and 2 take
  // the engine's own when the file has none, stage 3 insists on one.
  void scaler() {
    const Value* known = what_.value("loss_scaler");
    const bool half = what_.model_dtype == DType::f16;
    const bool dynamic = known == nullptr ? half : known->find("cur_iter") != nullptr;
    const Value state = known == nullptr ? first_scaler(dynamic) : scaler_state(*known);
    if (known != nullptr || !half || what_.stage == 3)
      entry("loss_scaler", [&] {
        object("deepspeed.runtime.fp16.loss_scaler", dynamic ? "DynamicLossScaler" : "LossScaler");
        build([&] { value(state); });
      });
    if (what_.value("dynamic_loss_scale") != nullptr || !half || what_.stage == 3)
      entry_or("dynamic_loss_scale", Value::of_bool(dynamic));
    entry_or("overflow", Value::of_bool(false));
  }

  // Readers name the class beside the attributes, and leave out the dtype, which is always the
  // same.
  static Value scaler_state(Value known) {
    std::erase_if(known.entries, [](const auto& e) { return e.first.text == "class"; });
    if (known.find("cur_iter") != nullptr && known.find("dtype") == nullptr)
      known.add("dtype", Value::of_dtype(DType::f16));
    return known;
  }

  // torch.optim's state_dict(), the flat buffers as its parameters.
  void base_state() {
    dict([&] {
      dict("state", [&] {
        for (std::size_t i = 0; i < flats_.size(); ++i) {
          if (flats_[i].states.empty() && !flats_[i].steps) continue;
          integer(static_cast<std::int64_t>(i));
          buffer_state(flats_[i]);
        }
      });
      param_groups();
    });
  }

  void param_groups() {
    list("param_groups", [&] {
      for (std::size_t g = 0; g < what_.groups.size(); ++g) param_group(g);
    });
  }

  void buffer_state(const OutFlat& flat) {
    dict([&] {
      if (flat.steps) step_entry(flat);
      for (const Field& state : flat.states)
        entry(state.state, [&] {
          if (state.touched)
            vector(state.dtype, flat.touched(state, rank_, content_));
          else
            partition(flat, state, flat.full_elems(rank_));
        });
    });
  }

  void step_entry(const OutFlat& flat) {
    entry("step", [&] { pickle_steps(*this, what_.groups[flat.group], *flat.steps); });
  }

  void param_group(std::size_t number) {
    dict([&] {
      for (const auto& [name, value] : what_.groups[number].settings) entry(name, value);
      list("params", [&] {
        for (std::size_t i = 0; i < flats_.size(); ++i)
          if (flats_[i].group == number) integer(static_cast<std::int64_t>(i));
      });
    });
  }

  void partition(const OutFlat& flat, const Field& field, std::uint64_t elems) {
    vector(field.dtype, flat.partition(field, rank_, elems, content_));
  }
  // A tensor of one dimension with a storage of its own.
  void vector(DType dtype, std::vector<StoragePart> parts) {
    const std::uint32_t storage = add_storage(dtype, std::move(parts));
    tensor(storage, 0, {storage_elems(storage)});
  }

  void slices(const OutFlat& flat) {
    ordered_dict([&] {
      for (std::size_t p = 0; p < flat.params.size(); ++p) {
        const OutFlat::Slice slice = flat.slice(p, rank_);
        if (slice.count == 0) continue;
        string(flat.params[p]->name);
        object("deepspeed.utils.tensor_fragment", "fragment_address", [&] {
          entry("numel", slice.count);
          entry("start", slice.first);
        });
      }
    });
  }

  // BF16_Optimizer knows no scaler and no stage, and keeps its partitions padded.
  const bool plain_ = !is_bf16_optimizer(what_.config, what_.stage);
};

}  // namespace

void pickle_steps(TorchFileWriter& file, const OutGroup& group, std::int64_t steps) {
  if (!group.tensor_steps) return file.integer(steps);
  ByteVector bytes;
  append_le(bytes, static_cast<float>(steps));
  file.tensor(file.add_storage(DType::f32, {std::move(bytes)}), 0, {});
}

OutputFile global_state_file(const Output& output) {
  return OptimizerFile(output, Rank{0}, "optimizer_state")
      .write_global(output.folder + "zero/optimizer_state.pt");
}

OutputFile optimizer_file(const Output& output, Rank rank) {
  const std::string stem =
      compose("{}zero_pp_rank_{}_mp_rank_00_optim_states",
              (output.what.model_dtype == DType::bf16 ? "bf16_" : ""), index_of(rank));
  return OptimizerFile(output, rank, stem).write(output.folder + stem + ".pt");
}

}  // namespace ebb::formats::deepspeed
