#include "ebb/libmuon/plan/state_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "ebb/formats/core/digest.h"
#include "ebb/libmuon/plan/block_borders.h"
#include "tests/support/cpu_time.h"

namespace ebb {

namespace {

using libmuon::Action;
using libmuon::AdamSpec;
using libmuon::ModelSpec;
using libmuon::MuonSpec;
using libmuon::Placement;
using libmuon::StateDTypes;
using libmuon::StatePlan;
using libmuon::TileEntry;
using libmuon::TileKind;
using libmuon::Visit;

constexpr std::uint64_t kRoom = 1u << 28;  // for any two updates
const StateDTypes kHalfMomentum = {{"momentum_buffer", DType::bf16}};

ModelSpec model_of_many_shapes() {
  ModelSpec model;
  model.groups = {MuonSpec::keller(), AdamSpec{}};
  model.params = {{"a", {64, 32}, 0}, {"norm", {33}, 1},    {"b", {100, 100}, 0}, {"c", {8, 8}, 0},
                  {"d", {7, 3}, 0},   {"emb", {50, 16}, 1}, {"e", {1, 5}, 0}};
  return model;
}

libmuon::PartitionSpec over(std::uint32_t ranks, Policy policy) {
  return {.gradients = {.policy = policy, .mesh = {ranks, 1}},
          .weights = {.policy = Policy::replicated, .mesh = {ranks, 1}}};
}

const Shape& shape_of(const ModelSpec& model, const StatePlan& plan,
                      const formats::native::Segment& segment) {
  if (segment.param < model.params.size()) return model.params[segment.param].shape;
  return plan.derived()[segment.param - model.params.size()].shape;
}

// (param, state) -> how often each element is held, over all ranks.
using Counts = std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<int>>;

Counts count_elements(const ModelSpec& model, std::uint32_t ranks, Policy policy,
                      std::uint64_t tile_bytes, const StateDTypes& dtypes) {
  Counts counts;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const auto plan =
        StatePlan::make(model, over(ranks, policy), tile_bytes, Rank{rank}, kRoom, dtypes);
    EXPECT_TRUE(plan) << plan.error().message;
    for (const TileEntry& tile : (*plan).tiles()) {
      for (const auto& segment : (*plan).segments(tile)) {
        EXPECT_LE(segment.offset + segment.count * bytes_of(segment.dtype), tile_bytes);
        auto& held = counts[{segment.param, segment.state}];
        held.resize(formats::volume(shape_of(model, *plan, segment)));
        for (std::uint64_t i = 0; i < segment.count; ++i) ++held[segment.first + i];
      }
    }
  }
  return counts;
}

TEST(StatePlan, HoldsEveryElementOfEveryStateOnceOverAllRanks) {
  const ModelSpec model = model_of_many_shapes();
  for (const Policy policy :
       {Policy::replicated, Policy::zero12, Policy::zero12_boundary, Policy::zero3, Policy::rows})
    for (const std::uint32_t ranks : {1u, 2u, 3u, 8u})
      for (const std::uint64_t tile : {4096u, 65536u})
        for (const StateDTypes& dtypes : {StateDTypes(), kHalfMomentum}) {
          const Counts counts = count_elements(model, ranks, policy, tile, dtypes);
          EXPECT_EQ(counts.size(), 5u * 2 + 2u * 3) << "two states a matrix, three a vector";
          for (const auto& [key, held] : counts)
            for (const int times : held) ASSERT_EQ(times, 1) << model.params[key.first].name;
        }
}

// What a launcher got wrong, say: it ended the program.
TEST(StatePlan, OfARankOutsideOfTheWorldIsRefused) {
  for (const Placement placement : {Placement::owner, Placement::shard}) {
    auto partition = over(2, Policy::zero3);
    partition.placement = placement;
    const auto plan = StatePlan::make(model_of_many_shapes(), partition, 4096, Rank{2}, kRoom);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, Code::usage);
    EXPECT_EQ(plan.error().message, "rank 2 in a world of 2");
  }
}

