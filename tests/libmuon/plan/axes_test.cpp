// A world with axes, as the plan of each rank has it: who holds what of a mixture of experts, who
// owns it, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libmuon/plan/owners.h"
#include "ebb/libmuon/plan/state_plan.h"
#include "tests/libmuon/plan/adam_in.h"

namespace ebb::libmuon {
namespace {

constexpr std::uint64_t kRoom = 1u << 28;
constexpr std::uint32_t kExperts = 4;

// Four experts on an axis of 1, 2 or 4 places.
ModelSpec mixture(std::uint32_t places) {
  ModelSpec model;
  model.groups = {MuonSpec::keller(), AdamSpec{}};
  model.params = {{"emb", {37, 24}, 1}, {"qkv", {72, 24}, 0}, {"norm", {24}, 1}};
  for (std::uint32_t expert = 0; expert < kExperts; ++expert) {
    const std::string name = "expert." + std::to_string(expert);
    const std::vector<Coordinate> at = {{"expert", expert * places / kExperts}};
    model.params.push_back({name + ".up", {96, 24}, 0, "experts", at});
    model.params.push_back({name + ".down", {24, 96}, 0, "experts", at});
    model.params.push_back({name + ".prime", {31, 13}, 0, "experts", at});
    model.params.push_back({name + ".bias", {17}, 1, "experts", at});
  }
  model.params.push_back({"proj", {24, 24}, 0});
  return model;
}

PartitionSpec over(std::vector<Axis> axes, AxisLayout experts) {
  PartitionSpec partition{.gradients = {.policy = Policy::zero12},
                          .weights = {.policy = Policy::replicated}};
  partition.axes = std::move(axes);
  partition.parts = {{"experts", experts, experts}};
  return partition;
}

std::uint32_t places_of(const PartitionSpec& partition) {
  return std::ranges::find(partition.axes, "expert", &Axis::name)->size;
}

// Worlds of 4 to 12 ranks with experts at the front, in the middle and at the end of the axes.
std::vector<PartitionSpec> worlds() {
  std::vector<PartitionSpec> all;
  for (const Policy policy :
       {Policy::zero12, Policy::zero12_boundary, Policy::zero3, Policy::rows, Policy::replicated}) {
    const Layout::Spec cut{.policy = policy};
    all.push_back(over({{"expert", 2}, {"data", 2}}, {cut, {"data"}}));
    all.push_back(over({{"data", 3}, {"expert", 2}}, {cut, {"data"}}));
    all.push_back(over({{"expert", 4}, {"data", 1}}, {cut, {"data"}}));
    all.push_back(over({{"expert", 4}}, {cut}));
    all.push_back(over({{"expert", 2}, {"replica", 2}}, {cut, {}, {"replica"}}));
    all.push_back(over({{"replica", 2}, {"expert", 2}, {"data", 3}}, {cut, {"data"}, {"replica"}}));
    all.push_back(over({{"data", 2}, {"expert", 2}, {"more", 2}}, {cut, {"more", "data"}}));
  }
  return all;
}

StatePlan plan_of(const PartitionSpec& partition, Rank rank) {
  auto plan = StatePlan::make(mixture(places_of(partition)), partition, 4096, rank, kRoom);
  EXPECT_TRUE(plan) << plan.error().message;
  return std::move(*plan);
}

// By counting: the ranks whose coordinate on the axis is the parameter's.
std::set<std::uint32_t> ranks_of(const PartitionSpec& partition, const ParamSpec& param) {
  std::uint32_t behind = 1, size = 0;
  for (auto axis = partition.axes.rbegin(); axis->name != "expert"; ++axis) behind *= axis->size;
  size = places_of(partition);
  std::set<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < world_of(partition); ++rank)
    if (param.at.empty() || rank / behind % size == param.at.front().index) ranks.insert(rank);
  return ranks;
}

TEST(Axes, AParameterIsOnTheRanksOfItsPlaceAndOnNoOthers) {
  for (const PartitionSpec& partition : worlds()) {
    const ModelSpec model = mixture(places_of(partition));
    for (std::uint32_t rank = 0; rank < world_of(partition); ++rank) {
      const StatePlan plan = plan_of(partition, Rank{rank});
      EXPECT_EQ(plan.world(), world_of(partition));
      for (std::uint32_t param = 0; param < model.params.size(); ++param) {
        const bool here = ranks_of(partition, model.params[param]).contains(rank);
        EXPECT_EQ(plan.here(param), here) << model.params[param].name << " on rank " << rank;
        if (here) continue;
        EXPECT_TRUE(plan.own_ranges(param).empty());
        EXPECT_EQ(plan.gradients().held(param, Rank{rank}).count, 0u);
        EXPECT_EQ(plan.weights().held(param, Rank{rank}).count, 0u);
      }
    }
  }
}

// HSDP with an outer shard: the inner axis cuts first, the outer one what that left, so that the
// rows of ranks side by side are not.
TEST(Axes, AnOuterShardCutsWhatTheInnerOneLeft) {
  const PartitionSpec partition = [] {
    PartitionSpec all{.gradients = {.policy = Policy::zero12},
                      .weights = {.policy = Policy::zero12}};
    all.axes = {{"outer", 2}, {"inner", 3}};
    const AxisLayout rows{{.policy = Policy::rows}, {"inner", "outer"}};
    all.parts = {{"hsdp", rows, rows}};
    return all;
  }();
  ModelSpec model;
  model.groups = {MuonSpec::keller()};
  model.params = {{"matrix", {12, 5}, 0, "hsdp"}};
  constexpr std::uint64_t kFirstRow[] = {0, 4, 8, 2, 6, 10};  // rank 3 is inner 0 of outer 1
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    const auto plan = StatePlan::make(model, partition, 4096, Rank{rank}, kRoom);
    ASSERT_TRUE(plan) << plan.error().message;
    for (const ModelLayout* side : {&(*plan).gradients(), &(*plan).weights()})
      EXPECT_EQ(side->held(0, Rank{rank}), (FlatRange{kFirstRow[rank] * 5, 10})) << rank;
  }
}

