// Source: torch_checkpointing 0.1.1's checkpoint_reader.py and default_resharder.py, and runs of
// them.
#include <algorithm>
#include <array>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/torch_checkpointing/items.h"
#include "ebb/formats/torch_checkpointing/torch_checkpointing.h"

namespace ebb::formats {
namespace {

// "rng, step": the items that a note lists; "" for none.
std::string_view listed(const Catalog& catalog, std::string_view begin) {
  const auto note = std::ranges::find_if(
      catalog.notes, [&](const std::string& text) { return text.starts_with(begin); });
  return note == catalog.notes.end() ? std::string_view{}
                                     : std::string_view(*note).substr(begin.size());
}
// Of which each rank loads its own file.
std::string_view undealt(const Catalog& catalog) {
  return listed(catalog, torch_checkpointing::kUndealt);
}
// And that with parts of tensors.
std::string_view undealt_parts(const Catalog& catalog) {
  return listed(catalog, torch_checkpointing::kUndealtParts);
}

bool has_undealt_parts(const ResumeQuestion& question) {
  return !same_world(question) && !undealt_parts(question.catalog).empty();
}
std::string parts_of_other_ranks(const ResumeQuestion& question) {
  return compose(
      "{} was saved without a resharder: each rank loads the part that its number had among {}",
      undealt_parts(question.catalog), "{saved}");
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
    ResumeRule{
        .says = Says::no, .applies = has_undealt_parts, .to = "dcp", .tell = parts_of_other_ranks},
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
