#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/deepspeed/config.h"
#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/emit_files.h"
#include "ebb/formats/deepspeed/names.h"

namespace ebb::formats {
namespace deepspeed {
namespace {

// The name of the folder.
std::string written_tag(const Content& what) {
  return what.tag.empty() ? compose("global_step{}", what.step) : what.tag;
}

// `latest` or `latest_universal`: the name of the folder, which loaders read first.
OutputFile latest_file(std::string name, std::string_view tag) {
  const ByteView bytes = view_of(tag);
  return literal_file(std::move(name), ByteVector(bytes.begin(), bytes.end()));
}

// Says which tensors are stored in another dtype than the content's, and only so: flat buffers
// have one dtype for all their parameters, and masters are at least F32.
void note_dtypes(const Catalog& content, EmitPlan& plan) {
  std::map<std::uint32_t, std::optional<DType>> stored;  // tensor -> unset when as it is somewhere
  for (const OutputFile& file : plan.files)
    for (const Fragment& fragment : file.fragments)
      if (const auto* data = std::get_if<TensorData>(&fragment.data)) {
        const auto [known, fresh] = stored.emplace(data->tensor, data->as);
        if (!fresh && !data->as) known->second.reset();
      }
  std::map<std::tuple<std::string, DType, DType>, std::size_t> changes;  // state, from, to
  for (const auto& [number, dtype] : stored)
    if (dtype) ++changes[{content.tensors[number].state, content.tensors[number].dtype, *dtype}];
  for (const auto& [change, count] : changes) {
    const auto& [state, from, to] = change;
    plan.notes.push_back(
        compose("{}{} ({}) of {} stored as {}{}", count, count == 1 ? " tensor" : " tensors",
                printable(state), name_of(from), name_of(to),
                (is_widening(from, to) ? ", exact" : ", rounded to nearest: lossy")));
  }
}

Result<EmitPlan> emit_ranks(const EmitRequest& request) {
  EmitPlan plan;
  EBB_TRY_ASSIGN(const Content what, gather_content(request, Form::ranks, plan));
  EBB_TRY_ASSIGN(const std::vector<OutFlat> flats, cut_flats(what, request.content, plan));
  const Output output{what, request.content, flats, written_tag(what) + "/"};
  for (std::uint32_t rank = 0; rank < what.world; ++rank) {
    plan.files.push_back(optimizer_file(output, Rank{rank}));
    if (what.stage == 3 || rank == 0) plan.files.push_back(model_file(output, Rank{rank}));
  }
  // Stage 3 keeps no model weights of its own: its loader rounds the master weights.
  for (const OutGroup& group : what.groups)
    for (const Trained& param : group.params)
      if (what.stage == 3 && param.param && *param.param != param.source)
        plan.derived.push_back({*param.param, param.source});
  plan.commit_files.push_back(latest_file("latest", written_tag(what)));
  note_dtypes(request.content, plan);
  return plan;
}

constexpr std::string_view kReserved[] = {kMasters, "step"};  // names of files that are no state

// Loaders take a name for that of a folder below zero/, or of a file in it, as it stands.
bool names_a_file(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name != "optimizer_state.pt" &&
         std::ranges::none_of(name, [](char c) { return c == '/' || c == '\0'; });
}

Result<> check_names(const std::vector<OutFlat>& flats) {
  for (const OutFlat& flat : flats) {
    for (const Trained* param : flat.params)
      if (!names_a_file(param->name))
        return Error{Code::unsupported,
                     "parameter " + json_string(param->name) +
                         ": a universal checkpoint keeps each parameter in a folder of its name, "
                         "and that is none",
                     "--rename gives it another one"};
    for (const Field& state : flat.states)
      if (!names_a_file(state.state) || std::ranges::count(kReserved, state.state) > 0)
        return Error{Code::unsupported,
                     "state " + json_string(state.state) +
                         ": a universal checkpoint keeps each state in a file of its name, and "
                         "that one means something else"};
  }
  return {};
}

class UniversalFiles {
 public:
  UniversalFiles(const Output& output, EmitPlan& plan) : output_(output), plan_(plan) {}

  void add_all() {
    for (const OutFlat& flat : output_.flats)
      for (std::size_t p = 0; p < flat.params.size(); ++p) {
        add_tensor(flat, p, flat.master, kMasters);
        for (const Field& state : flat.states) add_tensor(flat, p, state, state.state);
        if (flat.steps) add_steps(flat, p);
      }
  }

