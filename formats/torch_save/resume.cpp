// Source: torch.distributed.checkpoint.state_dict, full_state_dict and broadcast_from_rank0.
#include <array>

#include "ebb/formats/torch_save/torch_save.h"

namespace ebb::formats {
namespace {

bool one_rank(const ResumeQuestion& question) { return question.world == 1; }

using Says = ResumeRule::Says;
constexpr std::array kRules = {
    ResumeRule{Says::yes, one_rank, "one rank loads the whole file", {}, {}},
    ResumeRule{Says::yes,
               always,
               "each of {wanted} loads the whole file, or is sent it, and keeps its part: "
               "set_state_dict with full_state_dict and broadcast_from_rank0",
               {},
               {}},
};

}  // namespace

ResumeRules torch_resume() { return {"torch.load", kRules}; }

}  // namespace ebb::formats
