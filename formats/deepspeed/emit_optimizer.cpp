#include <algorithm>
#include <string>

#include "ebb/formats/deepspeed/emit_config.h"
#include "ebb/formats/deepspeed/emit_files.h"
#include "ebb/formats/deepspeed/emit_pickle.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::string_view kScalerModule = "deepspeed.runtime.fp16.loss_scaler";

class OptimizerFile {
 public:
  OptimizerFile(const Output& output, Rank rank, std::string folder)
      : what_(output.what),
        content_(output.content),
        flats_(output.flats),
        rank_(rank),
        file_(output.content, std::move(folder)),
        pickle_(file_.pickle()) {}

  OutputFile write(std::string name) {
    pickle_dict(pickle_, [&] {
      pickle_.string("optimizer_state_dict");
      pickle_dict(pickle_, [&] { what_.stage == 3 ? stage3() : stage12(); });
      pickle_.string("ds_config");
      file_.value(what_.config);
      pickle_.string("ds_version");
      pickle_.string(what_.version);
    });
    return file_.finish(std::move(name), rank_);
  }

  // Stages 1 and 2 take the groups from the top, stage 3 groups and steps from the inner dict.
  OutputFile write_global(std::string name) {
    const bool plain = !is_bf16_optimizer(what_.config, what_.stage);
    pickle_dict(pickle_, [&] {
      if (plain) scaler();
      if (const Value* clip = what_.value("clip_grad")) entry("clip_grad", *clip);
      if (plain) stage_number();
      numbers("partition_count", [&](const OutFlat&) { return std::uint64_t{what_.world}; });
      pickle_.string("ds_version");
      pickle_.string(what_.version);
      param_groups();
      pickle_.string("optimizer_state_dict");
      pickle_dict(pickle_, [&] {
        pickle_.string("state");
        pickle_dict(pickle_, [&] {
          for (std::size_t i = 0; i < flats_.size(); ++i) {
            if (!flats_[i].steps()) continue;
            pickle_.integer(static_cast<std::int64_t>(i));
            pickle_dict(pickle_, [&] { step_entry(flats_[i]); });
          }
        });
        param_groups();
      });
    });
    return file_.finish(std::move(name), rank_);
  }

 private:
  // BF16_Optimizer knows no scaler and no stage, and keeps its partitions padded.
  void stage12() {
    const bool plain = !is_bf16_optimizer(what_.config, what_.stage);
    if (plain) scaler();
    if (const Value* clip = what_.value("clip_grad")) entry("clip_grad", *clip);
    pickle_.string("base_optimizer_state");
    base_state();
    pickle_.string("single_partition_of_fp32_groups");
    pickle_list(pickle_, [&] {
      for (const OutFlat& flat : flats_)
        partition(flat, flat.master(),
                  flat.full_elems(rank_) - (plain ? flat.padding_elems(rank_) : 0));
    });
    if (plain) stage_number();
    numbers("group_paddings", [&](const OutFlat& flat) { return flat.padding_elems(rank_); });
    if (plain) gaps();
    numbers("partition_count", [&](const OutFlat&) { return std::uint64_t{what_.world}; });
    pickle_.string("ds_version");
    pickle_.string(what_.version);
    pickle_.string("param_slice_mappings");
    pickle_list(pickle_, [&] {
      for (const OutFlat& flat : flats_) slices(flat);
    });
  }

  void gaps() {
    pickle_.string("param_alignment_paddings");
    pickle_list(pickle_, [&] {
      for (const OutFlat& flat : flats_)
        pickle_list(pickle_, [&] {
          for (const std::uint64_t gap : flat.gaps())
            pickle_.integer(static_cast<std::int64_t>(gap));
        });
    });
  }

  void stage3() {
    stage_number();
    scaler();
    if (const Value* clip = what_.value("clip_grad")) entry("clip_grad", *clip);
    pickle_entry(pickle_, "partition_count", what_.world);
    pickle_.string("optimizer_state_dict");
    base_state();
    pickle_.string("fp32_flat_groups");
    pickle_list(pickle_, [&] {
      for (const OutFlat& flat : flats_) partition(flat, flat.master(), flat.full_elems(rank_));
    });
  }

  void stage_number() {
    pickle_.string("zero_stage");
    pickle_.global("deepspeed.runtime.zero.config", "ZeroStageEnum");
    pickle_.integer(what_.stage);
    pickle_.tuple1();
    pickle_.reduce();
  }

  void entry(std::string_view key, const Value& value) {
    pickle_.string(key);
    file_.value(value);
  }

  template <typename Number>
  void numbers(std::string_view key, Number number) {
    pickle_.string(key);
    pickle_list(pickle_, [&] {
      for (const OutFlat& flat : flats_) pickle_.integer(static_cast<std::int64_t>(number(flat)));
    });
  }

