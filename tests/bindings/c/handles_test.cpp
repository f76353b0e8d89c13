// Handles that are none, closed, another kind's or another process', at every function that takes
// one.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tests/bindings/c/opened_engine.h"
#include "tests/support/in_child.h"

namespace ebb::c {
namespace {

struct Call {
  const char* name;
  std::function<ebb_status(ebb_engine*)> made;
};
const std::vector<Call>& engine_calls() {
  static std::uint64_t number = 0;
  static char* text = nullptr;
  static const char* master = "master";
  static const std::vector<Call> all = {
      {"bind", [](ebb_engine* e) { return ebb_engine_bind(e, nullptr, nullptr, 0); }},
      {"install_weights", ebb_engine_install_weights},
      {"take_weights", [](ebb_engine* e) { return ebb_engine_take_weights(e, nullptr, 0); }},
      {"gradients",
       [](ebb_engine* e) { return ebb_engine_gradients(e, nullptr, nullptr, nullptr, 0); }},
      {"set", [](ebb_engine* e) { return ebb_engine_set(e, 0, "lr", 0.1); }},
      {"step", [](ebb_engine* e) { return ebb_engine_step(e, nullptr, nullptr); }},
      {"begin_step", [](ebb_engine* e) { return ebb_engine_begin_step(e, nullptr, nullptr); }},
      {"wait_step", [](ebb_engine* e) { return ebb_engine_wait_step(e, nullptr); }},
      {"wait_parameter", [](ebb_engine* e) { return ebb_engine_wait_parameter(e, 0); }},
      {"continue", [](ebb_engine* e) { return ebb_engine_continue(e, nullptr); }},
      {"abandon", ebb_engine_abandon},
      {"save_to", [](ebb_engine* e) { return ebb_engine_save_to(e, "/tmp/none"); }},
      {"read_states",
       [](ebb_engine* e) { return ebb_engine_read_states(e, &master, 1, nullptr, nullptr, 0); }},
      {"write_states",
       [](ebb_engine* e) {
         return ebb_engine_write_states(e, &master, 1, nullptr, nullptr, 0, -1);
       }},
      {"snapshot", [](ebb_engine* e) { return ebb_engine_snapshot(e, nullptr); }},
      {"wait_snapshot", [](ebb_engine* e) { return ebb_engine_wait_snapshot(e, nullptr); }},
      {"committed", [](ebb_engine* e) { return ebb_engine_committed(e, nullptr, nullptr); }},
      {"set_blob", [](ebb_engine* e) { return ebb_engine_set_blob(e, "key", "", 1); }},
      {"blob", [](ebb_engine* e) { return ebb_engine_blob(e, "key", nullptr, &number); }},
      {"about", [](ebb_engine* e) { return ebb_engine_about(e, &text); }},
      {"stats", [](ebb_engine* e) { return ebb_engine_stats(e, &text); }},
      {"close", ebb_engine_close},
  };
  return all;
}

using CHandles = OpenedEngine;

TEST_F(CHandles, OfNothingAreRefusedByName) {
  for (const Call& call : engine_calls()) {
    EXPECT_EQ(call.made(nullptr), EBB_USAGE) << call.name;
    EXPECT_EQ(last_message(), "the engine is NULL") << call.name;
  }
  EXPECT_EQ(ebb_ranks_agree(nullptr, 0, nullptr), EBB_USAGE);
  EXPECT_EQ(last_message(), "the set of ranks is NULL");
}

TEST_F(CHandles, OfAnotherKindOrOfNoneAreRefused) {
  auto* const other = reinterpret_cast<ebb_engine*>(ranks_);
  for (const Call& call : engine_calls()) {
    EXPECT_EQ(call.made(other), EBB_USAGE) << call.name;
    EXPECT_EQ(call.made(reinterpret_cast<ebb_engine*>(&model_)), EBB_USAGE) << call.name;
    EXPECT_EQ(last_message(), "there is no such engine: it was closed, or never was one");
  }
  EXPECT_EQ(model_.step(engine_, 0), EBB_DONE) << last_message();
}

TEST_F(CHandles, ThatAreClosedStayClosed) {
  ASSERT_EQ(ebb_engine_close(engine_), EBB_DONE);
  for (const Call& call : engine_calls()) EXPECT_EQ(call.made(engine_), EBB_USAGE) << call.name;
  ebb_engine* second = nullptr;
  ASSERT_EQ(model_.open(ranks_, scratch_ / "swap", &second), EBB_DONE) << last_message();
  for (const Call& call : engine_calls()) EXPECT_EQ(call.made(engine_), EBB_USAGE) << call.name;
  engine_ = second;
}

TEST_F(CHandles, OfTheParentAreRefusedInAChildWhichMayCloseThem) {
  const auto said = test_support::in_child([&]() -> std::string {
    for (const Call& call : engine_calls()) {
      const bool closes = std::string_view(call.name) == "close";
      const ebb_status status = call.made(engine_);
      if (status != (closes ? EBB_DONE : EBB_STATE))
        return std::string(call.name) + " answers " + std::to_string(status);
    }
    std::int64_t smallest = 0;
    if (ebb_ranks_agree(ranks_, 0, &smallest) != EBB_STATE) return "agree is not refused";
    return ebb_ranks_close(ranks_) == EBB_DONE ? "" : "ranks cannot be closed";
  });
  EXPECT_EQ(said, "");
  EXPECT_EQ(model_.step(engine_, 0), EBB_DONE) << last_message();
}

// A worker of a data loader may train something of its own.
TEST_F(CHandles, OfItsOwnAChildCanHave) {
  const auto said = test_support::in_child([&]() -> std::string {
    SmallModel model;
    ebb_ranks* ranks = nullptr;
    ebb_engine* engine = nullptr;
    if (ebb_ranks_alone(&ranks) != EBB_DONE) return last_message();
    if (model.open(ranks, scratch_ / "child", &engine) != EBB_DONE) return last_message();
    if (model.step(engine, 0) != EBB_DONE) return last_message();
    return ebb_engine_close(engine) == EBB_DONE ? "" : last_message();
  });
  EXPECT_EQ(said, "");
}

TEST_F(CHandles, AreClosedOnlyWhenNobodyIsInside) {
  std::atomic<bool> over = false;
  bool closed = false;
  std::thread stepping([&] {
    for (std::uint64_t i = 0; !over; ++i)
      if (model_.step(engine_, i) == EBB_USAGE) return;
  });
  for (int i = 0; i < 2000 && !closed; ++i) {
    closed = ebb_engine_close(engine_) == EBB_DONE;
    std::this_thread::yield();
  }
  over = true;
  stepping.join();
  EXPECT_TRUE(closed || ebb_engine_close(engine_) == EBB_DONE) << last_message();
  EXPECT_EQ(ebb_engine_close(engine_), EBB_USAGE);
}

TEST_F(CHandles, ErrorsAreTheThreadsOwn) {
  EXPECT_EQ(ebb_engine_step(nullptr, nullptr, nullptr), EBB_USAGE);
  std::thread([] { EXPECT_EQ(ebb_last_error()->code, EBB_DONE); }).join();
  const ebb_error& error = *ebb_last_error();
  EXPECT_EQ(error.size, sizeof(ebb_error));
  EXPECT_EQ(error.code, EBB_USAGE);
  EXPECT_STREQ(error.file, "");
  EXPECT_EQ(error.offset, -1);
  EXPECT_EQ(error.rank, -1);
  std::int64_t smallest = 1;
  EXPECT_EQ(ebb_ranks_agree(ranks_, 7, &smallest), EBB_DONE);
  EXPECT_EQ(smallest, 7);
  EXPECT_EQ(ebb_last_error()->code, EBB_DONE);
}

}  // namespace
}  // namespace ebb::c
