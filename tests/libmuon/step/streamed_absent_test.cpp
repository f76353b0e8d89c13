// What is streamed and has no gradient in some steps: from the first one on, for good, by turns.
#include <gtest/gtest.h>

#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/said_gradients.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::EngineConfig;
using libmuon::Out;
using libmuon::WithoutGradient;

constexpr std::uint64_t kSteps = 3;

libmuon::ModelSpec model_with(Out out) {
  libmuon::MuonSpec spec = *libmuon::preset("gram");
  spec.out = out;
  spec.weight_decay = 0;
  libmuon::ModelSpec model;
  model.groups = {spec, libmuon::AdamSpec{.lr = 1e-2}};
  model.params = {{"tall", {1300, 16}, 0},
                  {"wide", {12, 1100}, 0},
                  {"square", {32, 32}, 0},
                  {"bias", {32}, 1},
                  {"taller", {2600, 7}, 0}};
  return model;
}

// Which parameters have no gradient in a step, a bit each.
using Absent = std::array<std::uint32_t, kSteps>;

// What ranks 0 and 1 were handed out, step by step.
std::vector<std::vector<float>> handed_out(const Absent& absent, Out out, std::uint64_t above) {
  const auto model = model_with(out);
  const EngineConfig config = config_of({.ranks = 2,
                                         .chunk_bytes = 30000,
                                         .budget_bytes = kLittle,
                                         .stream_above_bytes = above,
                                         .model = model},
                                        model);
  const auto script = [&](std::uint32_t param, std::uint64_t step) -> Said {
    const std::uint32_t bits = absent[step - 1];
    if ((bits >> param & 1) == 0) return always(param, step);
    const bool zero = (bits >> 8 & 1) != 0;
    return {.noise = {}, .none = zero ? WithoutGradient::zero : WithoutGradient::untouched};
  };
  std::vector<std::vector<float>> all(2 * kSteps);
  World world(libswap::make_memory_backend(libswap::MemoryDisk::create(kMuch)), "/swap", 2);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      EBB_TRY(hand_in(rank, step, script));
      EBB_TRY(rank.step());
      all[2 * (step - 1) + index_of(ranks.rank())] = rank.flat_weights();
    }
    return {};
  }));
  return all;
}

TEST(StreamedSteps, LeaveOutWhatIsAbsentWhicheverComesFirst) {
  std::vector<Absent> patterns = {{0b00001, 0b00001, 0b00001}, {0b10011, 0b10011, 0b10011}};
  for (std::uint32_t bits = 1; bits < 32; ++bits) {
    patterns.push_back({bits, 31 - bits, bits});
    patterns.push_back({bits, bits | 0x100, 0});
  }
  for (const Out out : {Out::weights, Out::update})
    for (const Absent& absent : patterns)
      EXPECT_TRUE(handed_out(absent, out, 0) == handed_out(absent, out, libmuon::kNothingStreamed))
          << absent[0] << ", " << absent[1] << ", " << absent[2] << ", updates "
          << (out == Out::update);
}

}  // namespace
}  // namespace ebb::test