// M0 M1 W0 M2 W1 ...: an item's masters come behind its own momentum and the next item's, and
// before the one after that needs the place of its update.
TEST(StatePlan, SchedulesTheMastersOfAnItemBehindTheMomentumOfTheNext) {
  for (const std::uint64_t tile_bytes : {4096u, 8192u, 65536u}) {
    const auto plan = StatePlan::make(model_of_many_shapes(), over(1, Policy::zero12), tile_bytes,
                                      Rank{0}, kRoom);
    ASSERT_TRUE(plan);
    const auto schedule = (*plan).schedule();
    std::vector<int> visited((*plan).tiles().size());
    std::map<std::pair<TileKind, std::uint32_t>, std::uint64_t> elems;
    for (const Visit& visit : schedule) {
      ++visited[visit.tile];
      const TileEntry& entry = (*plan).entry(visit);
      if (entry.kind == TileKind::adam) continue;
      EXPECT_EQ((elems[{entry.kind, entry.item}]), entry.first) << "a tile out of order";
      elems[{entry.kind, entry.item}] += entry.count;
      const auto whole = [&](TileKind kind, std::uint32_t item) {
        return elems[{kind, item}] == (*plan).items()[item].elems;
      };
      if (entry.kind == TileKind::masters) {
        EXPECT_TRUE(whole(TileKind::momentum, entry.item));
        const bool last = entry.item + 2 == (*plan).items().size();  // behind it lies AdamW's
        EXPECT_TRUE(last || whole(TileKind::momentum, entry.item + 1)) << entry.item;
      } else if (entry.item >= 2) {
        EXPECT_TRUE(whole(TileKind::masters, entry.item - 2)) << entry.item;
      }
    }
    for (const int times : visited) EXPECT_EQ(times, 1);
  }
}

ModelSpec model_with_moments() {
  ModelSpec model = model_of_many_shapes();
  model.groups.push_back(MuonSpec::keller());
  std::get<MuonSpec>(model.groups[0]).second_moment = libmuon::SecondMoment::rows;
  std::get<MuonSpec>(model.groups[2]).second_moment = libmuon::SecondMoment::longer;
  model.params.push_back({"wide", {3, 60, 90}, 2});
  model.params.push_back({"tall", {90, 60}, 2});
  return model;
}

TEST(StatePlan, HoldsEverySecondMomentOnceInTheShapeOfItsOwn) {
  const ModelSpec model = model_with_moments();
  for (const std::uint32_t ranks : {1u, 2u, 5u})
    for (const std::uint64_t tile : {4096u, 65536u})
      for (const StateDTypes& dtypes : {StateDTypes(), kHalfMomentum}) {
        const Counts counts = count_elements(model, ranks, Policy::zero12, tile, dtypes);
        EXPECT_EQ(counts.size(), 7u * 3 + 2u * 3);
        std::uint64_t moments = 0;
        for (const auto& [key, held] : counts) {
          for (const int times : held) ASSERT_EQ(times, 1);
          if (key.first >= model.params.size()) moments += held.size();
        }
        EXPECT_EQ(moments, 64u + 100 + 8 + 7 + 1 + 3 * 90 + 90);
      }
}

// M where momentum moves, W where masters do, and `other` at what else Muon visits.
std::map<std::uint32_t, std::string> visits_of_items(const StatePlan& plan, char other) {
  std::map<std::uint32_t, std::string> seen;
  for (const Visit& visit : plan.schedule())
    if (visit.action != Action::local)
      seen[visit.item] += visit.action == Action::prepare  ? 'M'
                          : visit.action == Action::finish ? 'W'
                                                           : other;
  return seen;
}

// Behind the last momentum, before the first masters, once for each item that has some.
TEST(StatePlan, VisitsSecondMomentsBetweenTheMomentumOfAnItemAndItsMasters) {
  for (const std::uint64_t room : {std::uint64_t{1}, kRoom})
    for (const std::uint64_t tile_bytes : {4096u, 65536u}) {
      const auto plan =
          StatePlan::make(model_with_moments(), over(1, Policy::zero12), tile_bytes, Rank{0}, room);
      ASSERT_TRUE(plan);
      std::uint64_t tiles = 0;
      for (const TileEntry& entry : (*plan).tiles())
        tiles += entry.kind == TileKind::moments ? 1 : 0;
      EXPECT_EQ(tiles, 1u) << "all of them share it";
      for (const auto& [item, visits] : visits_of_items(*plan, 'V')) {
        const std::size_t at = visits.find('V');
        ASSERT_NE(at, visits.npos) << item;
        EXPECT_EQ(visits.substr(0, at).find('W'), visits.npos) << visits;
        EXPECT_EQ(visits.substr(at + 1).find_first_not_of('W'), visits.npos) << visits;
      }
    }
}

