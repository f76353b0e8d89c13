#include <map>
#include <string>
#include <tuple>

#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/emit_config.h"
#include "ebb/formats/deepspeed/emit_files.h"

namespace ebb::formats {
namespace deepspeed {

std::string written_tag(const Content& what) {
  return what.tag.empty() ? compose("global_step{}", what.step) : what.tag;
}

OutputFile latest_file(std::string name, std::string_view tag) {
  const ByteView bytes = view_of(tag);
  OutputFile file;
  file.name = std::move(name);
  file.size = bytes.size();
  file.fragments.emplace_back().data = ByteVector(bytes.begin(), bytes.end());
  return file;
}

// Flat buffers have one dtype for all their parameters, and masters are at least F32.
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

namespace {

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
  plan.rewritten = {"ds_config"};  // it names the stage
  plan.commit_files.push_back(latest_file("latest", written_tag(what)));
  note_dtypes(request.content, plan);
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

}  // namespace ebb::formats
