#include "ebb/formats/layout/reshard_plan.h"

#include <gtest/gtest.h>

#include "ebb/formats/core/bytes.h"
#include "tests/formats/layout/grids.h"

namespace ebb::formats {
namespace {

using oracle::Random;

// Every rank's elements per tensor, as the layout places them, without padding.
using Holdings = std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint64_t>>;

Holdings holdings(const Layout& layout) {
  Holdings out;
  for (std::uint32_t r = 0; r < layout.spec().mesh.world(); ++r)
    for (std::uint32_t t = 0; t < layout.tensors().size(); ++t)
      for (const Piece& piece : layout.pieces(t, Rank{r}))
        for (const std::uint64_t e : oracle::elements_of(layout.tensors()[t], piece.box))
          out[{r, t}].push_back(e);
  return out;
}

// Does what a move says, between two ranks' buffers.
void carry_out(const Move& move, const Holdings& from, Holdings& to) {
  const auto part = [&](auto& side, Rank rank, const Piece& piece) {
    return std::span(side.at({index_of(rank), move.tensor}))
        .subspan(piece.local_first, volume(piece.box.extent));
  };
  copy_region(move.region, {move.source.box, std::as_bytes(part(from, move.from, move.source))},
              {move.target.box, std::as_writable_bytes(part(to, move.to, move.target))}, 8);
}

std::vector<ReshardPlan> plans_of_all_ranks(const Layout& a, const Layout& b) {
  std::vector<ReshardPlan> plans;
  const std::uint32_t world = std::max(a.spec().mesh.world(), b.spec().mesh.world());
  for (std::uint32_t r = 0; r < world; ++r) {
    auto plan = ReshardPlan::between(a, b, Rank{r});
    EXPECT_TRUE(plan) << plan.error().message;
    plans.push_back(*std::move(plan));
  }
  return plans;
}

std::vector<Move> moves_between(const std::vector<Move>& moves, std::uint32_t from,
                                std::uint32_t to) {
  std::vector<Move> out;
  for (const Move& move : moves)
    if (move.from == Rank{from} && move.to == Rank{to}) out.push_back(move);
  return out;
}

void expect_both_ends_agree(const std::vector<ReshardPlan>& plans) {
  for (std::uint32_t from = 0; from < plans.size(); ++from)
    for (std::uint32_t to = 0; to < plans.size(); ++to) {
      const auto sent = moves_between(plans[from].sends, from, to);
      const auto received = moves_between(plans[to].receives, from, to);
      ASSERT_EQ(sent.size(), received.size());
      for (std::size_t i = 0; i < sent.size(); ++i) {
        EXPECT_EQ(sent[i].tensor, received[i].tensor);
        EXPECT_EQ(sent[i].region, received[i].region);
      }
    }
}

void expect_everything_arrives(const Layout& a, const Layout& b) {
  const std::vector<ReshardPlan> plans = plans_of_all_ranks(a, b);
  expect_both_ends_agree(plans);
  const Holdings source = holdings(a);
  const Holdings wanted = holdings(b);
  Holdings arrived = wanted;
  for (auto& [place, elements] : arrived) elements.assign(elements.size(), ~std::uint64_t{0});
  std::uint64_t carried = 0;
  for (const ReshardPlan& plan : plans)
    for (const auto* moves : {&plan.receives, &plan.keeps})
      for (const Move& move : *moves) {
        carry_out(move, source, arrived);
        carried += move.elems();
      }
  ASSERT_EQ(arrived, wanted);
  std::uint64_t elements = 0;
  for (const auto& [place, list] : wanted) elements += list.size();
  EXPECT_EQ(carried, elements) << "an element moved twice";
}

TEST(ReshardPlan, BringsEveryPolicyToEveryPolicy) {
  Random random(21);
  for (const Policy from : oracle::kEveryPolicy)
    for (const Policy to : oracle::kEveryPolicy)
      for (int round = 0; round < 40; ++round) {
        const std::vector<Shape> tensors = oracle::awkward_tensors(random);
        const auto a = Layout::make(oracle::awkward_spec(random, from, tensors), tensors);
        const auto b = Layout::make(oracle::awkward_spec(random, to, tensors), tensors);
        ASSERT_TRUE(a && b);
        expect_everything_arrives(*a, *b);
        ASSERT_FALSE(HasFatalFailure()) << name_of(from) << " to " << name_of(to);
      }
}

TEST(ReshardPlan, BringsPartsOfAWorldToOthers) {
  Random random(24);
  for (int round = 0; round < 1500; ++round) {
    const std::vector<Shape> tensors = oracle::awkward_tensors(random);
    const auto some_layout = [&] {
      const Policy policy = oracle::kEveryPolicy[oracle::up_to(random, 4)];
      return Layout::make({.policy = policy, .mesh = oracle::mesh_of(oracle::awkward_grid(random))},
                          tensors);
    };
    const auto a = some_layout(), b = some_layout();
    ASSERT_TRUE(a && b);
    expect_everything_arrives(*a, *b);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST(ReshardPlan, OfALayoutToItselfMovesNothing) {
  Random random(22);
  for (const Policy policy : oracle::kEveryPolicy) {
    const std::vector<Shape> tensors = {{13, 7}, {5}, {}};
    const auto layout = Layout::make(oracle::awkward_spec(random, policy, tensors), tensors);
    ASSERT_TRUE(layout);
    for (const ReshardPlan& plan : plans_of_all_ranks(*layout, *layout)) {
      EXPECT_TRUE(plan.sends.empty());
      EXPECT_TRUE(plan.receives.empty());
    }
  }
}

TEST(ReshardPlan, PrefersTheTargetItselfThenTheLowestReplica) {
  const std::vector<Shape> tensors = {{8, 2}};
  const auto hsdp = Layout::make({.policy = Policy::rows, .mesh = {2, 2}}, tensors);
  const auto whole_copy = Layout::make({.policy = Policy::replicated, .mesh = {4, 1}}, tensors);
  ASSERT_TRUE(hsdp && whole_copy);
  const std::vector<ReshardPlan> plans = plans_of_all_ranks(*hsdp, *whole_copy);
  // Rank 3 keeps shard 1 and gets shard 0 from rank 0, not from rank 2.
  ASSERT_EQ(plans[3].keeps.size(), 1u);
  ASSERT_EQ(plans[3].receives.size(), 1u);
  EXPECT_EQ(plans[3].receives[0].from, Rank{0});
  EXPECT_TRUE(plans[2].sends.empty());
}

TEST(ReshardPlan, GradientsInAndWeightsOutMoveTheMinimum) {
  // The sum over matrices of (numel - held by the owner), each way.
  const std::vector<Shape> tensors = {{8, 4}, {6, 4}};
  const auto flat = Layout::make({.policy = Policy::zero3, .mesh = {4, 1}}, tensors);
  const auto owners =
      Layout::make({.policy = Policy::layer_wise, .mesh = {4, 1}, .owners = {1, 2}}, tensors);
  ASSERT_TRUE(flat && owners);
  std::uint64_t in = 0;
  std::uint64_t out = 0;
  for (std::uint32_t r = 0; r < 4; ++r) {
    in += sent_elems(*ReshardPlan::between(*flat, *owners, Rank{r}));
    out += sent_elems(*ReshardPlan::between(*owners, *flat, Rank{r}));
  }
  EXPECT_EQ(in, (32u - 8u) + (24u - 6u));
  EXPECT_EQ(out, in);
}

TEST(ReshardPlan, RefusesLayoutsOfDifferentTensors) {
  const auto a = Layout::make({}, {{4, 2}});
  const auto b = Layout::make({}, {{2, 4}});
  const auto c = Layout::make({}, {});
  ASSERT_TRUE(a && b && c);
  const auto shapes = ReshardPlan::between(*a, *b, Rank{0});
  ASSERT_FALSE(shapes);
  EXPECT_EQ(shapes.error().code, Code::layout);
  EXPECT_EQ(shapes.error().message,
            "tensor 0 has shape [4, 2] in one layout and [2, 4] in the other");
  const auto counts = ReshardPlan::between(*a, *c, Rank{0});
  ASSERT_FALSE(counts);
  EXPECT_EQ(counts.error().message, "one layout has 1 tensors, the other has 0");
}

}  // namespace
}  // namespace ebb::formats