TEST(Axes, EveryElementOfEveryStateLiesOnceOverAllRanks) {
  for (const PartitionSpec& partition : worlds()) {
    const ModelSpec model = mixture(places_of(partition));
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<int>> counts;
    for (std::uint32_t rank = 0; rank < world_of(partition); ++rank) {
      const StatePlan plan = plan_of(partition, Rank{rank});
      for (const TileEntry& tile : plan.tiles())
        for (const auto& segment : plan.segments(tile)) {
          auto& held = counts[{segment.param, segment.state}];
          held.resize(formats::volume(model.params[segment.param].shape));
          for (std::uint64_t i = 0; i < segment.count; ++i) ++held[segment.first + i];
        }
    }
    EXPECT_EQ(counts.size(), 14u * 2 + 6u * 3) << "two states a matrix, three a vector";
    for (const auto& [key, held] : counts)
      for (const int times : held) ASSERT_EQ(times, 1) << model.params[key.first].name;
  }
}

// By parameter: its share of all Newton-Schulz or of all matrices, whichever is larger.
std::vector<double> costs_of(const ModelSpec& model) {
  std::vector<double> flops(model.params.size(), 0), elems(model.params.size(), 0);
  double all_flops = 0, all_elems = 0;
  for (std::uint32_t param = 0; param < model.params.size(); ++param) {
    if (!is_muon(model, param)) continue;
    for (const MatrixRun& whole : matrix_runs_of(model, param)) flops[param] += whole.flops;
    elems[param] = static_cast<double>(formats::volume(model.params[param].shape));
    all_flops += flops[param];
    all_elems += elems[param];
  }
  std::vector<double> costs;
  for (std::size_t param = 0; param < flops.size(); ++param)
    costs.push_back(std::max(flops[param] / all_flops, elems[param] / all_elems));
  return costs;
}

// Loads without a queue: every choice looks at all ranks that may have the matrix.
std::vector<std::uint32_t> owners_by_looking(const ModelSpec& model,
                                             const PartitionSpec& partition) {
  std::vector<std::uint32_t> order, owners(model.params.size(), 0);
  for (std::uint32_t param = 0; param < model.params.size(); ++param)
    if (is_muon(model, param)) order.push_back(param);
  const std::vector<double> costs = costs_of(model);
  std::ranges::sort(order, {},
                    [&](std::uint32_t param) { return std::pair(-costs[param], param); });
  std::vector<double> loads(world_of(partition), 0);
  for (const std::uint32_t param : order) {
    std::optional<std::uint32_t> least;
    for (const std::uint32_t rank : ranks_of(partition, model.params[param]))
      if (!least || loads[rank] < loads[*least]) least = rank;
    loads[*least] += costs[param];
    owners[param] = *least;
  }
  return owners;
}

