#include <algorithm>

#include "ebb/formats/dcp/dcp.h"

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

using Says = ResumeRule::Says;
constexpr ResumeRule kRules[] = {
    {Says::no, own_metadata_other_world,
     "saved without collectives: each of {saved} finds its own metadata only, and there "
     "is none for {wanted}",
     "dcp"},
    {Says::yes, has_no_common_metadata,
     "each rank falls back to its own metadata, and must want the parts it saved"},
    {Says::yes, always,
     "each of {wanted} reads its part of every tensor from whichever file holds it"},
    {Says::note, needs_newest_torch,
     "torch 2.14 and older cannot read this metadata; what ckpt-convert --to dcp writes, "
     "they can"},
    {Says::note, muon_without_rows,
     "some matrices have fewer rows than {wanted}: torch 2.13's Muon cannot step those"},
    kWeightsNoted,
};

}  // namespace

ResumeRules dcp_resume() { return {"torch.distributed.checkpoint", kRules}; }

}  // namespace ebb::formats