  // The scaler of a run that had none keeps the scale at 1. In half precision stages 1 and 2 take
  // the engine's own when the file has none, stage 3 insists on one.
  void scaler() {
    const Value* known = what_.value("loss_scaler");
    const bool half = what_.model_dtype == DType::f16;
    const bool dynamic = known == nullptr ? half : known->find("cur_iter") != nullptr;
    const Value state = known == nullptr ? first_scaler(dynamic) : scaler_state(*known);
    if (known != nullptr || !half || what_.stage == 3) {
      pickle_.string("loss_scaler");
      pickle_.global(kScalerModule, dynamic ? "DynamicLossScaler" : "LossScaler");
      pickle_.empty_tuple();
      pickle_.newobj();
      file_.value(state);
      pickle_.build();
    }
    const Value* flag = what_.value("dynamic_loss_scale");
    if (flag != nullptr || !half || what_.stage == 3)
      entry("dynamic_loss_scale", flag != nullptr ? *flag : Value::of_bool(dynamic));
    const Value* overflow = what_.value("overflow");
    entry("overflow", overflow != nullptr ? *overflow : Value::of_bool(false));
  }

  // Readers name the class beside the attributes, and leave out the dtype, which is always the
  // same.
  static Value scaler_state(Value known) {
    std::erase_if(known.entries, [](const auto& e) { return e.first.text == "class"; });
    if (known.find("cur_iter") != nullptr && known.find("dtype") == nullptr)
      known.entries.emplace_back(Value::of_string("dtype"), half_dtype());
    return known;
  }
  static Value half_dtype() {
    Value dtype;
    dtype.kind = Value::Kind::dtype;
    dtype.dtype = DType::f16;
    return dtype;
  }

  // As a new engine makes it.
  static Value first_scaler(bool dynamic) {
    Value state;
    state.kind = Value::Kind::dict;
    const auto add = [&](std::string name, Value value) {
      state.entries.emplace_back(Value::of_string(std::move(name)), std::move(value));
    };
    add("cur_scale", Value::of_real(dynamic ? 65536.0 : 1.0));
    add("dynamic", Value::of_bool(dynamic));
    if (!dynamic) return state;
    add("cur_iter", Value::of_int(0));
    add("last_overflow_iter", Value::of_int(-1));
    add("scale_factor", Value::of_real(2.0));
    add("scale_window", Value::of_int(1000));
    add("min_scale", Value::of_real(1.0));
    add("delayed_shift", Value::of_int(1));
    add("cur_hysteresis", Value::of_int(1));
    add("consecutive_hysteresis", Value::of_bool(false));
    add("raise_error_at_min_scale", Value::of_bool(true));
    add("dtype", half_dtype());
    return state;
  }

  // torch.optim's state_dict(), the flat buffers as its parameters.
  void base_state() {
    pickle_dict(pickle_, [&] {
      pickle_.string("state");
      pickle_dict(pickle_, [&] {
        for (std::size_t i = 0; i < flats_.size(); ++i) {
          if (flats_[i].states().empty() && !flats_[i].steps()) continue;
          pickle_.integer(static_cast<std::int64_t>(i));
          buffer_state(flats_[i]);
        }
      });
      param_groups();
    });
  }

  void param_groups() {
    pickle_.string("param_groups");
    pickle_list(pickle_, [&] {
      for (std::size_t g = 0; g < what_.groups.size(); ++g) param_group(g);
    });
  }

  void buffer_state(const OutFlat& flat) {
    pickle_dict(pickle_, [&] {
      if (flat.steps()) step_entry(flat);
      for (const Field& state : flat.states()) {
        pickle_.string(state.state);
        if (state.touched) {
          const std::uint32_t storage =
              file_.add_storage(state.dtype, flat.touched(state, rank_, content_));
          file_.tensor(storage, 0, {file_.storage_elems(storage)});
        } else {
          partition(flat, state, flat.full_elems(rank_));
        }
      }
    });
  }

  void step_entry(const OutFlat& flat) {
    pickle_.string("step");
    pickle_steps(file_, what_.groups[flat.group()], *flat.steps());
  }

  void param_group(std::size_t number) {
    pickle_dict(pickle_, [&] {
      for (const auto& [name, value] : what_.groups[number].settings) entry(name, value);
      pickle_.string("params");
      pickle_list(pickle_, [&] {
        for (std::size_t i = 0; i < flats_.size(); ++i)
          if (flats_[i].group() == number) pickle_.integer(static_cast<std::int64_t>(i));
      });
    });
  }

  void partition(const OutFlat& flat, const Field& field, std::uint64_t elems) {
    const std::uint32_t storage =
        file_.add_storage(field.dtype, flat.partition(field, rank_, elems, content_));
    file_.tensor(storage, 0, {elems});
  }

  void slices(const OutFlat& flat) {
    pickle_ordered_dict(pickle_, [&] {
      for (std::size_t p = 0; p < flat.params().size(); ++p) {
        const OutFlat::Slice slice = flat.slice(p, rank_);
        if (slice.count == 0) continue;
        pickle_.string(flat.params()[p]->name);
        pickle_object(pickle_, "deepspeed.utils.tensor_fragment", "fragment_address", [&] {
          pickle_entry(pickle_, "numel", slice.count);
          pickle_entry(pickle_, "start", slice.first);
        });
      }
    });
  }

  const Content& what_;
  const Catalog& content_;
  const std::vector<OutFlat>& flats_;
  Rank rank_;
  TorchFileWriter file_;
  PickleWriter& pickle_;
};

}  // namespace

void pickle_steps(TorchFileWriter& file, const OutGroup& group, std::int64_t steps) {
  if (!group.tensor_steps) return file.pickle().integer(steps);
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