double largest_load(const ModelSpec& model, std::span<const std::uint32_t> owners) {
  const std::vector<double> costs = costs_of(model);
  std::map<std::uint32_t, double> loads;
  double largest = 0;
  for (std::uint32_t param = 0; param < owners.size(); ++param)
    largest = std::max(largest, loads[owners[param]] += costs[param]);
  return largest;
}

// A flat partition has other reasons, too.
TEST(Axes, OwnersHoldTheGradientAndAreAsEvenAsTheLargestFirst) {
  for (PartitionSpec partition : worlds()) {
    partition.gradients.policy = Policy::zero3;
    const Policy policy = partition.parts.front().gradients.layout.policy;
    const bool flat = policy == Policy::zero12 || policy == Policy::zero12_boundary;
    const ModelSpec model = mixture(places_of(partition));
    const double wanted = largest_load(model, owners_by_looking(model, partition));
    const auto first = plan_of(partition, Rank{0}).owners().spec().owners;
    EXPECT_LE(largest_load(model, first), (flat ? 1.05 : 1) * wanted * (1 + 1e-9))
        << name_of(policy);
    for (std::uint32_t rank = 0; rank < world_of(partition); ++rank) {
      const auto owners = plan_of(partition, Rank{rank}).owners().spec().owners;
      EXPECT_EQ(owners, first);
      for (std::uint32_t param = 0; param < owners.size(); ++param)
        EXPECT_TRUE(!is_muon(model, param) ||
                    ranks_of(partition, model.params[param]).contains(owners[param]));
    }
  }
}

// (parameter, element) -> how often.
using Counts = std::map<std::uint32_t, std::vector<int>>;

void count(std::uint32_t param, FlatRange range, Counts& counts) {
  auto& times = counts[param];
  times.resize(std::max<std::size_t>(times.size(), range.first + range.count));
  for (std::uint64_t i = 0; i < range.count; ++i) ++times[range.first + i];
}

// Of one rank: what it visits of AdamW's until a chunk goes out is what goes out of it, and more.
void expect_visited_before_handed_out(const StatePlan& plan, std::uint64_t chunk_bytes) {
  const Chunks chunks(plan, chunk_bytes);
  Counts visited, handed_out;
  std::size_t visit = 0;
  for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk) {
    for (; visit < chunks.visits_end(chunk); ++visit) {
      const TileEntry& tile = plan.tiles()[plan.schedule()[visit].tile];
      if (tile.kind != TileKind::adam) continue;
      for (const auto& span : plan.spans(tile)) count(span.param, span.range, visited);
    }
    for (const Transit& transit : adam_in(plan, chunks.weights(chunk))) {
      count(transit.param, transit.range, handed_out);
      const auto& seen = visited[transit.param];
      for (const FlatRange all : plan.own_ranges(transit.param)) {
        const FlatRange own = formats::overlap(all, transit.range);
        for (std::uint64_t i = 0; i < own.count; ++i)
          ASSERT_TRUE(own.first + i < seen.size() && seen[own.first + i] == 1)
              << "parameter " << transit.param << ", chunk " << chunk << " of " << chunks.count();
      }
    }
  }
  for (std::uint32_t param = 0; param < plan.params(); ++param) {
    if (plan.muon(param)) continue;
    EXPECT_EQ(handed_out[param].size(), plan.gradients().elems(param));
    for (const int times : handed_out[param]) ASSERT_EQ(times, 1);
  }
}