// Masters are read before the momentum of an item in which some decay in the gradient.
TEST(StatePlan, ReadsTheMastersOfAnItemBeforeItsMomentumWhereTheyDecayInTheGradient) {
  ModelSpec model = model_of_many_shapes();
  model.groups.push_back(MuonSpec::keller());
  std::get<MuonSpec>(model.groups[2]).decay = libmuon::Decay::l2;
  model.params[2].group = 2;  // b, which has an item of its own
  const auto plan = StatePlan::make(model, over(1, Policy::zero12), 4096, Rank{0}, kRoom);
  ASSERT_TRUE(plan);
  const std::uint32_t tiles = 10;  // of 10,000 elements
  std::size_t decaying = 0;
  for (const auto& [item, visits] : visits_of_items(*plan, 'w')) {
    const bool b = (*plan).items()[item].parts.front().param == 2;
    decaying += b ? 1 : 0;
    EXPECT_EQ(visits.find('w') != visits.npos, b) << visits;
    if (b) {
      EXPECT_EQ(visits,
                std::string(tiles, 'w') + std::string(tiles, 'M') + std::string(tiles, 'W'));
    }
  }
  EXPECT_EQ(decaying, 1u);
}

TEST(StatePlan, PutsSmallMatricesIntoOneItem) {
  const auto plan =
      StatePlan::make(model_of_many_shapes(), over(1, Policy::zero12), 65536, Rank{0}, kRoom);
  ASSERT_TRUE(plan);
  EXPECT_EQ((*plan).tiles().size(), 3u) << "all matrices' momentum, all masters, all AdamW";
}

TEST(StatePlan, BalancesOwnersWithinTheLargestMatrix) {
  ModelSpec model;
  model.groups = {MuonSpec::keller()};
  for (int i = 0; i < 40; ++i)
    model.params.push_back(
        {std::to_string(i), {256u + 16u * static_cast<unsigned>(i % 5), 256}, 0});
  double most = 0, total = 0;
  for (std::uint32_t rank = 0; rank < 8; ++rank) {
    const auto plan = StatePlan::make(model, over(8, Policy::zero12), 65536, Rank{rank}, kRoom);
    ASSERT_TRUE(plan);
    most = std::max(most, (*plan).newton_schulz_flops());
    total += (*plan).newton_schulz_flops();
  }
  EXPECT_LE(most, 1.05 * total / 8);
}

TEST(StatePlan, IsIdenticalOnAllRanksAsFarAsItsDigestGoes) {
  std::uint64_t first = 0;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const auto plan =
        StatePlan::make(model_of_many_shapes(), over(4, Policy::zero3), 4096, Rank{rank}, kRoom);
    ASSERT_TRUE(plan);
    if (rank == 0) first = (*plan).digest();
    EXPECT_EQ((*plan).digest(), first);
  }
  const auto other =
      StatePlan::make(model_of_many_shapes(), over(4, Policy::zero3), 8192, Rank{0}, kRoom);
  ASSERT_TRUE(other);
  EXPECT_NE((*other).digest(), first);
}

// Of what lies in which tile, in order: what a store that exists is compared with.
std::uint64_t places_of(const StatePlan& plan) {
  formats::Digest digest;
  for (const TileEntry& tile : plan.tiles())
    for (const auto& segment : plan.segments(tile))
      for (const std::uint64_t number : {std::uint64_t{segment.param}, std::uint64_t{segment.state},
                                         static_cast<std::uint64_t>(segment.dtype), segment.first,
                                         segment.count, segment.offset})
        digest.add(number);
  return digest.value();
}

// The numbers are those of the first stores: what they hold is resumed, not transferred.
TEST(StatePlan, LaysFp32StateWhereEarlierVersionsDid) {
  const auto numbers = [](std::uint32_t ranks, std::uint64_t tile_bytes) {
    const auto plan = StatePlan::make(model_of_many_shapes(), over(ranks, Policy::zero3),
                                      tile_bytes, Rank{ranks - 1}, kRoom);
    EXPECT_TRUE(plan);
    return std::pair((*plan).digest(), places_of(*plan));
  };
  using Numbers = std::pair<std::uint64_t, std::uint64_t>;
  EXPECT_EQ(numbers(1, 4096), Numbers(7019580210395862170u, 11093498993229323885u));
  EXPECT_EQ(numbers(3, 8192), Numbers(915141242254217225u, 5813568410708195624u));
}

