// A run that leaves Ebb's store for another format, comes back into a store by conversion and goes
// on: the same bits as one that was never interrupted.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "ebb/libmuon/spec/presets.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/tree/file_tree.h"
#include "ebb/libswap/write/write_checkpoint.h"
#include "tests/libmuon/support/keeping_trainer.h"
#include "tests/libmuon/support/training.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::TempDir;
using test::train;
using test::Training;

constexpr std::uint64_t kStop = 4;
constexpr std::uint64_t kSteps = 6;

struct Into {
  std::string format;
  std::uint32_t world = 1;
};

// "" or what went wrong.
std::string convert(const fs::path& from, const fs::path& to, const Into& into) {
  const auto run = [&]() -> Result<> {
    EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
    EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(chosen.backend), {}));
    EBB_TRY_ASSIGN(auto tree, libswap::open_tree(from));
    EBB_TRY_ASSIGN(const auto source, formats::describe(std::move(tree)));
    const formats::Format& format = *formats::format_named(into.format);
    EBB_TRY_ASSIGN(const auto conversion,
                   formats::plan_conversion(*source, {.from = formats::format_of(source->catalog()),
                                                      .to = format,
                                                      .world = into.world,
                                                      .policy = format.traits().default_policy}));
    for (const std::string& line : conversion.plan.dropped) return Error{Code::unsupported, line};
    EBB_TRY_ASSIGN(const auto report,
                   libswap::write_checkpoint(*io, *conversion.content, conversion.plan, to, {}));
    return report.bytes > 0 ? Result<>() : Error{Code::state, "nothing was written"};
  };
  const auto result = run();
  return result ? "" : result.error().message;
}

// Four steps on two ranks, the conversions one after another, and on to step six on three ranks.
void expect_the_bits_of_an_uninterrupted_run(const std::vector<Into>& way, Training setup = {}) {
  const TempDir uninterrupted, work;
  const Outcome reference = train(setup, uninterrupted.path(), kSteps);
  ASSERT_EQ(reference.error, "");
  fs::path at = work.path() / "start";
  setup.ranks = 2;
  ASSERT_EQ(train(setup, at, kStop).error, "");
  for (const Into& into : way) {
    const fs::path next = work.path() / (std::to_string(at.string().size()) + into.format);
    ASSERT_EQ(convert(at, next, into), "") << into.format;
    at = next;
  }
  setup.ranks = 3;
  const Outcome resumed = train(setup, at, kSteps);
  ASSERT_EQ(resumed.error, "");
  EXPECT_EQ(resumed.origin.substr(0, resumed.origin.find(" (")),
            compose("transferred the store of {} ranks at step {}", way.back().world, kStop));
  EXPECT_TRUE(resumed == reference);
}

TEST(EngineConversion, AStoreCutForOtherRanksContinuesBitForBit) {
  expect_the_bits_of_an_uninterrupted_run({{"ebb", 5}});
}

TEST(EngineConversion, DcpAndBackContinuesBitForBit) {
  expect_the_bits_of_an_uninterrupted_run({{"dcp", 3}, {"ebb", 4}});
}

TEST(EngineConversion, DeepSpeedAndBackContinuesBitForBit) {
  expect_the_bits_of_an_uninterrupted_run({{"deepspeed", 2}, {"ebb", 3}});
}

// Formats that keep momentum in fp32 widen it: what comes back is what was stored.
TEST(EngineConversion, MomentumInBf16ContinuesBitForBitWhateverTheFormatBetween) {
  const libmuon::StateDTypes half = {{"momentum_buffer", DType::bf16}};
  for (const std::string format : {"dcp", "deepspeed", "safetensors", "megatron", "torch", "hdf5"})
    expect_the_bits_of_an_uninterrupted_run({{format, 1}, {"ebb", 4}}, {.dtypes = half});
}

// A state of another shape than its parameter's.
TEST(EngineConversion, SecondMomentsContinueBitForBitWhateverTheFormatBetween) {
  Training setup;
  setup.model.groups[0] = *libmuon::preset("normuon");
  for (const std::string format : {"dcp", "safetensors", "torch"})
    expect_the_bits_of_an_uninterrupted_run({{format, 1}, {"ebb", 4}}, setup);
}

TEST(EngineConversion, MomentumInInt8ContinuesBitForBitWhateverTheFormatBetween) {
  const libmuon::StateDTypes int8 = {{"momentum_buffer", DType::i8}};
  for (const std::string format : {"dcp", "deepspeed", "safetensors", "megatron", "torch", "hdf5"})
    expect_the_bits_of_an_uninterrupted_run({{format, 1}, {"ebb", 4}}, {.dtypes = int8});
}

// What a step hands out follows from the momentum, which is all there is of some groups.
TEST(EngineConversion, AStoreWithoutMastersContinuesBitForBitWhateverTheFormatBetween) {
  for (const std::string format : {"dcp", "safetensors", "torch", "hdf5", "megatron"})
    expect_the_bits_of_an_uninterrupted_run({{format, 1}, {"ebb", 4}},
                                            {.model = test::keeping_model({0, 2})});
}

TEST(EngineConversion, MomentumWithoutAMasterIsNamedWhereAFormatHasNoPlaceForIt) {
  const TempDir work;
  ASSERT_EQ(train({.model = test::keeping_model({2})}, work.path() / "start", 1).error, "");
  EXPECT_EQ(convert(work.path() / "start", work.path() / "there", {"deepspeed", 2}),
            "blk.0.up (momentum_buffer) [96, 24]: its parameter has no weights, of which "
            "DeepSpeed's optimizer keeps masters");
}

// Formats get whole masters, of which both halves come again.
TEST(EngineConversion, MastersInHalvesContinueBitForBitWhateverTheFormatBetween) {
  Training setup{.dtypes = {{"master", DType::u16}}};
  setup.model = test::with_bf16_weights(std::move(setup.model));
  for (const std::string format : {"dcp", "deepspeed", "safetensors", "megatron", "torch", "hdf5"})
    expect_the_bits_of_an_uninterrupted_run({{format, 1}, {"ebb", 4}}, setup);
}

TEST(EngineConversion, MoreRanksThanTilesAreHarmless) {
  expect_the_bits_of_an_uninterrupted_run({{"dcp", 1}, {"ebb", 40}});
}

}  // namespace

}  // namespace ebb
