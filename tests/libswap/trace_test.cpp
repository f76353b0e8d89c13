// The timeline of a run: what its ring keeps, how it is laid into lanes, and what it says in
// numbers.
#include "ebb/libswap/trace.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "tests/support/chrome_trace.h"

namespace ebb::libswap {
namespace {

using test_support::chrome_events;
using test_support::ChromeEvent;

constexpr Rank kRank{0};

Trace::Clock::time_point at(int milliseconds) {
  static const auto kStart = Trace::Clock::now();
  return kStart + std::chrono::milliseconds(milliseconds);
}

TEST(Trace, KeepsTheLastSpansAndCountsThoseThatGaveWay) {
  Trace trace(3);
  for (const char* name : {"a", "b", "c", "d", "e"})
    trace.add(kRank, Lane::compute, name, at(name[0]), at(name[0] + 1));
  const std::string json = trace.to_chrome_json();
  EXPECT_TRUE(json.starts_with(std::string(Trace::kBeginning) + "2,")) << json;
  std::string kept;
  for (const ChromeEvent& event : chrome_events(json))
    if (event.phase == "X") kept += event.name;
  EXPECT_EQ(kept, "cde");
  EXPECT_EQ(trace.spans(), 5u);
}

TEST(Trace, LaysTransfersOnLanesWhereEachIsAlone) {
  Trace trace;
  trace.name_tiles(kRank, {"first", "sec\"ond"});
  trace.add_step(kRank, "step", 7, at(0), at(100));
  trace.add(kRank, Lane::read, "page-in", at(0), at(30), {0, 4096});
  trace.add(kRank, Lane::read, "page-in", at(10), at(20), {1, 4096});
  trace.add(kRank, Lane::read, "page-in", at(20), at(50), {1, 4096});
  trace.add(kRank, Lane::read, "page-in", at(120), at(130), {0, 4096});
  const std::string json = trace.to_chrome_json();
  EXPECT_EQ(test_support::crossing_spans(json), "");
  std::map<int, int> by_lane;
  for (const ChromeEvent& event : chrome_events(json))
    if (event.name == "page-in") ++by_lane[event.thread];
  EXPECT_EQ(by_lane.size(), 2u);
  EXPECT_NE(json.find("\"args\":{\"step\":7,\"tile\":1,\"tensor\":\"sec\\\"ond\",\"bytes\":4096}"),
            std::string::npos)
      << json;
  EXPECT_NE(json.find("\"args\":{\"tile\":0,\"tensor\":\"first\",\"bytes\":4096}"),
            std::string::npos)
      << "the last one is of no step: " << json;
  EXPECT_NE(json.find("\"args\":{\"name\":\"read 2\"}"), std::string::npos) << json;
  EXPECT_NE(json.find("\"name\":\"depth of the read queue\",\"ts\":"), std::string::npos);
  EXPECT_NE(json.find("\"args\":{\"transfers\":2}"), std::string::npos);
  EXPECT_EQ(json.find("\"args\":{\"transfers\":3}"), std::string::npos);
}

TEST(Trace, EachThreadThatWorksHasALane) {
  Trace trace;
  trace.add(kRank, Lane::compute, "mine", at(0), at(50));
  std::thread([&] { trace.add(kRank, Lane::compute, "other", at(25), at(75)); }).join();
  EXPECT_EQ(test_support::crossing_spans(trace.to_chrome_json()), "");
}

TEST(Trace, SaysHowMuchOfTheTransfersIsHiddenAndHowMuchIsWaitedFor) {
  Trace trace;
  trace.add_step(kRank, "step", 1, at(0), at(100));
  trace.add(kRank, Lane::read, "page-in", at(0), at(40), {0, 1000});
  trace.add(kRank, Lane::write, "write-behind", at(30), at(50), {0, 3000});
  trace.add(kRank, Lane::wait, "page-in", at(0), at(10));
  trace.add(kRank, Lane::compute, "AdamW", at(40), at(90));
  trace.add(kRank, Lane::read, "page-in", at(150), at(160), {0, 9000});  // between two steps
  trace.add_step(Rank{1}, "step", 1, at(0), at(200));
  const StepFigures figures = trace.step_figures();
  EXPECT_EQ(figures.steps, 2u);
  EXPECT_EQ(figures.bytes, 4000u);
  EXPECT_NEAR(figures.overlap(), 0.2, 1e-9);            // 10 of 50 ms
  EXPECT_NEAR(figures.exposed_io(), 10.0 / 300, 1e-9);  // of both ranks' steps
  EXPECT_NEAR(figures.share_of(100'000), 0.2, 1e-9);    // 4000 bytes in 0.2 s
  EXPECT_NE(trace.to_chrome_json().find("\"overlap\":0.200000,\"exposed_io\":0.033333,"),
            std::string::npos);
}

TEST(Trace, FiguresAreOfStepsThatAreWhole) {
  Trace trace(3);
  trace.add(kRank, Lane::read, "page-in", at(0), at(10), {0, 1000});
  trace.add_step(kRank, "step", 1, at(0), at(20));
  trace.add(kRank, Lane::read, "page-in", at(30), at(40), {0, 1000});
  trace.add_step(kRank, "step", 2, at(20), at(50));
  EXPECT_EQ(trace.step_figures().steps, 1u) << "the first one's transfer gave way";
}

}  // namespace
}  // namespace ebb::libswap
