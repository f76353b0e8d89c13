// A generation that is written in another format while its engine trains on; what an engine says of
// itself meanwhile.
#include <algorithm>
#include <filesystem>
#include <thread>

#include "tests/bindings/c/opened_engine.h"
#include "tests/support/chrome_trace.h"

namespace ebb::c {
namespace {

class CPinned : public OpenedEngine {
 protected:
  void step_to(std::uint64_t steps) {
    for (; made_ < steps; ++made_)
      ASSERT_EQ(model_.step(engine_, made_), EBB_DONE) << last_message();
  }
  void keep() {
    ASSERT_EQ(ebb_engine_snapshot(engine_, nullptr), EBB_DONE) << last_message();
    ASSERT_EQ(ebb_engine_wait_snapshot(engine_, nullptr), EBB_DONE) << last_message();
  }
  ebb_pinned* pinned() {
    ebb_pinned* made = nullptr;
    EXPECT_EQ(ebb_engine_pin(engine_, &made), EBB_DONE) << last_message();
    return made;
  }
  ebb_status write(ebb_pinned* from, const std::string& format, const std::string& name) {
    return ebb_pinned_write(from, format.c_str(), 2, (scratch_ / name).c_str(), 1, nullptr);
  }
  // The weights of an engine that begins from a checkpoint.
  std::vector<std::vector<float>> weights_of(const std::string& name) {
    SmallModel other;
    ebb_engine* engine = nullptr;
    const std::string path = scratch_ / name;
    const std::string directory = scratch_ / (name + ".swap");
    const auto weights = SmallModel::buffers(other.weights);
    ebb_start start = {};
    start.size = sizeof(start);
    start.directory = directory.c_str();
    start.checkpoint = path.c_str();
    start.weights = weights.data();
    EXPECT_EQ(ebb_engine_open(&other.model, ranks_, &start, &engine), EBB_DONE) << last_message();
    EXPECT_EQ(ebb_engine_close(engine), EBB_DONE);
    return other.weights;
  }

 private:
  std::uint64_t made_ = 0;
};

TEST_F(CPinned, IsWrittenAsItWasWhileTheEngineTrainsOn) {
  step_to(2);
  keep();
  const auto wanted = model_.weights;
  ebb_pinned* const kept = pinned();
  std::thread writer([&] {
    for (const char* format : {"dcp", "safetensors", "deepspeed"})
      EXPECT_EQ(write(kept, format, format), EBB_DONE) << last_message();
  });
  for (std::uint64_t step = 3; step < 6; ++step) {
    step_to(step);
    keep();
  }
  writer.join();
  EXPECT_NE(model_.weights, wanted);
  for (const char* format : {"dcp", "safetensors", "deepspeed"})
    EXPECT_EQ(weights_of(format), wanted) << format;
  ASSERT_EQ(ebb_engine_close(engine_), EBB_DONE);
  std::uint64_t bytes = 0;
  ASSERT_EQ(
      ebb_pinned_write(kept, "safetensors", 1, (scratch_ / "model.safetensors").c_str(), 0, &bytes),
      EBB_DONE)
      << last_message();
  EXPECT_EQ(std::filesystem::file_size(scratch_ / "model.safetensors"), bytes);
  EXPECT_EQ(ebb_pinned_close(kept), EBB_DONE);
  EXPECT_EQ(ebb_pinned_close(kept), EBB_USAGE);
}

TEST_F(CPinned, WhatCannotBeWrittenLeavesNothing) {
  step_to(1);
  keep();
  ebb_pinned* const kept = pinned();
  EXPECT_EQ(write(kept, "docx", "a"), EBB_USAGE);
  EXPECT_NE(last_message().find("docx"), std::string::npos);
  EXPECT_NE(std::string(ebb_last_error()->hint).find("dcp"), std::string::npos);
  EXPECT_EQ(ebb_pinned_write(kept, "dcp", 0, (scratch_ / "a").c_str(), 1, nullptr), EBB_USAGE);
  EXPECT_EQ(ebb_pinned_write(kept, nullptr, 1, nullptr, 1, nullptr), EBB_USAGE);
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "a"));
  EXPECT_EQ(write(kept, "dcp", "a"), EBB_DONE) << last_message();
  EXPECT_EQ(write(kept, "dcp", "a"), EBB_USAGE) << "it is there";
  EXPECT_EQ(ebb_engine_pin(engine_, nullptr), EBB_USAGE);
  EXPECT_EQ(ebb_pinned_close(kept), EBB_DONE);
  EXPECT_EQ(write(kept, "dcp", "b"), EBB_USAGE) << "closed";
}

TEST_F(CPinned, AStepInFlightIsWaitedForInSlices) {
  std::int32_t ended = 0;
  ASSERT_EQ(ebb_engine_step_ended(engine_, 0, &ended), EBB_DONE);
  EXPECT_EQ(ended, 1) << "none is";
  model_.set_gradients(0);
  const auto gradients = SmallModel::buffers(model_.gradients);
  const std::uint32_t params[] = {0, 1, 2, 3};
  ASSERT_EQ(ebb_engine_gradients(engine_, params, gradients.data(), nullptr, 4), EBB_DONE);
  ASSERT_EQ(ebb_engine_begin_step(engine_, nullptr, nullptr), EBB_DONE) << last_message();
  do ASSERT_EQ(ebb_engine_step_ended(engine_, 10, &ended), EBB_DONE) << last_message();
  while (ended == 0);
  ebb_step_result result = {};
  result.size = sizeof(result);
  ASSERT_EQ(ebb_engine_wait_step(engine_, &result), EBB_DONE) << last_message();
  EXPECT_EQ(result.step, 1u);
  EXPECT_EQ(ebb_engine_step_ended(engine_, 10, nullptr), EBB_USAGE);
}

TEST_F(CPinned, ATimelineHasTheStepsBetweenItsBeginAndItsEnd) {
  const auto steps = [&] {
    char* json = nullptr;
    EXPECT_EQ(ebb_engine_end_trace(engine_, &json), EBB_DONE) << last_message();
    const std::string text = json;
    ebb_free(json);
    const auto events = test_support::chrome_events(text);
    return std::ranges::count(events, "step", &test_support::ChromeEvent::name);
  };
  step_to(1);
  ASSERT_EQ(ebb_engine_begin_trace(engine_), EBB_DONE);
  step_to(3);
  EXPECT_EQ(steps(), 2);
  step_to(4);
  EXPECT_EQ(steps(), 2) << "it is over";
  ASSERT_EQ(ebb_engine_begin_trace(engine_), EBB_DONE);
  step_to(5);
  EXPECT_EQ(steps(), 1);
}

TEST_F(CPinned, KeysOfWhatIsStoredWithAGenerationAreTold) {
  ASSERT_EQ(ebb_engine_set_blob(engine_, "rng", "1", 1), EBB_DONE);
  ASSERT_EQ(ebb_engine_set_blob(engine_, "data", "2", 1), EBB_DONE);
  char* json = nullptr;
  ASSERT_EQ(ebb_engine_about(engine_, &json), EBB_DONE);
  EXPECT_NE(std::string(json).find("\"blobs\":[\"rng\",\"data\"]"), std::string::npos) << json;
  ebb_free(json);
}

}  // namespace
}  // namespace ebb::c