TEST(Axes, AdamWIsHandedOutOnceAndBehindItsVisitsOnAllRanks) {
  for (const PartitionSpec& partition : worlds())
    for (const std::uint64_t chunk_bytes : {1u, 4096u, 30'000u, 1u << 28})
      for (std::uint32_t rank = 0; rank < world_of(partition); ++rank)
        expect_visited_before_handed_out(plan_of(partition, Rank{rank}), chunk_bytes);
}

// What a world without axes has is not touched by how it is told.
TEST(Axes, OfOnePartitionAreThePlanWithoutAxes) {
  ModelSpec model = mixture(1);
  for (ParamSpec& param : model.params) param.partition.clear(), param.at.clear();
  for (const Policy policy : {Policy::zero12, Policy::zero3, Policy::replicated}) {
    const PartitionSpec plain{.gradients = {.policy = policy, .mesh = {6, 1}},
                              .weights = {.policy = Policy::rows, .mesh = {3, 2}}};
    PartitionSpec axes{.gradients = {.policy = policy},
                       .weights = {.policy = Policy::rows, .mesh = {3, 2}}};
    axes.axes = {{"replica", 2}, {"data", 3}};
    PartitionSpec named = axes;
    named.parts = {{"all",
                    {{.policy = policy}, {"replica", "data"}},
                    {{.policy = Policy::rows}, {"data"}, {"replica"}}}};
    ModelSpec of_named = model;
    for (ParamSpec& param : of_named.params) param.partition = "all";
    for (std::uint32_t rank = 0; rank < 6; ++rank) {
      const auto a = StatePlan::make(model, plain, 4096, Rank{rank}, kRoom);
      const auto b = StatePlan::make(model, axes, 4096, Rank{rank}, kRoom);
      const auto c = StatePlan::make(of_named, named, 4096, Rank{rank}, kRoom);
      ASSERT_TRUE(a && b && c);
      EXPECT_EQ((*a).digest(), (*b).digest());
      EXPECT_EQ((*a).owners().spec().owners, (*c).owners().spec().owners);
      ASSERT_EQ((*a).tiles().size(), (*c).tiles().size());
      for (std::size_t i = 0; i < (*a).tiles().size(); ++i)
        EXPECT_EQ((*a).segments((*a).tiles()[i]), (*c).segments((*c).tiles()[i]));
    }
  }
}

TEST(Axes, AnotherPlaceIsAnotherDigest) {
  const PartitionSpec partition = worlds().front();
  ModelSpec model = mixture(2);
  const auto digest = [&] {
    const auto plan = StatePlan::make(model, partition, 4096, Rank{0}, kRoom);
    EXPECT_TRUE(plan);
    return (*plan).digest();
  };
  const std::uint64_t before = digest();
  const auto is_bias = [](const ParamSpec& param) { return param.name.ends_with(".bias"); };
  for (ParamSpec& one : model.params)
    for (ParamSpec& other : model.params) {
      if (!is_bias(one) || !is_bias(other) || one.at[0].index >= other.at[0].index) continue;
      std::swap(one.at, other.at);  // they are AdamW's: nobody owns them
      EXPECT_NE(digest(), before) << one.name << " and " << other.name;
      std::swap(one.at, other.at);
    }
}

// One change, and what is said of it.
struct Refused {
  std::function<void(ModelSpec&, PartitionSpec&)> change;
  Code code;
  std::string message;
};

const std::vector<Refused>& refused_worlds() {
  static const std::vector<Refused> all = {
      {[](auto&, auto& p) { p.gradients.mesh = {3, 1}; }, Code::layout,
       "gradients are cut over 3 ranks, weights over 4"},
      {[](auto&, auto& p) { p.gradients.mesh = p.weights.mesh = {3, 1}; }, Code::layout,
       "the axes expert 2 x data 2 make 4 ranks, gradients and weights are cut over 3"},
      {[](auto&, auto& p) { p.weights.mesh = formats::Mesh::part({4, 0, {{2, 1}}, {}}); },
       Code::layout, "gradients and weights lie on different ranks"},
      {[](auto&, auto& p) { p.axes[1].size = 0; }, Code::usage, "axis 1 of the world has no ranks"},
      {[](auto&, auto& p) { p.axes[0].name = ""; }, Code::usage, "axis 0 of the world has no name"},
      {[](auto&, auto& p) { p.axes.push_back({"data", 2}); }, Code::usage,
       "two axes of the world are called data"},
      {[](auto&, auto& p) { p.axes.push_back({"rack", 1u << 31}); }, Code::limit,
       "the axes expert 2 x data 2 x rack 2147483648 make more ranks than the limit of 1048576"},
      {[](auto&, auto& p) { p.parts[0].weights.shards = {"date"}; }, Code::usage,
       "partition experts, weights names axis date, which is none of the world's: expert 2 x data "
       "2"},
      {[](auto&, auto& p) { p.parts[0].gradients.copies = {"data"}; }, Code::usage,
       "partition experts, gradients names axis data twice; an axis either cuts or copies, once"},
      {[](auto&, auto& p) { p.parts[0].weights.shards = {"expert", "data"}; }, Code::layout,
       "partition experts: only its weights span axis expert; a parameter's gradient and weights "
       "must lie on the same ranks"},
      {[](auto&, auto& p) { p.parts[0].gradients.layout.mesh = {2, 1}; }, Code::usage,
       "partition experts, gradients: the mesh follows from the axes"},
      {[](auto&, auto& p) { p.parts.push_back(p.parts[0]); }, Code::usage,
       "partition 2 of the world has no name of its own: \"experts\""},
      {[](auto&, auto& p) { p.parts[0].gradients.layout.owners = {0}; }, Code::layout,
       "partition experts: zero3: 1 owners given, 0 wanted"},
      {[](auto&, auto& p) { p.parts[0].weights.layout.align_elems = 0; }, Code::layout,
       "partition experts: partitions aligned to 0 elements: must be 1 to 1073741824"},
      {[](auto& m, auto&) { m.params[3].partition = "expert"; }, Code::usage,
       "parameter expert.0.up names partition expert, which is none of PartitionSpec::parts"},
      {[](auto& m, auto&) { m.params[3].at[0].axis = "rack"; }, Code::usage,
       "parameter expert.0.up names axis rack, which is none of the world's: expert 2 x data 2"},
      {[](auto& m, auto&) { m.params[3].at[0].index = 2; }, Code::usage,
       "parameter expert.0.up is at 2 on axis expert, which has places 0 to 1"},
      {[](auto& m, auto&) { m.params[3].at.clear(); }, Code::usage,
       "parameter expert.0.up does not say where it is on axis expert, which partition experts "
       "does not span"},
      {[](auto& m, auto&) { m.params[3].at.push_back({"data", 0}); }, Code::usage,
       "parameter expert.0.up names a place on axis data, all of which is spanned by partition "
       "experts"},
      {[](auto& m, auto&) { m.params[3].at.push_back({"expert", 1}); }, Code::usage,
       "parameter expert.0.up names a place on axis expert, and another before"},
      {[](auto& m, auto&) { m.params[1].at = {{"expert", 1}}; }, Code::usage,
       "parameter qkv names a place on axis expert, all of which is spanned by the partition of "
       "all "
       "ranks"},
  };
  return all;
}

const std::vector<Refused>& refused_cuts() {
  static const std::vector<Refused> all = {
      {[](auto& m, auto&) { m.params[1].cuts = {{"data", 1}}; }, Code::usage,
       "double sharding of parameter qkv: the partition of all ranks lays it over axis data, and "
       "ParamSpec::cuts cuts its dimension 1 over the same"},
      {[](auto& m, auto&) { m.params[3].cuts = {{"data", 0}}; }, Code::usage,
       "double sharding of parameter expert.0.up: partition experts lays it over axis data, and "
       "ParamSpec::cuts cuts its dimension 0 over the same"},
      {[](auto& m, auto&) { m.params[3].cuts = {{"expert", 1}}; }, Code::usage,
       "parameter expert.0.up names a place on axis expert, which cuts it"},
      {[](auto& m, auto&) { m.params[3].cuts = {{"rack", 1}}; }, Code::usage,
       "parameter expert.0.up names axis rack, which is none of the world's: expert 2 x data 2"},
      {[](auto& m, auto&) {
         m.params[3].at.clear();
         m.params[3].cuts = {{"expert", 0}, {"expert", 1}};
       },
       Code::usage, "parameter expert.0.up is cut twice over axis expert"},
      {[](auto& m, auto&) {
         m.params[3].at.clear();
         m.params[3].cuts = {{"expert", 2}};
       },
       Code::layout,
       "parameter expert.0.up of shape [96, 24] has no dimension 2 that axis expert could cut"},
      {[](auto& m, auto& partition) {
         partition.axes = {{"expert", 2}, {"a", 2}, {"b", 2}, {"data", 1}};
         m.params[5].shape = {2, 4, 4, 4};
         m.params[5].cuts = {{"a", 1}, {"b", 2}, {"expert", 3}};
         for (auto& param : m.params) {
           param.partition = "experts";
           param.at.clear();
           if (param.cuts.empty()) param.at = {{"expert", 0}, {"a", 0}, {"b", 0}};
         }
       },
       Code::unsupported,
       "parameter expert.0.prime of shape [2, 4, 4, 4] is cut in three dimensions behind one that "
       "is not"},
  };
  return all;
}

void expect_refusals(const std::vector<Refused>& all) {
  for (const Refused& refused : all) {
    ModelSpec model = mixture(2);
    PartitionSpec partition =
        over({{"expert", 2}, {"data", 2}}, {{.policy = Policy::zero3}, {"data"}});
    refused.change(model, partition);
    const auto plan = StatePlan::make(model, partition, 4096, Rank{0}, kRoom);
    ASSERT_FALSE(plan) << refused.message;
    EXPECT_EQ(plan.error().message, refused.message);
    EXPECT_EQ(plan.error().code, refused.code) << refused.message;
  }
}

TEST(Axes, ThatCannotBeAreRefusedByName) { expect_refusals(refused_worlds()); }

TEST(Axes, CutsThatCannotBeAreRefusedByName) { expect_refusals(refused_cuts()); }

// What torch.chunk() cuts off for a place: as many as the first has, while there are some.
std::pair<std::uint64_t, std::uint64_t> chunk(std::uint64_t extent, std::uint32_t places,
                                              std::uint32_t place) {
  const std::uint64_t each = (extent + places - 1) / places;
  const std::uint64_t first = std::min(extent, each * place);
  return {first, std::min(extent, first + each)};
}

// Element by element, of parameters that do not divide: who has it, and where in its buffer.
TEST(Axes, CutsOneAfterTheOtherAreTheBoxesOfTorchsChunks) {
  const std::vector<Axis> axes = {{"a", 3}, {"b", 2}, {"data", 2}};
  const auto places = [](std::uint32_t rank) {
    return std::array{rank / 4, rank / 2 % 2, rank % 2};
  };
  struct Case {
    Shape shape;
    std::vector<DimensionCut> cuts;
  };
  for (const Case& c :
       {Case{{7, 5}, {{"a", 0}, {"b", 1}}}, Case{{7, 5}, {{"b", 0}, {"a", 0}}},
        Case{{4, 3, 5}, {{"b", 0}, {"a", 2}}}, Case{{2, 4, 5}, {{"a", 1}, {"b", 2}}},
        Case{{2, 3}, {{"a", 0}, {"b", 1}}}, Case{{5, 1}, {{"b", 1}, {"a", 0}}}}) {
    const AxisLayout over{{.policy = Policy::zero3}, {"data"}};
    ModelSpec model{{{"w", c.shape, 0, "boxes", {}, c.cuts}}, {AdamSpec{}}};
    PartitionSpec partition{.axes = axes, .parts = {{"boxes", over, over}}};
    for (std::uint32_t rank = 0; rank < 12; ++rank) {
      std::vector<std::pair<std::uint64_t, std::uint64_t>> box;
      for (const std::uint64_t extent : c.shape) box.emplace_back(0, extent);
      for (const DimensionCut& cut : c.cuts) {
        auto& [first, end] = box[cut.dimension];
        const bool is_a = cut.axis == "a";
        const auto [begin, behind] = chunk(end - first, is_a ? 3 : 2, places(rank)[is_a ? 0 : 1]);
        end = first + behind;
        first += begin;
      }
      std::vector<std::uint64_t> inside;
      for (std::uint64_t i = 0; i < formats::volume(c.shape); ++i) {
        bool in = true;
        std::uint64_t rest = i;
        for (std::size_t d = c.shape.size(); d-- > 0; rest /= c.shape[d])
          in = in && rest % c.shape[d] >= box[d].first && rest % c.shape[d] < box[d].second;
        if (in) inside.push_back(i);
      }
      const auto [first, end] = chunk(inside.size(), 2, places(rank)[2]);
      const std::vector<std::uint64_t> wanted(inside.begin() + static_cast<std::ptrdiff_t>(first),
                                              inside.begin() + static_cast<std::ptrdiff_t>(end));
      const auto plan = StatePlan::make(model, partition, 4096, Rank{rank}, kRoom);
      ASSERT_TRUE(plan) << plan.error().message;
      std::vector<std::uint64_t> found;
      for (const FlatRange run : plan->gradients().runs(0, Rank{rank}))
        for (std::uint64_t i = 0; i < run.count; ++i) {
          EXPECT_EQ(plan->gradients().place(0, Rank{rank}, run.first + i), found.size());
          found.push_back(run.first + i);
        }
      EXPECT_EQ(found, wanted) << formats::to_string(c.shape) << " on rank " << rank;
    }
  }
}

}  // namespace
}  // namespace ebb::libmuon
