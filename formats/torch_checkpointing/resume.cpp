// Source: torch_checkpointing 0.1.1's checkpoint_reader.py and default_resharder.py, and runs of
// them.
#include <algorithm>
#include <array>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/torch_checkpointing/items.h"
#include "ebb/formats/torch_checkpointing/torch_checkpointing.h"

namespace ebb::formats {
namespace {

// "rng, step": items of which each rank loads its own file; "" for none.
std::string_view undealt(const Catalog& catalog) {
  constexpr std::string_view kBegin = torch_checkpointing::kUndealt;
  const auto note = std::ranges::find_if(
      catalog.notes, [&](const std::string& text) { return text.starts_with(kBegin); });
  return note == catalog.notes.end() ? std::string_view{}
                                     : std::string_view(*note).substr(kBegin.size());
}

bool has_too_few_files(const ResumeQuestion& question) {
  return question.world > question.catalog.world && !undealt(question.catalog).empty();
}

std::string files_that_are_lacking(const ResumeQuestion& question) {
  return compose(
      "of {} there is a file for each of {} and nothing to deal them by: \"Missing file\" at rank "
      "{}; a job that loads the other items alone resumes",
      undealt(question.catalog), "{saved}", question.catalog.world);
}

bool is_dealt(const ResumeQuestion& question) { return !same_world(question); }

using Says = ResumeRule::Says;
constexpr std::array kRules = {
    ResumeRule{.says = Says::no, .applies = has_too_few_files, .tell = files_that_are_lacking},
    ResumeRule{Says::yes, same_world, "saved by as many ranks: each loads its own files"},
    ResumeRule{
        Says::yes, always,
        "each of {wanted} reads its part of every tensor from whichever file holds it, where "
        "the job gives the item a resharder"},
    ResumeRule{Says::note, is_dealt,
               "of items that are dealt to other ranks, torch_checkpointing 0.1 loads tensors "
               "alone: numbers beside them (lr, betas, a step that is no tensor) stay as the job "
               "has set them"},
};

}  // namespace

ResumeRules torch_checkpointing_resume() { return {"torch_checkpointing", kRules}; }

}  // namespace ebb::formats