TEST(StatePlan, TakesAQuarterLessForMatricesWithMomentumInBf16) {
  ModelSpec model;
  model.groups = {MuonSpec::keller()};
  model.params = {{"a", {64, 64}, 0}, {"b", {32, 32}, 0}, {"c", {32, 32}, 0}};
  constexpr std::uint64_t kElems = 64 * 64 + 2 * 32 * 32;
  const auto with = [&](const StateDTypes& dtypes) {
    auto plan = StatePlan::make(model, over(1, Policy::zero12), 4096, Rank{0}, kRoom, dtypes);
    EXPECT_TRUE(plan);
    return std::move(*plan);
  };
  EXPECT_EQ(with({}).state_bytes(), 8 * kElems);
  EXPECT_EQ(with({}).tiles().size(), 8 * kElems / 4096);
  EXPECT_EQ(with(kHalfMomentum).state_bytes(), 6 * kElems);
  EXPECT_EQ(with(kHalfMomentum).tiles().size(), 6 * kElems / 4096);
}

// Which tile holds what differs exactly where a state that is there is kept as something else.
TEST(StatePlan, ItsDigestKnowsDtypesOfStatesThatAreThere) {
  const auto digest = [](const ModelSpec& model, const StateDTypes& dtypes) {
    const auto plan = StatePlan::make(model, over(2, Policy::zero3), 4096, Rank{0}, kRoom, dtypes);
    EXPECT_TRUE(plan);
    return (*plan).digest();
  };
  const ModelSpec model = model_of_many_shapes();
  EXPECT_EQ(digest(model, {{"momentum_buffer", DType::f32}}), digest(model, {}));
  EXPECT_NE(digest(model, kHalfMomentum), digest(model, {}));
  ModelSpec vectors;
  vectors.groups = {AdamSpec{}};
  vectors.params = {{"norm", {33}, 0}};
  EXPECT_EQ(digest(vectors, kHalfMomentum), digest(vectors, {}));
}

TEST(StatePlan, RefusesDtypesThatAStateCannotHaveByName) {
  const auto refused = [](const std::string& state, DType dtype) {
    const auto plan = StatePlan::make(model_of_many_shapes(), over(1, Policy::zero12), 4096,
                                      Rank{0}, kRoom, {{state, dtype}});
    EXPECT_FALSE(plan);
    return plan ? Error{Code::io, "accepted"} : plan.error();
  };
  for (const auto& [state, dtype] : {std::pair("master", DType::bf16),
                                     {"exp_avg", DType::bf16},
                                     {"exp_avg_sq", DType::f16},
                                     {"momentum_buffer", DType::f16}}) {
    const Error error = refused(state, dtype);
    EXPECT_EQ(error.code, Code::unsupported);
    EXPECT_EQ(error.message, compose("{} cannot be kept as {}", state, name_of(dtype)));
  }
  EXPECT_EQ(refused("master", DType::bf16).hint, "master may be F32, U16 and none");
  EXPECT_EQ(refused("momentum_buffer", DType::f16).hint, "momentum_buffer may be F32, BF16 and I8");
  EXPECT_EQ(refused("momentum", DType::bf16).code, Code::usage);
}

