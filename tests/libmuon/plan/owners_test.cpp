// Who owns which matrix. Loads are added up here from shapes, and where elements lie from layouts.
#include "ebb/libmuon/plan/owners.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/libmuon/support/real_models.h"

namespace ebb::libmuon {
namespace {

using test::Experts;
using test::real_model;

PartitionSpec over(std::uint32_t ranks, Policy policy) {
  const Layout::Spec spec{.policy = policy, .mesh = {ranks, 1}};
  return {.gradients = spec, .weights = spec};
}

struct Owned {
  ModelSpec model;
  std::vector<ModelLayout> layouts;  // gradients, weights
  std::vector<OwnedRun> runs;
  const ModelLayout& gradients() const { return layouts[0]; }
};

Owned owners_of(ModelSpec model, const PartitionSpec& partition) {
  Owned owned{.model = std::move(model)};
  const auto classes = classes_of(owned.model, partition);
  EBB_CHECK(classes.has_value());
  for (auto side : {&ParamClass::gradients, &ParamClass::weights}) {
    auto layout = ModelLayout::make(*classes, side);
    EBB_CHECK(layout.has_value());
    owned.layouts.push_back(*std::move(layout));
  }
  owned.runs = choose_owners(owned.model, {owned.layouts[0], owned.layouts[1]});
  return owned;
}

ModelSpec without_adam(ModelSpec model) {
  std::erase_if(model.params, [](const ParamSpec& param) { return param.group != 0; });
  model.groups.resize(1);
  return model;
}

// By rank, as shares of all Newton-Schulz or of all elements, whichever is larger of a matrix.
struct Loads {
  std::vector<double> ranks;
  double mean = 0, largest = 0;  // the latter of a matrix
  double most() const { return *std::ranges::max_element(ranks); }
};

Loads loads_of(const Owned& owned, std::uint32_t ranks) {
  Loads loads{.ranks = std::vector<double>(ranks, 0)};
  double flops = 0, elems = 0;
  for (std::uint32_t param = 0; param < owned.model.params.size(); ++param) {
    if (!is_muon(owned.model, param)) continue;
    elems += static_cast<double>(formats::volume(owned.model.params[param].shape));
    const MuonSpec& spec = muon_spec(owned.model, param);
    for (const Block& block : blocks_of(spec, owned.model.params[param].shape))
      flops += newton_schulz_flops(spec, block.rows(), block.cols);
  }
  for (const OwnedRun& run : owned.runs) {
    if (!is_muon(owned.model, run.param)) continue;
    for (const MatrixRun& whole : matrix_runs_of(owned.model, run.param)) {
      if (formats::overlap(whole.range, run.range).count == 0) continue;
      const double cost =
          std::max(whole.flops / flops, static_cast<double>(whole.range.count) / elems);
      loads.ranks[run.owner] += cost;
      loads.largest = std::max(loads.largest, cost);
    }
  }
  loads.mean = std::accumulate(loads.ranks.begin(), loads.ranks.end(), 0.0) / ranks;
  return loads;
}

// Elements that are not where their owner is, and the fewest that could be: each whole at the rank
// that has the most of it.
struct Travel {
  std::uint64_t elems = 0, least = 0;
};

Travel travel_of(const Owned& owned) {
  Travel travel;
  for (const OwnedRun& run : owned.runs) {
    if (!is_muon(owned.model, run.param)) continue;
    const auto part = owned.gradients().of(run.param);
    const auto held = [&](FlatRange range, std::uint32_t shard) {
      return formats::overlap(part.held_by(shard), range).count;
    };
    for (const MatrixRun& whole : matrix_runs_of(owned.model, run.param)) {
      if (formats::overlap(whole.range, run.range).count == 0) continue;
      const auto [first, last] = part.shards_of(whole.range);
      std::uint64_t most = 0;
      for (std::uint32_t shard = first; shard <= last; ++shard)
        most = std::max(most, held(whole.range, shard));
      travel.least += whole.range.count - most;
      travel.elems +=
          whole.range.count - formats::overlap(part.held(Rank{run.owner}), whole.range).count;
    }
  }
  return travel;
}

TEST(Owners, OfRealModelsAreWithinFivePercentOfTheMeanOrOneMatrix) {
  for (const std::string& name : test::real_model_names())
    for (const Experts experts : {Experts::each, Experts::stacked})
      for (const std::uint32_t ranks : {8u, 64u, 1024u})
        for (const Policy policy : {Policy::zero3, Policy::rows, Policy::zero12,
                                    Policy::zero12_boundary, Policy::replicated}) {
          const Loads loads =
              loads_of(owners_of(real_model(name, experts), over(ranks, policy)), ranks);
          EXPECT_LE(loads.most(), std::max(1.05 * loads.mean, loads.largest) * (1 + 1e-9))
              << name << " on " << ranks << " ranks, " << name_of(policy);
        }
}

// Some rank has k + 1 of the kN + 1 largest, whoever chooses.
double no_choice_undercuts(const Owned& owned, std::uint32_t ranks) {
  const auto of_each = [&](std::uint32_t many) {
    Owned apart = owned;
    for (std::uint32_t i = 0; i < apart.runs.size(); ++i) apart.runs[i].owner = i;
    return loads_of(apart, many).ranks;
  };
  std::vector<double> costs = of_each(static_cast<std::uint32_t>(owned.runs.size()));
  std::ranges::sort(costs, std::greater<>());
  double most = 0;
  for (std::size_t k = 0; k * ranks < costs.size(); ++k) {
    const auto last = costs.begin() + static_cast<std::ptrdiff_t>(k * ranks);
    most = std::max(most, std::accumulate(last - static_cast<std::ptrdiff_t>(k), last + 1, 0.0));
  }
  return most;
}

// No list of jobs is more than 4/3 from the best where the largest are placed first.
TEST(Owners, OfRandomModelsAreBalancedAsFarAsAnybodyKnowsHow) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    ModelSpec model;
    model.groups = {MuonSpec::keller()};
    const std::uint64_t params = 1 + random() % 200, kinds = 1 + random() % 8;
    std::vector<Shape> shapes;
    for (std::uint64_t i = 0; i < kinds; ++i)
      shapes.push_back({8 + random() % 2000, 8 + random() % 2000});
    for (std::uint64_t i = 0; i < params; ++i)
      model.params.push_back({std::to_string(i), shapes[random() % kinds], 0});
    const auto ranks = static_cast<std::uint32_t>(1 + random() % 40);
    const Policy policy = std::array{Policy::zero3, Policy::zero12, Policy::zero12_boundary,
                                     Policy::replicated}[random() % 4];
    const Owned owned = owners_of(model, over(ranks, policy));
    const Loads loads = loads_of(owned, ranks);
    const double least = std::max(loads.mean, no_choice_undercuts(owned, ranks));
    EXPECT_LE(loads.most(), std::max(1.05 * loads.mean, 4.0 / 3 * least) * (1 + 1e-9)) << round;
  }
}

