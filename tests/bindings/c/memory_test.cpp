// Allocations that fail in every call of ebb.h, one after the other: of the calling thread, and of
// any. The call answers an error, or does without; the engine goes on, or is closed and opened
// again.
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "ebb/formats/catalog/path_item.h"
#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libswap/sys/when_memory.h"
#include "tests/bindings/c/connected_ranks.h"
#include "tests/bindings/c/failing_new.h"
#include "tests/bindings/c/small_model.h"
#include "tests/libmuon/comm/rounds.h"
#include "tests/support/program.h"

namespace ebb::c {
namespace {

constexpr const char* kMaster[] = {"master"};
constexpr std::uint32_t kAll[SmallModel::kParams] = {0, 1, 2, 3};

// A trainer whose allocations fail only inside of the call that a test makes.
struct Trainer {
  explicit Trainer(std::string where) : directory(std::move(where)) {}
  ~Trainer() { close(); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  ebb_status open() {
    if (ranks == nullptr) {
      EXPECT_EQ(ebb_ranks_alone(&ranks), EBB_DONE) << last_message();
    }
    return model.open(ranks, directory, &engine);
  }
  void close() {
    if (pinned != nullptr) {
      EXPECT_EQ(ebb_pinned_close(pinned), EBB_DONE) << last_message();
    }
    if (engine != nullptr) {
      EXPECT_EQ(ebb_engine_close(engine), EBB_DONE) << last_message();
    }
    if (ranks != nullptr) {
      EXPECT_EQ(ebb_ranks_close(ranks), EBB_DONE) << last_message();
    }
    pinned = nullptr;
    engine = nullptr;
    ranks = nullptr;
    given = false;
  }
  ebb_status give() {
    const ebb_status status =
        ebb_engine_gradients(engine, kAll, gradients.data(), nullptr, SmallModel::kParams);
    given = status == EBB_DONE;
    return status;
  }
  ebb_status step() {
    given = false;
    return ebb_engine_step(engine, nullptr, nullptr);
  }

  const std::string directory;
  SmallModel model;
  std::vector<ebb_buffer> gradients = SmallModel::buffers(model.gradients);
  std::vector<std::vector<float>> state = SmallModel().weights;
  std::vector<ebb_buffer> states = SmallModel::buffers(state);
  ebb_ranks* ranks = nullptr;
  ebb_engine* engine = nullptr;
  ebb_pinned* pinned = nullptr;
  bool given = false;                   // the gradients of a step
  std::string other = directory + "-";  // where no store is
};

struct Call {
  const char* name;
  ebb_status (*make)(Trainer&);
  ebb_status (*before)(Trainer&) = nullptr;  // with all the memory
};

ebb_status give(Trainer& trainer) { return trainer.give(); }
ebb_status step(Trainer& trainer) { return trainer.step(); }
ebb_status use_what_was_given(Trainer& trainer) {
  return trainer.given ? trainer.step() : EBB_DONE;
}
ebb_status give_and_begin(Trainer& trainer) {
  trainer.give();
  return ebb_engine_begin_step(trainer.engine, nullptr, nullptr);
}
ebb_status snapshot(Trainer& trainer) { return ebb_engine_snapshot(trainer.engine, nullptr); }
ebb_status wait_snapshot(Trainer& trainer) {
  return ebb_engine_wait_snapshot(trainer.engine, nullptr);
}
ebb_status snapshot_whole(Trainer& trainer) {
  snapshot(trainer);
  return wait_snapshot(trainer);
}
ebb_status pin(Trainer& trainer) {
  if (trainer.pinned != nullptr) ebb_pinned_close(trainer.pinned);
  trainer.pinned = nullptr;
  return ebb_engine_pin(trainer.engine, &trainer.pinned);
}
ebb_status give_and_trace(Trainer& trainer) {
  trainer.give();
  return ebb_engine_begin_trace(trainer.engine);
}
ebb_status text(ebb_status (*call)(ebb_engine*, char**), Trainer& trainer) {
  char* json = nullptr;
  const ebb_status status = call(trainer.engine, &json);
  ebb_free(json);
  return status;
}

const Call kCalls[] = {
    {"gradients", give, use_what_was_given},
    {"step", step, give},
    {"begin_step", [](Trainer& t) { return ebb_engine_begin_step(t.engine, nullptr, nullptr); },
     give},
    {"wait_step", [](Trainer& t) { return ebb_engine_wait_step(t.engine, nullptr); },
     give_and_begin},
    {"step_ended",
     [](Trainer& t) {
       std::int32_t ended = 0;
       return ebb_engine_step_ended(t.engine, 0, &ended);
     },
     give_and_begin},
    {"wait_parameter", [](Trainer& t) { return ebb_engine_wait_parameter(t.engine, 1); },
     give_and_begin},
    {"install_weights", [](Trainer& t) { return ebb_engine_install_weights(t.engine); }},
    {"take_weights",
     [](Trainer& t) { return ebb_engine_take_weights(t.engine, kAll, SmallModel::kParams); }},
    {"read_states",
     [](Trainer& t) {
       return ebb_engine_read_states(t.engine, kMaster, 1, kAll, t.states.data(),
                                     SmallModel::kParams);
     }},
    {"write_states",
     [](Trainer& t) {
       return ebb_engine_write_states(t.engine, kMaster, 1, kAll, t.states.data(),
                                      SmallModel::kParams, -1);
     }},
    {"set", [](Trainer& t) { return ebb_engine_set(t.engine, 0, "lr", 0.1); }},
    {"set_blob", [](Trainer& t) { return ebb_engine_set_blob(t.engine, "place", "12", 2); }},
    {"snapshot", snapshot, wait_snapshot},
    {"wait_snapshot", wait_snapshot, snapshot},
    {"abandon", [](Trainer& t) { return ebb_engine_abandon(t.engine); }, snapshot_whole},
    {"pin", pin, snapshot_whole},
    {"pinned_write",
     [](Trainer& t) {
       return ebb_pinned_write(t.pinned, "safetensors", 1, t.other.c_str(), 2, nullptr);
     },
     [](Trainer& t) -> ebb_status {
       t.other += "x";
       if (t.pinned != nullptr) return EBB_DONE;
       return snapshot_whole(t) == EBB_DONE ? pin(t) : EBB_STATE;
     }},
    {"traced_step", step, give_and_trace},
    {"end_trace", [](Trainer& t) { return text(ebb_engine_end_trace, t); },
     [](Trainer& t) {
       give_and_trace(t);
       return t.step();
     }},
    {"about", [](Trainer& t) { return text(ebb_engine_about, t); }},
    {"stats", [](Trainer& t) { return text(ebb_engine_stats, t); }},
    {"save_to", [](Trainer& t) { return ebb_engine_save_to(t.engine, t.other.c_str()); },
     [](Trainer& t) -> ebb_status {
       t.other += "x";
       return EBB_DONE;
     }},
    {"close",
     [](Trainer& t) {
       const ebb_status status = ebb_engine_close(t.engine);
       if (status == EBB_DONE) t.engine = nullptr;
       return status;
     }},
    {"ranks_agree",
     [](Trainer& t) {
       std::int64_t smallest = 0;
       return ebb_ranks_agree(t.ranks, 1, &smallest);
     }},
    {"model_plan",
     [](Trainer& t) {
       ebb_plan plan = {};
       plan.size = sizeof(plan);
       return ebb_model_plan(&t.model.model, 0, 1, &plan);
     }},
};

// What a failing allocation may lead to.
void expect_said(ebb_status status, std::string_view call, std::uint64_t k) {
  EXPECT_TRUE(status == EBB_DONE || (status <= EBB_USAGE && status >= EBB_CANCELLED));
  EXPECT_EQ(ebb_last_error()->code, status) << call << ", allocation " << k;
  EXPECT_EQ(last_message().empty(), status == EBB_DONE) << call << ", allocation " << k;
}

class WithoutMemory : public testing::TestWithParam<std::tuple<Call, Of>> {};

TEST_P(WithoutMemory, ACallAnswersAndTheEngineGoesOnOrIsOpenedAgain) {
  const auto& [call, of] = GetParam();
  const test_support::ScratchDirectory scratch;
  Trainer trainer(scratch / "swap");
  std::uint64_t left = 0;
  for (std::uint64_t k = 1; left == 0; k += 1 + k / 4) {
    const ebb_status ready = trainer.engine == nullptr ? trainer.open() : EBB_DONE;
    ASSERT_EQ(ready, EBB_DONE) << "before allocation " << k << ": " << last_message();
    const ebb_status done = call.before != nullptr ? call.before(trainer) : EBB_DONE;
    ASSERT_EQ(done, EBB_DONE) << "before allocation " << k << ": " << last_message();
    fail_allocation(k, of);
    const ebb_status status = call.make(trainer);
    left = allocations_left();
    fail_allocation(0, of);
    expect_said(status, call.name, k);
    EXPECT_TRUE(left == 0 || status == EBB_DONE) << last_message();
    if (status != EBB_DONE) trainer.close();
    // A step that is under way may still be told of it.
    if (trainer.engine != nullptr && ebb_engine_wait_step(trainer.engine, nullptr) != EBB_DONE &&
        last_message() != "no step was begun")
      trainer.close();
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<Call, Of>>& one) {
  const auto& [call, of] = one.param;
  return std::string(call.name) + (of == Of::this_thread ? "_of_its_own" : "_of_all");
}
INSTANTIATE_TEST_SUITE_P(Calls, WithoutMemory,
                         testing::Combine(testing::ValuesIn(kCalls),
                                          testing::Values(Of::this_thread, Of::all_threads)),
                         name_of);

// All of a checkpoint, its weights too.
ebb_status read_whole(ebb_checkpoint* checkpoint) {
  char* json = nullptr;
  ebb_checkpoint* weights = nullptr;
  ebb_status status = ebb_checkpoint_about(checkpoint, &json);
  ebb_free(json);
  if (status == EBB_DONE) status = ebb_checkpoint_weights(checkpoint, &weights);
  json = nullptr;
  if (status == EBB_DONE) status = ebb_checkpoint_chunks(weights, 0, &json);
  ebb_free(json);
  float room[64] = {};
  const std::uint64_t first[2] = {0, 0}, one[2] = {1, 1};
  const ebb_wanted wanted = {0, first, one, room, sizeof(float)};
  if (status == EBB_DONE) status = ebb_checkpoint_read(weights, &wanted, 1, 2);
  if (weights == nullptr) return status;
  const ebb_status closed = ebb_checkpoint_close(weights);
  return status == EBB_DONE ? closed : status;
}

// What every catalog is full of. Of a plain std::variant this ended the process, now and then.
TEST(PathItemWithoutMemory, ACopyThatFailsDestroysNothing) {
  const std::vector<formats::PathItem> path(3, std::string(64, 'x'));
  for (std::uint64_t k = 1; k <= 1 + path.size(); ++k) {
    fail_allocation(k, Of::this_thread);
    EXPECT_THROW({ const auto copy = path; }, std::bad_alloc) << "allocation " << k;
  }
  fail_allocation(0, Of::this_thread);
  const auto copy = path;
  EXPECT_EQ(copy, path);
}

TEST(CheckpointWithoutMemory, IsRefusedAndReadAgain) {
  const std::string path = std::string(EBB_FIXTURES) + "/dcp/fsdp2_w1/data";
  for (const Of of : {Of::this_thread, Of::all_threads}) {
    std::uint64_t left = 0;
    for (std::uint64_t k = 1; left == 0; k += 1 + k / 8) {
      ebb_checkpoint* checkpoint = nullptr;
      fail_allocation(k, of);
      ebb_status status = ebb_checkpoint_open(path.c_str(), &checkpoint);
      if (status == EBB_DONE) status = read_whole(checkpoint);
      left = allocations_left();
      fail_allocation(0, of);
      expect_said(status, "checkpoint", k);
      EXPECT_TRUE(left == 0 || status == EBB_DONE) << last_message();
      if (checkpoint == nullptr) continue;
      EXPECT_EQ(read_whole(checkpoint), EBB_DONE) << "behind allocation " << k;
      EXPECT_EQ(ebb_checkpoint_close(checkpoint), EBB_DONE) << last_message();
    }
  }
}

class OpenWithoutMemory : public testing::TestWithParam<Of> {};

TEST_P(OpenWithoutMemory, IsTriedAgainOnFreshRanks) {
  const test_support::ScratchDirectory scratch;
  std::uint64_t left = 0;
  for (std::uint64_t k = 1; left == 0; k += 1 + k / 8) {
    Trainer trainer(scratch / std::to_string(k % 3));  // with a store, or without
    EXPECT_EQ(ebb_ranks_alone(&trainer.ranks), EBB_DONE);
    fail_allocation(k, GetParam());
    const ebb_status status = trainer.open();
    left = allocations_left();
    fail_allocation(0, GetParam());
    expect_said(status, "open", k);
    EXPECT_TRUE(left == 0 || status == EBB_DONE) << last_message();
    if (status == EBB_DONE) continue;
    trainer.close();
    EXPECT_EQ(trainer.open(), EBB_DONE) << "behind allocation " << k << ": " << last_message();
  }
}
INSTANTIATE_TEST_SUITE_P(Open, OpenWithoutMemory, testing::Values(Of::this_thread, Of::all_threads),
                         [](const auto& one) {
                           return std::string(one.param == Of::this_thread ? "of_its_own"
                                                                           : "of_all");
                         });

// Rank 1 runs out of memory where rank 0 waits for it.
TEST(RanksWithoutMemory, AnOpenThatFailsOnOneKeepsNobodyWaiting) {
  const test_support::ScratchDirectory scratch;
  std::atomic<std::uint64_t> left = 0;
  const auto open = [&](std::uint64_t k) {
    std::latch returned(kWorld);  // nobody closes its ranks before
    on_ranks([&](std::uint32_t rank, ebb_ranks* ranks) {
      SmallModel model(kWorld);
      ebb_engine* engine = nullptr;
      const std::string directory = scratch / std::to_string(k);
      if (rank == 1) fail_allocation(k, Of::this_thread);
      const ebb_status status = model.open(ranks, directory, &engine);
      if (rank == 1) left = allocations_left();
      if (rank == 1) fail_allocation(0, Of::this_thread);
      expect_said(status, "open", k);
      EXPECT_EQ(last_message().find(" ms"), std::string::npos) << last_message();
      returned.arrive_and_wait();
      EXPECT_TRUE(k > 0 || status == EBB_DONE) << last_message();
      EXPECT_EQ(ebb_engine_close(engine), status == EBB_DONE ? EBB_DONE : EBB_USAGE);
    });
  };
  for (std::uint64_t k = 1; k == 1 || left == 0; k += 1 + k / 3) open(k);
  open(0);
}

// Of threads that share their memory: a rank that cannot come ends the world, and one that has come
// stays until nobody reads its bytes any more.
TEST(RanksWithoutMemory, ThreadsExchangeTheirBytesOrEachIsTold) {
  std::uint64_t left = 0;
  for (std::uint64_t k = 1; left == 0; ++k) {
    auto ranks = libmuon::make_thread_ranks(kWorld);
    std::vector<std::unique_ptr<libmuon::Round>> rounds;
    for (const auto& rank : ranks) rounds.push_back(std::make_unique<libmuon::Round>(*rank));
    std::array<bool, kWorld> exchanged{};
    std::latch ready(kWorld), go(1);
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < kWorld; ++rank)
      threads.emplace_back([&, rank] {
        ready.count_down();
        go.wait();
        exchanged[rank] =
            libswap::or_no_memory([&] {
              return ranks[rank]->exchange(rounds[rank]->sends, rounds[rank]->receives);
            }).has_value();
        if (!exchanged[rank]) ranks[rank]->abort();
      });
    ready.wait();
    fail_allocation(k, Of::all_threads);
    go.count_down();
    for (std::thread& thread : threads) thread.join();
    left = allocations_left();
    fail_allocation(0, Of::all_threads);
    for (std::uint32_t rank = 0; rank < kWorld; ++rank)
      EXPECT_TRUE(!exchanged[rank] || rounds[rank]->arrived(*ranks[rank])) << "allocation " << k;
  }
}

}  // namespace
}  // namespace ebb::c
