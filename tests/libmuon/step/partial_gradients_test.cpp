// Gradients that ranks hand in as parts of a sum: the step is that of the sum, made in the order of
// the ranks, of which the norm and the flag are.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <string>

#include "ebb/formats/core/bf16.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"

namespace ebb::test::partial_gradients_tests {
namespace {

using libmuon::Communicator;
using libmuon::Engine;
using libmuon::EngineConfig;
using libmuon::HandIn;
using libmuon::PartialSums;
using libmuon::StatePlan;

constexpr std::uint64_t kSteps = 4, kPoisoned = 2;
constexpr std::uint32_t kPoisonedParam = 3, kAbsent = 7;  // the second in step 3

// Whether no rank has a gradient of the parameter in the step.
using Absent = std::function<bool(std::uint32_t param, std::uint64_t step)>;
bool one_absent(std::uint32_t param, std::uint64_t step) { return param == kAbsent && step == 3; }

// The part that a rank has of an element.
float part_of(std::uint32_t rank, std::uint32_t param, std::uint64_t step, std::uint64_t element,
              DType dtype) {
  if (step == kPoisoned && rank == 1 && param == kPoisonedParam && element == 24 * 24 - 1)
    return std::numeric_limits<float>::quiet_NaN();
  // Of many sizes: sums are rounded, so their order counts.
  const float part = noise(param, step + 1000 * (rank + 1), element) *
                     noise(param + 100, step + 1000 * (rank + 1), element);
  return dtype == DType::bf16 ? formats::bf16_to_f32(formats::f32_to_bf16(part)) : part;
}

struct Case {
  std::string name;
  EngineConfig config;
};

EngineConfig with_partition(libmuon::PartitionSpec partition, std::uint64_t chunk_bytes) {
  EngineConfig config{.model = nuisance_model(),
                      .partition = std::move(partition),
                      .budget_bytes = kLittle,
                      .tile_bytes = 4096,
                      .chunk_bytes = chunk_bytes};
  config.partition.hand_in = HandIn::partial;
  return config;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, libmuon::PartitionSpec partition) {
    for (const auto placement : kPlacements)
      for (const std::uint64_t chunk_bytes : {std::uint64_t{6000}, std::uint64_t{1} << 28}) {
        partition.placement = placement;
        all.push_back({compose("{}, chunks of {}, placement {}", name, chunk_bytes,
                               libmuon::name_of(placement)),
                       with_partition(partition, chunk_bytes)});
      }
  };
  const auto spec = [](Policy policy, std::uint32_t shards, std::uint32_t copies) {
    return Layout::Spec{.policy = policy, .mesh = {shards, copies}, .align_elems = 16};
  };
  for (const std::uint32_t ranks : {1u, 2u, 3u})
    add(compose("{} ranks", ranks), {.gradients = spec(Policy::replicated, ranks, 1),
                                     .weights = spec(Policy::zero3, ranks, 1)});
  add("HSDP", {.gradients = spec(Policy::zero3, 2, 2), .weights = spec(Policy::zero3, 2, 2)});
  add("HSDP of flat shards",
      {.gradients = spec(Policy::zero12, 2, 2), .weights = spec(Policy::replicated, 4, 1)});
  add("no copies", {.gradients = spec(Policy::rows, 2, 1), .weights = spec(Policy::rows, 2, 1)});
  return all;
}

// The sum of an element's parts, as plain arithmetic has it.
std::vector<float> sum_of(const EngineConfig& config, std::uint32_t param, std::uint64_t step) {
  std::vector<float> sum(formats::volume(config.model.params[param].shape));
  std::vector<bool> begun(sum.size(), false);
  for (std::uint32_t rank = 0; rank < libmuon::world_of(config.partition); ++rank) {
    const auto plan = StatePlan::make(config.model, config.partition, config.tile_bytes, Rank{rank},
                                      config.chunk_bytes);
    EXPECT_TRUE(plan);
    const FlatRange held = (*plan).gradients().held(param, Rank{rank});
    for (std::uint64_t i = held.first; i < held.first + held.count; ++i) {
      const float part = part_of(rank, param, step, i, config.model.params[param].gradient);
      sum[i] = begun[i] ? sum[i] + part : part;
      begun[i] = true;
    }
  }
  return sum;
}

struct Trained {
  std::vector<std::vector<float>> weights;  // by rank
  std::vector<libmuon::StepResult> results;
  std::vector<std::vector<std::uint64_t>> sent;  // by rank, in each step
};

// Hands in what `gradient` says of what a rank holds.
using Gradient = std::function<std::vector<float>(std::uint32_t rank, std::uint32_t param,
                                                  std::uint64_t step, FlatRange held)>;
Result<> hand_in(RankEngine& rank, std::uint64_t step, const EngineConfig& config,
                 const Gradient& gradient, const Absent& absent,
                 std::vector<std::vector<std::uint16_t>>& narrow) {
  const StatePlan& plan = rank.engine().state_plan();
  narrow.resize(plan.params());
  for (std::uint32_t param = 0; param < plan.params(); ++param) {
    if (absent(param, step)) {
      EBB_TRY(rank.engine().no_gradient(param, libmuon::WithoutGradient::untouched));
      continue;
    }
    auto& values = rank.gradients()[param];
    values =
        gradient(index_of(plan.rank()), param, step, plan.gradients().held(param, plan.rank()));
    if (config.model.params[param].gradient == DType::f32) {
      EBB_TRY(rank.engine().gradient_ready(param, values));
      continue;
    }
    narrow[param].clear();
    for (const float value : values) narrow[param].push_back(formats::f32_to_bf16(value));
    const auto bytes = std::as_writable_bytes(std::span(narrow[param]));
    EBB_TRY(rank.engine().gradient_ready(param, libswap::buffer_of(bytes).as(DType::bf16)));
  }
  return {};
}

Trained train_with(const EngineConfig& config, const Gradient& gradient,
                   const Absent& absent = one_absent) {
  const std::uint32_t ranks = libmuon::world_of(config.partition);
  Trained trained{.weights = std::vector<std::vector<float>>(ranks),
                  .sent = std::vector<std::vector<std::uint64_t>>(ranks)};
  World world(libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 28)), "/swap", ranks);
  expect_well(world.run([&](Communicator& real) -> Result<> {
    const std::uint32_t me = index_of(real.rank());
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, real, config));
    std::vector<std::vector<std::uint16_t>> narrow;
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      const std::uint64_t before = rank.engine().stats().sent_bytes;
      EBB_TRY(hand_in(rank, step, config, gradient, absent, narrow));
      EBB_TRY_ASSIGN(const auto result, rank.step({.inv_scale = 0.5, .max_norm = 3}));
      if (me == 0) trained.results.push_back(result);
      trained.sent[me].push_back(rank.engine().stats().sent_bytes - before);
    }
    trained.weights[me] = rank.flat_weights();
    return {};
  }));
  return trained;
}