// Codes and scales of each matrix, from its first block on, whatever else is in its tile.
TEST(StatePlan, LaysMomentumInInt8AsWholeBlocksAndTheirScales) {
  ModelSpec model = model_of_many_shapes();
  MuonSpec split = MuonSpec::keller();
  split.split = {libmuon::Split::Kind::rows, {5, 2}};
  MuonSpec normalised = MuonSpec::keller();
  normalised.second_moment = libmuon::SecondMoment::rows;
  for (const MuonSpec& spec : {normalised, split}) model.groups.push_back(spec);
  const auto last = static_cast<std::uint32_t>(model.groups.size() - 1);
  model.params.push_back({"moments", {6, 9, 11}, last - 1});
  model.params.push_back({"stack", {6, 16, 48}, 0});  // three blocks each
  for (int i = 0; i < 300; ++i)  // their scales are not much less than their codes
    model.params.push_back({compose("small.{}", i), {2, 5}, 0});
  model.params.push_back({"odd", {30, 9, 11}, 0});  // not whole ones: together
  model.params.push_back({"parts", {7, 60}, last});
  const StateDTypes int8 = {{"momentum_buffer", DType::i8}};
  for (const std::uint32_t ranks : {1u, 3u})
    for (const std::uint64_t tile_bytes : {4096u, 65536u}) {
      std::map<std::uint32_t, std::vector<int>> codes, scales;  // by parameter
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const auto plan =
            StatePlan::make(model, over(ranks, Policy::zero3), tile_bytes, Rank{rank}, kRoom, int8);
        ASSERT_TRUE(plan);
        std::uint64_t bytes = 0;
        for (std::uint32_t param = 0; param < model.params.size(); ++param)
          for (const auto& whole : (*plan).matrix_runs(param))
            EXPECT_EQ(formats::overlap((*plan).run_of(param, whole.range.first).range, whole.range),
                      whole.range)
                << "cut between owners";
        for (const TileEntry& tile : (*plan).tiles()) {
          std::uint64_t end = 0;
          for (const auto& segment : (*plan).segments(tile)) {
            EXPECT_GE(segment.offset, end) << "one behind the other";
            end = segment.offset + segment.count * bytes_of(segment.dtype);
            EXPECT_LE(end, tile_bytes);
            bytes += segment.count * bytes_of(segment.dtype);
            const std::string& state = (*plan).columns().names()[segment.state];
            const bool own = segment.param < model.params.size();
            const bool moments =
                !own && (*plan).derived()[segment.param - model.params.size()].of ==
                            StatePlan::Derived::Of::moments;
            EXPECT_EQ(state == "second_momentum_buffer", moments);
            if (moments) continue;
            EXPECT_EQ(state == "momentum_buffer.scale", !own);
            if (own && state != "momentum_buffer") continue;
            EXPECT_EQ(segment.encoding, own ? formats::native::block_encoding(256) : 0);
            EXPECT_EQ(segment.dtype, own ? DType::i8 : DType::f32);
            EXPECT_TRUE(!own || segment.first % 256 == 0);
            auto& held = (own ? codes : scales)[(*plan).param_of(segment)];
            held.resize(formats::volume(shape_of(model, *plan, segment)));
            for (std::uint64_t i = 0; i < segment.count; ++i) ++held[segment.first + i];
          }
        }
        EXPECT_EQ((*plan).state_bytes(), bytes);
      }
      EXPECT_EQ(codes.size(), scales.size());
      for (const auto* all : {&codes, &scales})
        for (const auto& [param, held] : *all)
          EXPECT_TRUE(std::ranges::all_of(held, [](int times) { return times == 1; })) << param;
    }
  const auto plan = StatePlan::make(model, over(1, Policy::zero3), 4096, Rank{0}, kRoom, int8);
  ASSERT_TRUE(plan);
  const auto wholes = [&](std::size_t back) {
    return (*plan).matrix_runs(static_cast<std::uint32_t>(model.params.size() - back)).size();
  };
  EXPECT_EQ(wholes(303), 6u);
  EXPECT_EQ(wholes(2), 1u);
  EXPECT_EQ(wholes(1), 1u);
}

TEST(StatePlan, ABorderOfShardsInsideABlockIsRefusedByName) {
  ModelSpec model;
  model.groups = {MuonSpec::keller(), AdamSpec{}};
  model.params = {{"whole", {16, 128}, 0}, {"cut", {15, 100}, 0}, {"norm", {33}, 1}};
  const std::vector<Shape> shapes = {{16, 128}, {15, 100}, {33}};
  const auto check = [&](std::uint32_t shards, const StateDTypes& dtypes) {
    const auto columns = libmuon::Columns::make(dtypes);
    EXPECT_TRUE(columns);
    auto layout = Layout::make({.policy = Policy::zero3, .mesh = {shards, 1}}, shapes);
    EXPECT_TRUE(layout);
    const Result<> checked =
        check_block_borders(model, *columns, libmuon::ModelLayout(std::move(*layout)));
    return checked ? std::string() : checked.error().message;
  };
  const StateDTypes int8 = {{"momentum_buffer", DType::i8}};
  EXPECT_EQ(check(1, int8), "");
  EXPECT_EQ(check(2, int8),
            "parameter cut: shard 1 begins with element 750, inside a block of 256 that share a "
            "scale");
  EXPECT_EQ(check(2, kHalfMomentum), "");
}