TEST(Owners, OfAFlatPartitionThatIsBalancedLetOnlyStraddlersTravel) {
  for (const auto& [name, ranks] : {std::pair{"gpt2-1.5b", 8u},
                                    {"llama-3-8b", 8u},
                                    {"llama-3-8b", 64u},
                                    {"llama-3-70b", 8u},
                                    {"llama-3-70b", 64u},
                                    {"qwen3-30b-a3b", 8u},
                                    {"qwen3-30b-a3b", 64u}}) {
    const ModelSpec model = without_adam(real_model(name));
    const Travel flat = travel_of(owners_of(model, over(ranks, Policy::zero12)));
    EXPECT_EQ(flat.elems, flat.least) << name << " on " << ranks;
    const Travel whole = travel_of(owners_of(model, over(ranks, Policy::zero12_boundary)));
    EXPECT_EQ(whole.elems, 0u) << name << " on " << ranks;
  }
}

// 4.75 of its layers' 12 units a rank: what does not fit is given away, no more.
TEST(Owners, OfAFlatPartitionThatIsNotBalancedGiveAwayLittle) {
  const Travel travel =
      travel_of(owners_of(without_adam(real_model("gpt2-124m")), over(8, Policy::zero12)));
  const std::uint64_t all = 12 * 12 * 768 * 768;
  EXPECT_LE(travel.elems - travel.least, all / 30);
}