EngineConfig in_bf16(EngineConfig config) {
  for (std::size_t i = 0; i < config.model.params.size(); i += 2)
    config.model.params[i].gradient = DType::bf16;
  return config;
}

// Against an engine on the same ranks that is handed what has been added up.
void expect_the_sums_bits(const EngineConfig& given, const std::string& what,
                          const Absent& absent = one_absent) {
  EngineConfig config = given;
  add_what_tiles_need_beside(config);
  const Trained parts = train_with(
      config,
      [&](std::uint32_t rank, std::uint32_t param, std::uint64_t step, FlatRange held) {
        std::vector<float> values;
        for (std::uint64_t i = held.first; i < held.first + held.count; ++i)
          values.push_back(part_of(rank, param, step, i, config.model.params[param].gradient));
        return values;
      },
      absent);
  EngineConfig reduced = given;
  reduced.partition.hand_in = HandIn::reduced;
  for (auto& param : reduced.model.params) param.gradient = DType::f32;
  add_what_tiles_need_beside(reduced);
  const Trained sums = train_with(
      reduced,
      [&](std::uint32_t, std::uint32_t param, std::uint64_t step, FlatRange held) {
        const auto all = sum_of(given, param, step);
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(held.first);
        return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(held.count));
      },
      absent);
  EXPECT_TRUE(parts.weights == sums.weights) << what;
  ASSERT_EQ(parts.results.size(), sums.results.size()) << what;
  for (std::size_t i = 0; i < sums.results.size(); ++i) {
    EXPECT_EQ(parts.results[i].skipped, sums.results[i].skipped) << what;
    if (sums.results[i].skipped) continue;
    EXPECT_EQ(parts.results[i].norm, sums.results[i].norm) << what;
    EXPECT_EQ(parts.results[i].clip, sums.results[i].clip) << what;
  }
  if (given.partition.gradients.policy == Policy::replicated) {
    EXPECT_EQ(parts.results[1].skipped, parts.sent.size() > 1) << what;  // rank 1 has a NaN
  }
}

