// What a step moves for Muon's matrices, as the engine counts it, beside the least that forming
// each at one rank can move: (g + w) x (numel - held), and beside what other systems move.
#include <gtest/gtest.h>

#include "ebb/libmuon/plan/traffic.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/support/training.h"

namespace ebb {
namespace {

using libmuon::ModelSpec;
using libmuon::StatePlan;
using test::TempDir;
using test::Training;

struct Sent {
  std::uint64_t counted = 0;  // since the engine was opened
  std::uint64_t planned = 0;  // for a step
};

Sent sent_in(const Training& setup, std::uint64_t steps) {
  const TempDir directory;
  const auto outcome = train(setup, directory.path(), steps, test::Finish::just_stop);
  EXPECT_EQ(outcome.error, "");
  Sent sent;
  for (const auto& stats : outcome.stats) sent.counted += stats.sent_bytes;
  for (const auto& plan : outcome.plans) sent.planned += plan.step_sent_bytes;
  return sent;
}

// Of all ranks, in one step; as it was planned.
std::uint64_t counted(const Training& setup) {
  const Sent first = sent_in(setup, 1), third = sent_in(setup, 3);
  const std::uint64_t a_step = (third.counted - first.counted) / 2;
  EXPECT_EQ(a_step, first.planned);
  return a_step;
}

// (g + w) x (numel - held), held by the owner, over all matrices.
std::uint64_t least(const Training& setup) {
  const auto config = test::config_of(setup, setup.model);
  std::uint64_t bytes = 0;
  for (std::uint32_t rank = 0; rank < setup.ranks; ++rank) {
    const auto plan = StatePlan::make(config.model, config.partition, config.tile_bytes, Rank{rank},
                                      config.chunk_bytes);
    EXPECT_TRUE(plan);
    for (std::uint32_t param = 0; param < setup.model.params.size(); ++param) {
      const auto& spec = setup.model.params[param];
      if (!(*plan).muon(param)) continue;
      const FlatRange held = (*plan).gradients().held(param, Rank{rank});
      for (const FlatRange own : (*plan).own_ranges(param)) {
        const std::uint64_t elsewhere = own.count - formats::overlap(own, held).count;
        bytes += (bytes_of(spec.gradient) + bytes_of(spec.weight)) * elsewhere;
      }
    }
  }
  return bytes;
}

ModelSpec model_in(DType dtype) {
  ModelSpec model = test::nuisance_model();
  for (auto& param : model.params) param.gradient = param.weight = dtype;
  return model;
}

std::uint64_t muon_elems(const ModelSpec& model) {
  std::uint64_t elems = 0;
  for (const auto& param : model.params)
    if (std::holds_alternative<libmuon::MuonSpec>(model.groups[param.group]))
      elems += formats::volume(param.shape);
  return elems;
}

TEST(Traffic, OfAStepIsTheLeastThatOwnersCanMove) {
  for (const Policy policy : {Policy::zero12, Policy::zero12_boundary, Policy::zero3, Policy::rows,
                              Policy::layer_wise, Policy::uneven_rows})
    for (const std::uint32_t ranks : {2u, 3u, 4u})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Training setup{
            .ranks = ranks, .gradients = policy, .weights = policy, .model = model_in(dtype)};
        const auto expected = static_cast<double>(least(setup));
        EXPECT_NEAR(static_cast<double>(counted(setup)), expected, 0.02 * expected)
            << name_of(policy) << " on " << ranks << " ranks in " << name_of(dtype);
      }
}

// 4Pf/N a rank in bf16, with f = (N - 1) / N.
TEST(Traffic, OfEvenSplitsIsFourBytesAnElementThatIsElsewhere) {
  for (const std::uint32_t ranks : {2u, 4u}) {
    Training setup{.ranks = ranks, .gradients = Policy::zero3, .weights = Policy::zero3};
    setup.model.params = {{"a", {32, 64}, 0}, {"b", {48, 16}, 0}, {"c", {128, 32}, 0}};
    for (auto& param : setup.model.params) param.gradient = param.weight = DType::bf16;
    const auto elems = static_cast<double>(muon_elems(setup.model));
    const double share = (ranks - 1.0) / ranks;
    const double wanted = ranks * (4 * elems * share / ranks);
    EXPECT_NEAR(static_cast<double>(counted(setup)), wanted, 0.02 * wanted);
  }
}

// A rank, of P elements on N: U and O of those that lie elsewhere than at who computes them, a
// share f = (N - 1) / N. In bf16 4Pf/N, in fp32 8Pf/N; between them where the norm is taken before
// U is rounded.
TEST(Traffic, OfStateOnShardsIsTheUpdatesAndTheResultsAsTheyAreRounded) {
  struct Case {
    const char* preset;
    double bytes;  // of U and O
  };
  for (const auto& [preset, bytes] : {Case{"torch", 4},
                                      {"dion", 4},
                                      {"emerging", 6},
                                      {"emerging_high", 8},
                                      {"deepspeed", 6},
                                      {"gram", 4},
                                      {"", 8}})
    for (const Policy policy : {Policy::zero3, Policy::rows})
      for (const std::uint32_t ranks : {1u, 2u, 4u}) {
        Training setup{.ranks = ranks,
                       .gradients = policy,
                       .weights = policy,
                       .placement = libmuon::Placement::shard,
                       .chunk_bytes = 20000};
        setup.model.params = {{"a", {32, 64}, 0}, {"b", {48, 16}, 0}, {"c", {128, 32}, 0}};
        if (*preset != '\0') setup.model.groups[0] = *libmuon::preset(preset);
        const auto elems = static_cast<double>(muon_elems(setup.model));
        const double share = (ranks - 1.0) / ranks;
        const double wanted = ranks * (bytes * elems * share / ranks);
        EXPECT_NEAR(static_cast<double>(counted(setup)), wanted, 0.02 * wanted)
            << preset << " on " << ranks << " ranks, " << name_of(policy);
      }
}

TEST(Traffic, IsNothingWhereEveryMatrixIsAtItsOwner) {
  Training setup{.ranks = 2, .gradients = Policy::layer_wise, .weights = Policy::layer_wise};
  setup.model.params = {{"a", {32, 64}, 0}, {"b", {32, 64}, 0}};
  EXPECT_EQ(counted(setup), 0u);
}

// Research figures of 7e9 elements on 8 ranks, GB a rank.
TEST(Traffic, OfOthersIsWhatTheirCollectivesMove) {
  const auto others = libmuon::traffic_of_others(7'000'000'000, 8, 2);
  const std::array<double, 3> wanted = {12.25e9, 49e9, 12.25e9};
  for (std::size_t i = 0; i < others.size(); ++i)
    EXPECT_EQ(static_cast<double>(others[i].bytes) / 8, wanted[i]) << others[i].system;
  for (const auto& other : libmuon::traffic_of_others(1000, 1, 4)) EXPECT_EQ(other.bytes, 0u);
}

// HSDP: what has two copies is cut among them, so a gradient lies where its state is. New weights
// go to the other copy, 4 bytes a parameter in fp32; U and O, 4 bytes together, are those of the
// matrices that are computed elsewhere, three of four.
TEST(Traffic, OfCopiesIsThatOfWeightsToTheOthersBesideUpdatesAndResults) {
  const auto torch = libmuon::preset("torch");
  ASSERT_TRUE(torch);
  for (const Policy policy : {Policy::zero3, Policy::rows, Policy::zero12}) {
    Training setup{.ranks = 4,
                   .copies = 2,
                   .gradients = policy,
                   .weights = policy,
                   .placement = libmuon::Placement::shard};
    setup.model.groups[0] = *torch;
    setup.model.params = {{"a", {32, 64}, 0},
                          {"b", {48, 16}, 0},
                          {"c", {128, 32}, 0},
                          {"d", {64, 96}, 0},
                          {"norm", {4096}, 1}};
    const auto matrices = static_cast<double>(muon_elems(setup.model));
    const double sent = static_cast<double>(counted(setup)) / (matrices + 4096);
    EXPECT_LE(sent, 4 + 4 * 0.75 * matrices / (matrices + 4096) + 0.02) << name_of(policy);
    EXPECT_GE(sent, 4) << name_of(policy);
  }
}

}  // namespace
}  // namespace ebb
