// Who has what: ranks, partitions, and how gradients come.
#include <algorithm>
#include <tuple>

#include "tests/libmuon/covering/runs.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::AxisLayout;
using libmuon::HandIn;

constexpr std::uint32_t kExperts = 4;
constexpr std::string_view kPlaces = "expert";  // the axis on which they lie

// Both sides alike, over all ranks, `copies` times.
void cut(Run& run, Policy policy, std::uint32_t copies = 1) {
  run.copies = policy == Policy::replicated ? run.ranks : copies;
  Layout::Spec spec{.policy = policy, .mesh = {run.ranks / copies, copies}, .align_elems = 16};
  std::vector<Shape> shapes;
  for (const libmuon::ParamSpec& param : run.config.model.params) shapes.push_back(param.shape);
  add_lists(shapes, spec);
  run.config.partition.gradients = run.config.partition.weights = spec;
}

std::uint32_t two_if_even(std::uint32_t ranks) { return ranks % 2 == 0 ? 2 : 1; }

// Experts at `places` places, what is dense over all ranks but the copies.
void cut_experts(Run& run, Policy policy, std::uint32_t copies, std::uint32_t places) {
  run.copies = copies;
  const std::uint32_t data = run.ranks / copies / places;
  const Layout::Spec spec{.policy = policy, .align_elems = 16};
  auto& partition = run.config.partition;
  partition.axes = {{"copy", copies}, {"data", data}, {std::string(kPlaces), places}};
  const AxisLayout dense{spec, {"data", std::string(kPlaces)}, {"copy"}};
  const AxisLayout experts{spec, {"data"}, {"copy"}};
  partition.parts = {{"dense", dense, dense}, {"experts", experts, experts}};
  std::uint32_t expert = 0;
  for (libmuon::ParamSpec& param : run.config.model.params) {
    const bool of_one = param.name.starts_with("expert.");
    param.partition = of_one ? "experts" : "dense";
    if (of_one) param.at = {{std::string(kPlaces), expert++ / 2 * places / kExperts}};
  }
}

// Some matrices and a stack cut by rows or columns over an axis before their partition cuts them.
void cut_slices(Run& run) {
  const std::uint32_t tensor = two_if_even(run.ranks);
  run.copies = tensor;
  const Layout::Spec spec{.policy = Policy::zero3, .align_elems = 4};
  const AxisLayout slices{spec, {"data"}, {}}, others{spec, {"data"}, {"tensor"}};
  auto& partition = run.config.partition;
  partition.axes = {{"tensor", tensor}, {"data", run.ranks / tensor}};
  partition.parts = {{"slices", slices, slices}, {"others", others, others}};
  for (libmuon::ParamSpec& param : run.config.model.params) {
    param.partition = "others";
    for (const auto& [name, dimension] :
         {std::pair{"qkv", 0u}, {"down", 1u}, {"long", 0u}, {"broad", 1u}, {"stack", 1u}})
      if (param.name == name) {
        param.partition = "slices";
        param.cuts = {{"tensor", dimension}};
      }
  }
}

// Dimensions cut by two axes, one after the other, most of them unevenly; some places have nothing.
void cut_boxes(Run& run) {
  const std::uint32_t deal = two_if_even(run.ranks), rest = run.ranks / deal;
  const std::uint32_t data = rest % 4 == 0 ? 2 : 1, tensor = rest / data;
  run.copies = deal * tensor;
  const Layout::Spec spec{.policy = Policy::zero3, .align_elems = 4};
  const AxisLayout boxes{spec, {"data"}, {}}, others{spec, {"data"}, {"deal", "tensor"}};
  auto& partition = run.config.partition;
  partition.axes = {{"deal", deal}, {"tensor", tensor}, {"data", data}};
  partition.parts = {{"boxes", boxes, boxes}, {"others", others, others}};
  for (libmuon::ParamSpec& param : run.config.model.params) {
    param.partition = "others";
    for (const auto& [name, of_deal, of_tensor] : {std::tuple{"emb", 0u, 1u},
                                                   {"qkv", 0u, 0u},
                                                   {"down", 0u, 1u},
                                                   {"stack", 0u, 1u},
                                                   {"pile", 1u, 2u},
                                                   {"odd", 0u, 1u},
                                                   {"row", 0u, 1u},
                                                   {"conv", 0u, 1u},
                                                   {"prime", 1u, 0u}})
      if (param.name == name) {
        param.partition = "boxes";
        param.cuts = {{"deal", of_deal}, {"tensor", of_tensor}};
      }
  }
}