TEST(PartialGradients, GiveTheBitsOfTheirSumWhateverBecomesOfIt) {
  for (const Case& c : cases())
    for (const PartialSums sums : {PartialSums::made_twice, PartialSums::kept})
      for (const bool bf16 : {false, true}) {
        EngineConfig config = bf16 ? in_bf16(c.config) : c.config;
        config.partial_sums = sums;
        expect_the_sums_bits(
            config, compose("{}, {}{}", c.name, sums == PartialSums::kept ? "kept" : "made twice",
                            bf16 ? ", bf16" : ""));
      }
}

// As where a router sends no token to some experts: other parameters in every step. Rounds are cut
// of all that is planned, whatever of it travels.
TEST(PartialGradients, TakeTheRoomThatWasPlannedWhicheverOfThemAreAbsent) {
  const auto spec = [](std::uint32_t shards, std::uint32_t copies) {
    const Policy policy = copies > 1 ? Policy::zero3 : Policy::replicated;
    return Layout::Spec{.policy = policy, .mesh = {shards, copies}, .align_elems = 16};
  };
  std::uint64_t draw = 0;
  for (const auto& gradients : {spec(3, 1), spec(4, 1), spec(2, 2)})
    for (const auto placement : kPlacements)
      for (const std::uint64_t chunk_bytes : {6000u, 15000u, 30000u, 60000u, 100000u}) {
        const std::uint64_t pattern = ++draw;
        const auto absent = [pattern](std::uint32_t param, std::uint64_t step) {
          if (step == kPoisoned && param == kPoisonedParam) return false;
          return noise(pattern, step, param) < (pattern % 3 == 0 ? 0.3f : -0.5f);
        };
        expect_the_sums_bits(
            with_partition({.gradients = gradients, .weights = gradients, .placement = placement},
                           chunk_bytes),
            compose("pattern {}, chunks of {}, placement {}", pattern, chunk_bytes,
                    libmuon::name_of(placement)),
            absent);
      }
}

// Parts that travel where each goes to one rank that has one, too: all, or those of matrices.
std::uint64_t bytes_of_parts(const EngineConfig& config, bool of_all) {
  const libmuon::ModelSpec& model = config.model;
  std::uint64_t bytes = 0;
  for (const auto& param : model.params)
    if (of_all || std::holds_alternative<libmuon::MuonSpec>(model.groups[param.group]))
      bytes += formats::volume(param.shape) * bytes_of(param.gradient);
  return bytes * (config.partition.gradients.mesh.ranks() - 1);
}

// Each part once, or twice if it is a matrix's, to where it is used; a step that is skipped has
// moved them once.
TEST(PartialGradients, MoveTheBytesThatWerePlanned) {
  for (const Case& c : cases()) {
    std::array<std::uint64_t, 2> all{}, skipped{};
    for (const bool twice : {false, true}) {
      EngineConfig config = in_bf16(c.config);
      config.partial_sums = twice ? PartialSums::made_twice : PartialSums::kept;
      add_what_tiles_need_beside(config);
      const Trained trained = train_with(
          config, [](std::uint32_t rank, std::uint32_t, std::uint64_t step, FlatRange held) {
            const float value =
                rank == 0 && step == kPoisoned ? std::numeric_limits<float>::infinity() : 0.5f;
            return std::vector<float>(held.count, value);
          });
      for (std::uint32_t rank = 0; rank < trained.sent.size(); ++rank) {
        const auto plan = Engine::plan(config, Rank{rank});
        ASSERT_TRUE(plan);
        EXPECT_EQ(trained.sent[rank][0], (*plan).step_sent_bytes) << c.name;
        EXPECT_EQ(trained.sent[rank][3], (*plan).step_sent_bytes) << c.name;
        all[twice ? 1 : 0] += (*plan).step_sent_bytes;
        skipped[twice ? 1 : 0] += trained.sent[rank][1];
      }
    }
    EXPECT_EQ(skipped[0], skipped[1]) << c.name;
    if (c.config.partition.gradients.policy != Policy::replicated) continue;
    EXPECT_EQ(skipped[0], bytes_of_parts(in_bf16(c.config), true)) << c.name;
    EXPECT_EQ(all[1] - all[0], bytes_of_parts(in_bf16(c.config), false)) << c.name;
  }
}