TEST(Owners, OfWholeMatricesAreTheTrainersOwn) {
  ModelSpec model;
  model.groups = {MuonSpec::keller()};
  PartitionSpec partition = over(4, Policy::layer_wise);
  for (std::uint32_t i = 0; i < 40; ++i) {
    model.params.push_back({std::to_string(i), {64, i % 2 == 0 ? 256u : 96u}, 0});
    partition.gradients.owners.push_back(i / 2 * 7 % 4);
  }
  partition.weights = partition.gradients;
  const Owned owned = owners_of(model, partition);
  for (const OwnedRun& run : owned.runs)
    EXPECT_EQ(run.owner, partition.gradients.owners[run.param]);
  // One rank has all: balance goes first.
  partition.gradients.owners.assign(40, 2);
  partition.weights = partition.gradients;
  const Loads loads = loads_of(owners_of(model, partition), 4);
  EXPECT_LE(loads.most(), 1.05 * loads.mean);
}

std::map<std::uint32_t, std::uint64_t> runs_by_owner(const Owned& owned, std::uint32_t param) {
  std::map<std::uint32_t, std::uint64_t> runs;
  for (const OwnedRun& run : owned.runs) runs[run.owner] += run.param == param ? 1 : 0;
  return runs;
}

TEST(Owners, OfAStackLieWhereItsMatricesDo) {
  ModelSpec model;
  model.groups = {MuonSpec::keller()};
  model.params = {{"up", {128, 48, 32}, 0}, {"down", {128, 32, 48}, 0}};
  for (const Policy policy : {Policy::rows, Policy::zero3})
    for (const std::uint32_t ranks : {2u, 8u}) {
      const Owned owned = owners_of(model, over(ranks, policy));
      EXPECT_EQ(travel_of(owned).elems, 0u) << name_of(policy);
      EXPECT_LE(loads_of(owned, ranks).most(), 1.0001 * loads_of(owned, ranks).mean);
    }
}

// Each owner's lie side by side where nobody has a reason for more.
TEST(Owners, OfAStackAreAsManyAsItHasMatrices) {
  ModelSpec model;
  model.groups = {MuonSpec::keller()};
  model.params = {{"experts", {128, 48, 32}, 0}};
  for (const std::uint32_t ranks : {8u, 100u, 128u, 1000u}) {
    const Owned owned = owners_of(model, over(ranks, Policy::replicated));
    const auto runs = runs_by_owner(owned, 0);
    EXPECT_EQ(runs.size(), std::min(ranks, 128u));
    for (const auto& [owner, count] : runs) EXPECT_EQ(count, 1u) << owner;
    EXPECT_EQ(owned.runs.size(), runs.size());
  }
}

// Of the copies of a shard each takes its part.
TEST(Owners, OfCopiesAreAllRanks) {
  for (const Policy policy : {Policy::zero12, Policy::zero12_boundary}) {
    const Layout::Spec spec{.policy = policy, .mesh = {4, 4}};
    const Owned owned =
        owners_of(without_adam(real_model("llama-3-8b")), {.gradients = spec, .weights = spec});
    const Loads loads = loads_of(owned, 16);
    EXPECT_LE(loads.most(), 1.05 * loads.mean);
    const Travel travel = travel_of(owned);
    EXPECT_EQ(travel.elems, travel.least) << name_of(policy);
  }
}

}  // namespace
}  // namespace ebb::libmuon
