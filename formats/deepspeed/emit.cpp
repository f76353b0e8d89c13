#include <string>

#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/emit_files.h"

namespace ebb::formats {

std::string ds_written_tag(const DsContent& what) {
  return what.tag.empty() ? "global_step" + std::to_string(what.step) : what.tag;
}

OutputFile ds_latest_file(std::string name, std::string_view tag) {
  const ByteView bytes = view_of(tag);
  OutputFile file;
  file.name = std::move(name);
  file.size = bytes.size();
  file.fragments.emplace_back().data = ByteVector(bytes.begin(), bytes.end());
  return file;
}

Result<EmitPlan> emit_deepspeed(const EmitRequest& request) {
  EmitPlan plan;
  EBB_TRY_ASSIGN(const DsContent what, gather_ds_content(request, DsForm::ranks, plan));
  EBB_TRY_ASSIGN(const std::vector<DsOutFlat> flats, cut_ds_flats(what, request.content, plan));
  const DsOutput output{what, request.content, flats, ds_written_tag(what) + "/"};
  for (std::uint32_t rank = 0; rank < what.world; ++rank) {
    plan.files.push_back(ds_optimizer_file(output, Rank{rank}));
    if (what.stage == 3 || rank == 0) plan.files.push_back(ds_model_file(output, Rank{rank}));
  }
  // Stage 3 keeps no model weights of its own: its loader rounds the master weights.
  for (const DsOutGroup& group : what.groups)
    for (const DsTrained& param : group.params)
      if (what.stage == 3 && param.param && *param.param != param.source)
        plan.derived.push_back({*param.param, param.source});
  plan.rewritten = {"ds_config"};  // it names the stage
  plan.commit_files.push_back(ds_latest_file("latest", ds_written_tag(what)));
  return plan;
}

}  // namespace ebb::formats