class CountingRanks : public RanksBelow {
 public:
  CountingRanks(std::unique_ptr<Communicator> below, std::atomic<std::uint64_t>& exchanges)
      : RanksBelow(std::move(below)), exchanges_(exchanges) {}
  Result<libswap::Event> begin_exchange(std::span<const libmuon::SendBuffer> sends,
                                        std::span<const libmuon::ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    ++exchanges_;
    return RanksBelow::begin_exchange(sends, receives, after);
  }
  Result<std::unique_ptr<Communicator>> duplicate() override {
    EBB_TRY_ASSIGN(auto below, RanksBelow::duplicate());
    return std::unique_ptr<Communicator>(
        std::make_unique<CountingRanks>(std::move(below), exchanges_));
  }

 private:
  std::atomic<std::uint64_t>& exchanges_;
};

// Of two ranks together, in a step.
std::uint64_t exchanges_of(std::uint64_t chunk_bytes) {
  const Layout::Spec both{.policy = Policy::replicated, .mesh = {2, 1}, .align_elems = 16};
  EngineConfig config = with_partition({.gradients = both, .weights = both}, chunk_bytes);
  config.model.params = {{"matrix", {48, 40}, 0}};
  add_what_tiles_need_beside(config);
  std::atomic<std::uint64_t> exchanges = 0;
  World world(libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 26)), "/swap", 2);
  expect_well(world.run([&](Communicator& real) -> Result<> {
    EBB_TRY_ASSIGN(auto below, real.duplicate());
    CountingRanks counting(std::move(below), exchanges);
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, counting, config));
    EBB_TRY(real.agree(0));
    if (real.rank() == Rank{0}) exchanges = 0;  // those of opening
    EBB_TRY(real.agree(0));
    return step_to(rank, 1);
  }));
  return exchanges;
}

TEST(PartialGradients, OfTheSmallestChunkTravelByThePage) {
  const std::uint64_t by_the_page = exchanges_of(4096);
  EXPECT_GT(by_the_page, 0u);
  EXPECT_EQ(exchanges_of(1), by_the_page);
}

// P_own x 4 bytes more, but for what is staged of a chunk at a time.
TEST(PartialGradients, ThatAreKeptTakeRoomThatIsPlanned) {
  for (const Case& c : cases())
    for (std::uint32_t rank = 0; rank < libmuon::world_of(c.config.partition); ++rank) {
      EngineConfig config = c.config;
      config.budget_bytes = 1u << 30;
      const auto twice = Engine::plan(config, Rank{rank});
      config.partial_sums = PartialSums::kept;
      const auto kept = Engine::plan(config, Rank{rank});
      ASSERT_TRUE(twice && kept);
      const auto plan = StatePlan::make(config.model, config.partition, config.tile_bytes,
                                        Rank{rank}, config.chunk_bytes);
      std::uint64_t own = 0;
      for (std::uint32_t param = 0; param < (*plan).params(); ++param)
        for (const FlatRange range : (*plan).own_ranges(param)) own += range.count * sizeof(float);
      EXPECT_GE((*kept).staging_bytes, own) << c.name;
      EXPECT_LE((*kept).memory_bytes, (*twice).memory_bytes + own) << c.name;
      const bool by_lines = c.config.partition.placement == libmuon::Placement::owner;
      if (by_lines && (*twice).chunks > 4) {
        EXPECT_GT((*kept).memory_bytes, (*twice).memory_bytes + own / 4) << c.name;
      }
    }
}

TEST(PartialGradients, AreAddedUpAlikeOnAllRanks) {
  EngineConfig config = with_partition({.gradients = {.policy = Policy::replicated, .mesh = {2, 1}},
                                        .weights = {.policy = Policy::replicated, .mesh = {2, 1}}},
                                       1u << 20);
  config.budget_bytes = 1u << 30;
  FailingWorld failing;
  for (const auto& answer : failing.world.run([&](Communicator& ranks) -> Result<> {
         EngineConfig mine = config;
         if (ranks.rank() == Rank{1}) mine.partial_sums = PartialSums::kept;
         EBB_TRY(RankEngine::open(failing.world, ranks, mine));
         return {};
       })) {
    expect_error(answer, Code::usage, "what becomes of the sums");
    EXPECT_NE(answer.error().message.find("made twice on rank 0; kept on rank 1"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace ebb::test::partial_gradients_tests