void weights_whole(Run& run) {
  auto& partition = run.config.partition;
  for (libmuon::AxisPartition& part : partition.parts)
    part.weights.layout.policy = Policy::replicated;
  if (!partition.parts.empty()) return;
  partition.weights = {.policy = Policy::replicated, .mesh = {run.ranks, 1}};
}

}  // namespace

std::vector<FactorOfRuns> factors_of_layout() {
  return {
      {{{"1 rank", [](Run& run) { run.ranks = 1; }},
        {"2 ranks", [](Run& run) { run.ranks = 2; }},
        {"3 ranks", [](Run& run) { run.ranks = 3; }},
        {"4 ranks", [](Run& run) { run.ranks = 4; }},
        {"8 ranks", [](Run& run) { run.ranks = 8; }}}},
      {{{"replicated", [](Run& run) { cut(run, Policy::replicated); }},
        {"zero12", [](Run& run) { cut(run, Policy::zero12); }},
        {"boundary", [](Run& run) { cut(run, Policy::zero12_boundary); }},
        {"zero3", [](Run& run) { cut(run, Policy::zero3); }},
        {"rows", [](Run& run) { cut(run, Policy::rows); }},
        {"uneven rows", [](Run& run) { cut(run, Policy::uneven_rows); }},
        {"layer-wise", [](Run& run) { cut(run, Policy::layer_wise); }},
        {"HSDP", [](Run& run) { cut(run, Policy::zero3, two_if_even(run.ranks)); }},
        {"experts", [](Run& run) { cut_experts(run, Policy::zero3, 1, std::min(run.ranks, 4u)); }},
        {"experts twice",
         [](Run& run) {
           const std::uint32_t copies = two_if_even(run.ranks);
           cut_experts(run, Policy::rows, copies, two_if_even(run.ranks / copies));
         }},
        {"slices", cut_slices},
        {"boxes", cut_boxes}}},
      {{{"weights alike", [](Run&) {}}, {"weights whole", weights_whole}}},
      {{{"state at owners",
         [](Run& run) { run.config.partition.placement = libmuon::Placement::owner; }},
        {"state on shards",
         [](Run& run) { run.config.partition.placement = libmuon::Placement::shard; }}}},
      {{{"gradients reduced", [](Run& run) { run.config.partition.hand_in = HandIn::reduced; }},
        {"added", [](Run& run) { run.config.partition.hand_in = HandIn::added; }},
        {"in parts", [](Run& run) { run.config.partition.hand_in = HandIn::partial; }},
        {"in parts, sums kept",
         [](Run& run) {
           run.config.partition.hand_in = HandIn::partial;
           run.config.partial_sums = libmuon::PartialSums::kept;
         }}}},
      {{{"no early room", [](Run&) {}},
        {"early room", [](Run& run) { run.config.early_gradient_bytes = 8192; }}}},
      {{{"as handed in", [](Run&) {}}, {"late", [](Run& run) { run.come = Come::late; }}}},
      {{{"all have gradients", [](Run&) {}},
        {"some have none", [](Run& run) { run.absent = Absent::some; }},
        {"most have none", [](Run& run) { run.absent = Absent::most; }}}},
      {{{"over threads", [](Run& run) { run.ranks_are = RanksAre::threads; }},
        {"over sockets", [](Run& run) { run.ranks_are = RanksAre::sockets; }},
        {"over a network", [](Run& run) { run.ranks_are = RanksAre::network; }},
        {"over MPI", [](Run& run) { run.ranks_are = RanksAre::mpi; }}}},
  };
}

}  // namespace ebb::test