// As many tiles again, four times as many parameters: the same work for each of them.
TEST(StatePlan, FindsATilesPartsInTimeThatGrowsWithTheModelOnly) {
  const auto seconds = [](std::uint64_t params) {
    ModelSpec model;
    model.groups = {AdamSpec{}};
    for (std::uint64_t i = 0; i < params; ++i)
      model.params.push_back({std::to_string(i), {1024}, 0});
    const auto plan = StatePlan::make(model, over(1, Policy::zero12), 4096, Rank{0}, kRoom);
    EXPECT_TRUE(plan);
    return test_support::least_cpu_seconds(3, [&] {
      std::uint64_t spans = 0;
      for (const TileEntry& tile : (*plan).tiles()) spans += (*plan).spans(tile).size();
      EXPECT_GE(spans, params);
    });
  };
  const double few = seconds(5'000), many = seconds(20'000);
  EXPECT_LT(many, 10 * few + 0.01) << "four times as much to find in " << few << " s";
}

// Of a tensor of many experts only two updates are in memory at once; those of q, k and v, whose
// rows lie in one another, are one.
TEST(StatePlan, TheMatricesOfAStackAreItemsOfTheirOwn) {
  ModelSpec model;
  MuonSpec fused = MuonSpec::keller();
  fused.split = {libmuon::Split::Kind::groups, {4, 2, 2}};
  model.groups = {MuonSpec::keller(), fused};
  model.params = {{"experts", {50, 32, 40}, 0}, {"qkv", {2, 48, 20}, 1}};
  const auto plan = StatePlan::make(model, over(1, Policy::zero12), 4096, Rank{0}, kRoom);
  ASSERT_TRUE(plan);
  EXPECT_EQ((*plan).order().room(), 2u * 32 * 40);
  EXPECT_EQ((*plan).items().size(), 50u + 2);
  std::uint64_t matrices = 0;
  for (const auto& item : (*plan).items())
    for (const auto& batch : libmuon::batches_of(model, item)) {
      EXPECT_EQ(batch.item_first % 20, 0u);
      matrices += batch.count;
    }
  EXPECT_EQ(matrices, 50u + 2 * 3);
  // Another split puts state in other places.
  std::get<MuonSpec>(model.groups[0]).dims = libmuon::Dims::flatten;
  const auto flat = StatePlan::make(model, over(1, Policy::zero12), 4096, Rank{0}, kRoom);
  ASSERT_TRUE(flat);
  EXPECT_NE((*flat).digest(), (*plan).digest());
  EXPECT_EQ((*flat).order().room(), 2u * 50 * 32 * 40);
}

TEST(StatePlan, RefusesWhatCannotBePlannedByName) {
  ModelSpec model = model_of_many_shapes();
  model.params.push_back({"bias", {24}, 0});
  auto plan = StatePlan::make(model, over(1, Policy::zero12), 4096, Rank{0}, kRoom);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().message, "parameter bias is in a Muon group but is no matrix: shape [24]");

  model = model_of_many_shapes();
  model.params.push_back({"qkv", {2, 10, 4}, static_cast<std::uint32_t>(model.groups.size())});
  MuonSpec split = MuonSpec::keller();
  split.split = {libmuon::Split::Kind::groups, {2, 1, 1}};
  model.groups.push_back(split);
  plan = StatePlan::make(model, over(1, Policy::zero12), 4096, Rank{0}, kRoom);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::layout);
  EXPECT_EQ(
      plan.error().message,
      "parameter qkv, shape [2, 10, 4]: its 10 rows are not a multiple of the 4 of the split");

  model = model_of_many_shapes();
  model.params.push_back({"a", {2}, 1});
  plan = StatePlan::make(model, over(1, Policy::zero12), 4096, Rank{0}, kRoom);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().message, "parameter a is named twice");

  model = model_of_many_shapes();
  model.params.push_back({"none", {0, 4}, 0});
  plan = StatePlan::make(model, over(1, Policy::zero12), 4096, Rank{0}, kRoom);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::layout);
}

}  // namespace

}  // namespace ebb
