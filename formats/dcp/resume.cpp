// Sources: torch 2.13's distributed/checkpoint (default_planner.py, state_dict.py), torchtitan
// 0.3.0's components/dataloader.py and checkpoint.py, and runs of them.
#include <algorithm>
#include <set>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/state_dict/names.h"

namespace ebb::formats {
namespace {

// Saved with use_collectives=False: each rank's own metadata instead of one for all.
bool has_no_common_metadata(const ResumeQuestion& question) {
  return std::ranges::find(question.catalog.files, ".metadata", &FileEntry::name) ==
         question.catalog.files.end();
}

bool own_metadata_other_world(const ResumeQuestion& question) {
  return has_no_common_metadata(question) && !same_world(question);
}

bool needs_newest_torch(const ResumeQuestion& question) {
  return question.catalog.producer == "torch 2.15 or newer";
}

// torch.optim.Muon of 2.13 cannot step a DTensor of which a rank holds no row.
bool muon_without_rows(const ResumeQuestion& question) {
  const Catalog& catalog = question.catalog;
  return std::ranges::any_of(catalog.tensors,
                             [&](const TensorEntry& t) {
                               return t.state == "momentum_buffer" && !t.shape.empty() &&
                                      t.shape[0] < question.world;
                             }) &&
         has_optimizer(catalog, "muon");
}

// Of optimizers that have states: parameters without any. A job makes states for all that its
// optimizer trains, and asks for each of them; which are frozen is recorded nowhere.
struct Stateless {
  std::vector<std::string> names;
  std::size_t of = 0;  // parameters of these optimizers
};
Stateless stateless_in(const Catalog& catalog) {
  std::set<std::string_view> stateful;
  for (const TensorEntry& tensor : catalog.tensors)
    if (!is_weight(tensor.state)) stateful.insert(tensor.name);
  for (const UnreadEntry& entry : catalog.unread)
    if (!is_weight(entry.state)) stateful.insert(entry.name);
  for (const auto& [name, steps] : catalog.param_steps) stateful.insert(name);
  Stateless found;
  for (const StateDictOptimizer& optimizer : catalog.parts.optimizers) {
    const auto has_state = [&](const std::string& name) { return stateful.contains(name); };
    if (std::ranges::none_of(optimizer.params, has_state)) continue;
    found.of += optimizer.params.size();
    for (const std::string& name : optimizer.params)
      if (!has_state(name)) found.names.push_back(name);
  }
  return found;
}

bool lacks_states(const ResumeQuestion& question) {
  return !stateless_in(question.catalog).names.empty();
}

std::string states_that_are_lacking(const ResumeQuestion& question) {
  const Stateless found = stateless_in(question.catalog);
  return compose(
      "{} of the {} parameters of its optimizer have no state ({}): the loader of a job that "
      "trains them fails with \"Missing key in checkpoint state_dict\", that of a job that has "
      "them frozen (requires_grad=False) asks for none; leave them out of the optimizer, or load "
      "with DefaultLoadPlanner(allow_partial_load=True)",
      found.names.size(), found.of, some_of(found.names));
}

// torchtitan keeps where each data-parallel rank has got to in the data, and deals it to as many
// ranks only: how many there were; 0 for none.
std::size_t data_ranks(const Catalog& catalog) {
  constexpr std::string_view kKey = "dataloader.dp_rank_";
  std::set<std::string_view> ranks;
  for (const ValueEntry& value : catalog.values)
    if (const std::string_view key = value.key; key.starts_with(kKey))
      ranks.insert(key.substr(0, key.find('.', kKey.size())));
  return ranks.size();
}

// Where there were more ranks than those, model-parallel ones may make up the difference.
bool other_data_ranks(const ResumeQuestion& question) {
  const std::size_t ranks = data_ranks(question.catalog);
  if (ranks == 0 || same_world(question)) return false;
  return ranks == question.catalog.world || question.world % ranks != 0;
}

std::string data_of_other_ranks(const ResumeQuestion& question) {
  return compose(
      "the state of its dataloader is of {} data-parallel ranks, and torchtitan does not deal it "
      "to others: on {} the load fails, unless the job has "
      "--checkpoint.exclude_from_loading dataloader; it then reads its data from the start",
      data_ranks(question.catalog), "{wanted}");
}

bool is_numbered(const ResumeQuestion& question) { return !mere_numbers(question.catalog).empty(); }

using Says = ResumeRule::Says;
constexpr ResumeRule kWithoutStates{
    .says = Says::no, .applies = lacks_states, .tell = states_that_are_lacking};
constexpr ResumeRule kRules[] = {
    {Says::no, own_metadata_other_world,
     "saved without collectives: each of {saved} finds its own metadata only, and there "
     "is none for {wanted}",
     "dcp"},
    kWithoutStates,
    kStatesWithoutGroups,
    {.says = Says::no, .applies = other_data_ranks, .tell = data_of_other_ranks},
    {Says::yes, has_no_common_metadata,
     "each rank falls back to its own metadata, and must want the parts it saved"},
    {Says::yes, always,
     "each of {wanted} reads its part of every tensor from whichever file holds it"},
    {Says::note, needs_newest_torch,
     "torch 2.14 and older cannot read this metadata; what ckpt-convert --to dcp writes, "
     "they can"},
    {Says::note, is_numbered,
     "its optimizer's parameters are numbers: a job that saves optimizer.state_dict() itself loads "
     "them; FSDP2 and torchtitan ask for names, and do not find them (ckpt-convert --names FILE)"},
    {Says::note, muon_without_rows,
     "some matrices have fewer rows than {wanted}: torch 2.13's Muon cannot step those"},
};

}  // namespace

ResumeRules dcp_resume() { return {"torch.distributed.checkpoint", kRules}; }
ResumeRule without_states_rule() { return kWithoutStates; }

}  // namespace ebb::formats
