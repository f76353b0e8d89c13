// Source: torch.distributed.checkpoint.state_dict, full_state_dict and broadcast_from_rank0.
#include <algorithm>
#include <array>

#include "ebb/formats/torch_save/torch_save.h"

namespace ebb::formats {
namespace {

bool one_rank(const ResumeQuestion& question) { return question.world == 1; }

// Each rank's part lies in a file of its own.
bool in_rank_files(const ResumeQuestion& question) {
  return std::ranges::any_of(question.catalog.files,
                             [](const FileEntry& file) { return file.rank.has_value(); });
}

bool on_as_many_ranks(const ResumeQuestion& question) {
  return in_rank_files(question) && same_world(question);
}

// An optimizer's states alone, in a folder of transformers' Trainer.
bool lacks_trainers_model(const ResumeQuestion& question) {
  const Catalog& catalog = question.catalog;
  const auto weighs = [](const TensorEntry& tensor) { return is_weight(tensor.state); };
  return std::ranges::none_of(catalog.tensors, weighs) &&
         lies_beside(catalog, "trainer_state.json");
}

using Says = ResumeRule::Says;
constexpr std::array kRules = {
    ResumeRule{Says::no,
               lacks_trainers_model,
               "optimizer states alone: the model that transformers' Trainer lays beside them is "
               "missing (model.safetensors, pytorch_model.bin)",
               {},
               {}},
    kStatesWithoutGroups,
    ResumeRule{Says::yes,
               on_as_many_ranks,
               "saved by as many ranks: each loads its own file, on the same device mesh",
               {},
               {}},
    ResumeRule{Says::no,
               in_rank_files,
               "saved by {saved}, each of which wrote its part into a file of its own: other ranks "
               "have other parts",
               "dcp",
               {}},
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