 private:
  std::string path(const OutFlat& flat, std::size_t p, std::string_view state) const {
    return compose("{}zero/{}/{}.pt", output_.folder, flat.params[p]->name, state);
  }
  // Ranks share the writing.
  Rank writer() const {
    return Rank{static_cast<std::uint32_t>(plan_.files.size() % output_.what.world)};
  }

  void add_tensor(const OutFlat& flat, std::size_t p, const Field& field, std::string_view name) {
    TorchFileWriter file(output_.content, std::string(name));
    const Shape& shape = flat.params[p]->shape;
    TensorData data = flat.whole_of(p, field, output_.content);
    const DType dtype = written_dtype(data, output_.content);
    const std::uint32_t storage = file.add_storage(dtype, {std::move(data)});
    file.dict([&] {
      file.entry("param", [&] { file.tensor(storage, 0, shape); });
      file.entry("cat_dim", 0);
    });
    plan_.files.push_back(file.finish(path(flat, p, name), writer()));
  }

  void add_steps(const OutFlat& flat, std::size_t p) {
    TorchFileWriter file(output_.content, "step");
    pickle_steps(file, output_.what.groups[flat.group], *flat.steps);
    plan_.files.push_back(file.finish(path(flat, p, "step"), writer()));
  }

  const Output& output_;
  EmitPlan& plan_;
};

// Stage 3's loader asks for a model file by another name, and takes nothing but values from it.
OutputFile values_of_stage3(const Output& output) {
  Content what = output.what;
  what.stage = 3;
  what.frozen.clear();
  what.buffers.clear();
  return model_file({what, output.content, output.flats, output.folder}, Rank{0});
}

// What the rules of resuming will answer on more than one rank.
void note_refusal(const Content& what, const Catalog& content, EmitPlan& plan) {
  Catalog written;
  // One state tells that there is an optimizer.
  const auto of_optimizer = std::ranges::find_if(
      content.tensors, [](const TensorEntry& tensor) { return !is_weight(tensor.state); });
  if (of_optimizer != content.tensors.end()) written.tensors.push_back(*of_optimizer);
  written.values.push_back({"ds_config", {"ds_config"}, what.config});
  for (const OutGroup& group : what.groups)
    written.groups.push_back({group.muon ? "muon" : "", {}, {}});
  const ResumeAnswer answer = resume_answer(deepspeed_universal_resume(), {written, 2});
  if (!answer.resumable) plan.notes.push_back(answer.loader + " cannot resume it: " + answer.why);
}

Result<EmitPlan> emit_universal(const EmitRequest& request) {
  EmitPlan plan;
  EBB_TRY_ASSIGN(const Content what, gather_content(request, Form::universal, plan));
  Content whole = what;  // as stages 1 and 2 keep a model: in one file
  whole.stage = std::min<std::int64_t>(what.stage, 2);
  EBB_TRY_ASSIGN(const std::vector<OutFlat> flats, cut_flats(whole, request.content, plan));
  EBB_TRY(check_names(flats));
  const std::string tag = written_tag(what) + std::string(kUniversalSuffix);
  const Output output{whole, request.content, flats, tag + "/"};
  UniversalFiles(output, plan).add_all();
  plan.files.push_back(global_state_file({what, request.content, flats, tag + "/"}));
  plan.files.push_back(model_file(output, Rank{0}));
  plan.files.push_back(values_of_stage3(output));
  plan.commit_files.push_back(latest_file("latest_universal", tag));
  note_dtypes(request.content, plan);
  note_refusal(what, request.content, plan);
  return plan;
}

}  // namespace
}  // namespace deepspeed

Policy deepspeed_policy(const Catalog& content) {
  const std::int64_t stage = deepspeed::stage_of(content);
  return stage == 1 || stage == 2 ? Policy::zero12 : Policy::zero3;
}

Result<EmitPlan> emit_deepspeed(const EmitRequest& request) {
  return deepspeed::emit_ranks(request);
}

Result<EmitPlan> emit_deepspeed_universal(const EmitRequest& request) {
  return deepspeed::emit_universal(request);
}

}  // namespace ebb::formats
