
#include "ebb/formats/safetensors/safetensors.h"

namespace ebb::formats {
namespace {

using Says = ResumeRule::Says;
// Files of ours may say more.
bool says_tensors_only(const ResumeQuestion& question) {
  return !question.catalog.step && question.catalog.groups.empty();
}

constexpr ResumeRule kRules[] = {
    {Says::no, weights_only,
     "it holds weights only: loading it starts a new optimizer, which is no resume"},
    {Says::no, always,
     "no framework's optimizer loads safetensors; as DCP the tensors can be loaded", "dcp"},
    {Says::note, says_tensors_only, "it has no step and no parameter groups: set them by hand"},
};

}  // namespace

ResumeRules safetensors_resume() { return {"a training framework", kRules}; }

}  // namespace ebb::formats
