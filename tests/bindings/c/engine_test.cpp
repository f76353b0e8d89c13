// A training through ebb.h beside the same one through the engine of C++: the same bits.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/bindings/c/trained_in_cpp.h"
#include "tests/support/program.h"

namespace ebb::c {
namespace {

class CEngine : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(ebb_ranks_alone(&ranks_), EBB_DONE); }
  void TearDown() override { ebb_ranks_close(ranks_); }
  ebb_engine* opened(SmallModel& model, const std::string& folder = "swap") {
    ebb_engine* engine = nullptr;
    EXPECT_EQ(model.open(ranks_, scratch_ / folder, &engine), EBB_DONE) << last_message();
    return engine;
  }
  static std::string about(ebb_engine* engine) {
    char* json = nullptr;
    EXPECT_EQ(ebb_engine_about(engine, &json), EBB_DONE) << last_message();
    std::string text = json;
    ebb_free(json);
    return text;
  }

  const test_support::ScratchDirectory scratch_;
  ebb_ranks* ranks_ = nullptr;
};

TEST_F(CEngine, TrainsWithTheBitsOfTheCppEngineAndResumes) {
  SmallModel model;
  ebb_engine* engine = opened(model);
  ebb_step_result result = {};
  result.size = sizeof(result);
  for (std::uint64_t step = 0; step < 4; ++step)
    ASSERT_EQ(model.step(engine, step, &result), EBB_DONE) << last_message();
  EXPECT_EQ(result.step, 4u);
  EXPECT_GT(result.norm, 0);
  EXPECT_EQ(result.skipped, 0);
  std::int32_t begun = 0;
  std::uint64_t generation = 0, committed = 0, step = 0;
  ASSERT_EQ(ebb_engine_set_blob(engine, "data", "at 4", 4), EBB_DONE);
  ASSERT_EQ(ebb_engine_snapshot(engine, &begun), EBB_DONE) << last_message();
  EXPECT_EQ(begun, 1);
  ASSERT_EQ(ebb_engine_wait_snapshot(engine, &generation), EBB_DONE) << last_message();
  ASSERT_EQ(ebb_engine_committed(engine, &committed, &step), EBB_DONE) << last_message();
  EXPECT_EQ(committed, generation);
  EXPECT_EQ(step, 4u);
  ASSERT_EQ(ebb_engine_close(engine), EBB_DONE) << last_message();

  SmallModel second;  // whose weights are those of the beginning
  engine = opened(second);
  EXPECT_EQ(second.weights, model.weights);
  EXPECT_NE(about(engine).find("resumed the store at step 4"), std::string::npos) << about(engine);
  char blob[8] = {};
  std::uint64_t size = sizeof(blob);
  ASSERT_EQ(ebb_engine_blob(engine, "data", blob, &size), EBB_DONE) << last_message();
  EXPECT_EQ(std::string(blob, size), "at 4");
  for (std::uint64_t more = 4; more < 7; ++more)
    ASSERT_EQ(second.step(engine, more), EBB_DONE) << last_message();
  ASSERT_EQ(ebb_engine_close(engine), EBB_DONE) << last_message();
  EXPECT_EQ(second.weights, trained_in_cpp(scratch_ / "cpp", 7));
}

TEST_F(CEngine, AStoreThatIsExpectedIsNamedAsItIsTold) {
  SmallModel model;
  ebb_engine* engine = opened(model);
  const std::string said = about(engine), key = "\"store_id\":\"";
  const std::string id = said.substr(said.find(key) + key.size(), 32);
  ASSERT_EQ(ebb_engine_close(engine), EBB_DONE) << last_message();
  const auto places = SmallModel::buffers(model.weights);
  const std::string directory = scratch_ / "swap";
  ebb_start start = {};
  start.size = sizeof(start);
  start.directory = directory.c_str();
  start.weights = places.data();
  start.expected_store = id.c_str();
  ASSERT_EQ(ebb_engine_open(&model.model, ranks_, &start, &engine), EBB_DONE) << last_message();
  ASSERT_EQ(ebb_engine_close(engine), EBB_DONE) << last_message();
  const std::string other(32, 'a');
  start.expected_store = other.c_str();
  EXPECT_EQ(ebb_engine_open(&model.model, ranks_, &start, &engine), EBB_STATE);
  EXPECT_NE(last_message().find("store " + other + " was expected"), std::string::npos);
  start.expected_store = "the last one";
  EXPECT_NE(ebb_engine_open(&model.model, ranks_, &start, &engine), EBB_DONE);
}

TEST_F(CEngine, AStepInTwoCallsIsTheSameStep) {
  SmallModel one, two;
  ebb_engine* const plain = opened(one, "plain");
  ebb_engine* const parted = opened(two, "parted");
  static constexpr std::uint32_t kAll[] = {0, 1, 2, 3};
  for (std::uint64_t step = 0; step < 3; ++step) {
    ASSERT_EQ(one.step(plain, step), EBB_DONE) << last_message();
    two.set_gradients(step);
    const auto given = SmallModel::buffers(two.gradients);
    ASSERT_EQ(ebb_engine_gradients(parted, kAll, given.data(), nullptr, 4), EBB_DONE);
    ebb_step_result begun = {}, ended = {};
    begun.size = ended.size = sizeof(begun);
    ASSERT_EQ(ebb_engine_begin_step(parted, nullptr, &begun), EBB_DONE) << last_message();
    for (const std::uint32_t param : kAll)
      ASSERT_EQ(ebb_engine_wait_parameter(parted, param), EBB_DONE) << last_message();
    ASSERT_EQ(ebb_engine_wait_step(parted, &ended), EBB_DONE) << last_message();
    EXPECT_EQ(begun.norm, ended.norm);
    EXPECT_EQ(one.weights, two.weights);
  }
  EXPECT_EQ(ebb_engine_close(plain), EBB_DONE);
  EXPECT_EQ(ebb_engine_close(parted), EBB_DONE);
}

TEST_F(CEngine, StateGoesOutAndInByName) {
  SmallModel model;
  ebb_engine* const engine = opened(model);
  for (std::uint64_t step = 0; step < 2; ++step)
    ASSERT_EQ(model.step(engine, step), EBB_DONE) << last_message();
  static constexpr std::uint32_t kMatrices[] = {0, 1, 2};
  static constexpr const char *kMaster[] = {"master"}, *kMomentum[] = {"momentum_buffer"},
                              *kExpAvg[] = {"exp_avg"};
  Weights read(3, std::vector<float>(24 * 16));
  const auto places = SmallModel::buffers(read);
  ASSERT_EQ(ebb_engine_read_states(engine, kMaster, 1, kMatrices, places.data(), 3), EBB_DONE)
      << last_message();
  EXPECT_EQ(read, Weights(model.weights.begin(), model.weights.begin() + 3));
  ASSERT_EQ(ebb_engine_read_states(engine, kMomentum, 1, kMatrices, places.data(), 3), EBB_DONE);
  for (auto& one : read) one[5] += 1;
  ASSERT_EQ(ebb_engine_write_states(engine, kMomentum, 1, kMatrices, places.data(), 3, -1),
            EBB_DONE)
      << last_message();
  EXPECT_EQ(ebb_engine_wait_parameter(engine, 0), EBB_DONE) << last_message();
  Weights again(3, std::vector<float>(24 * 16));
  const auto into = SmallModel::buffers(again);
  ASSERT_EQ(ebb_engine_read_states(engine, kMomentum, 1, kMatrices, into.data(), 3), EBB_DONE);
  EXPECT_EQ(again, read);
  EXPECT_NE(about(engine).find(R"("taken":{})"), std::string::npos) << about(engine);
  std::vector<std::vector<float>> vector(1, std::vector<float>(40));
  const auto moment = SmallModel::buffers(vector);
  static constexpr std::uint32_t kBias = 3;
  ASSERT_EQ(ebb_engine_write_states(engine, kExpAvg, 1, &kBias, moment.data(), 1, 17), EBB_DONE);
  EXPECT_NE(about(engine).find(R"("taken":{"bias":17})"), std::string::npos) << about(engine);
  // Several at once, one behind the other.
  static constexpr const char* kBoth[] = {"exp_avg_sq", "exp_avg"};
  std::vector<std::vector<float>> both(2, std::vector<float>(40, 3));
  const auto moments = SmallModel::buffers(both);
  ASSERT_EQ(ebb_engine_read_states(engine, kBoth, 2, &kBias, moments.data(), 1), EBB_DONE);
  EXPECT_EQ(both[1], vector[0]);
  both[0].swap(both[1]);
  const auto swapped = SmallModel::buffers(both);
  ASSERT_EQ(ebb_engine_write_states(engine, kBoth, 2, &kBias, swapped.data(), 1, -1), EBB_DONE);
  ASSERT_EQ(ebb_engine_read_states(engine, kBoth, 1, &kBias, moments.data(), 1), EBB_DONE);
  EXPECT_EQ(both[0], vector[0]);

  model.weights[1][3] = 0.75f;  // a trainer's own edit
  ASSERT_EQ(ebb_engine_take_weights(engine, kMatrices, 3), EBB_DONE) << last_message();
  ASSERT_EQ(ebb_engine_read_states(engine, kMaster, 1, kMatrices, into.data(), 3), EBB_DONE);
  EXPECT_EQ(again[1][3], 0.75f);
  EXPECT_EQ(ebb_engine_close(engine), EBB_DONE);
}

TEST_F(CEngine, SettingsChangeAndAreToldWithAllOthers) {
  SmallModel model;
  ebb_engine* const engine = opened(model);
  ASSERT_EQ(ebb_engine_set(engine, 1, "lr", 0.25), EBB_DONE) << last_message();
  EXPECT_NE(about(engine).find("\"lr\":\"0.25\""), std::string::npos) << about(engine);
  EXPECT_EQ(ebb_engine_set(engine, 1, "beta", 0.5), EBB_USAGE);
  EXPECT_EQ(ebb_engine_set(engine, 2, "lr", 0.5), EBB_USAGE);
  EXPECT_EQ(last_message(), "group 2: the model has 2");
  char* json = nullptr;
  ASSERT_EQ(ebb_engine_stats(engine, &json), EBB_DONE);
  EXPECT_NE(std::string(json).find("\"engine_steps\":0"), std::string::npos) << json;
  ebb_free(json);
  EXPECT_EQ(ebb_engine_close(engine), EBB_DONE);
}

TEST_F(CEngine, GradientsThatAreNoneOrSeveralAreSaidAsKinds) {
  SmallModel model;
  model.model.hand_in = EBB_ADDED;
  ebb_engine* const engine = opened(model);
  static constexpr std::uint32_t kAll[] = {0, 1, 2, 3};
  const auto untouched = model.weights[1];
  model.set_gradients(0);
  const auto given = SmallModel::buffers(model.gradients);
  static constexpr std::uint8_t kKinds[] = {EBB_ADD, EBB_NONE_UNTOUCHED, EBB_NONE_ZERO, EBB_ADD};
  ASSERT_EQ(ebb_engine_gradients(engine, kAll, given.data(), kKinds, 4), EBB_DONE)
      << last_message();
  ASSERT_EQ(ebb_engine_step(engine, nullptr, nullptr), EBB_DONE) << last_message();
  EXPECT_EQ(model.weights[1], untouched);
  static constexpr std::uint8_t kNone[] = {9};
  EXPECT_EQ(ebb_engine_gradients(engine, kAll, given.data(), kNone, 1), EBB_USAGE);
  EXPECT_EQ(last_message(), "kind 9 of a gradient is none");
  EXPECT_EQ(ebb_engine_close(engine), EBB_DONE);
}

TEST_F(CEngine, SavesToAnotherFolderAndGoesOnThere) {
  SmallModel model;
  ebb_engine* engine = opened(model);
  ASSERT_EQ(model.step(engine, 0), EBB_DONE) << last_message();
  ASSERT_EQ(ebb_engine_save_to(engine, (scratch_ / "other").c_str()), EBB_DONE) << last_message();
  ASSERT_EQ(ebb_engine_close(engine), EBB_DONE) << last_message();
  SmallModel second;
  engine = opened(second, "other");
  EXPECT_EQ(second.weights, model.weights);
  EXPECT_EQ(ebb_engine_close(engine), EBB_DONE);
}

TEST_F(CEngine, PlansAndPiecesAreTheEnginesOwn) {
  SmallModel model;
  model.layout = {sizeof(ebb_layout), EBB_ROWS, 0, 0, 0, nullptr, nullptr, 0, 0};
  ebb_plan plan = {};
  plan.size = sizeof(plan);
  ASSERT_EQ(ebb_model_plan(&model.model, 1, 3, &plan), EBB_DONE) << last_message();
  EXPECT_GT(plan.state_bytes, 0u);
  EXPECT_LE(plan.memory_bytes, model.model.budget_bytes);
  EXPECT_GT(plan.ranks_bytes, 0u);
  // Rows of 24 over 3: 8 a rank; of 40: 14, 14, 12.
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    std::uint64_t offsets[2] = {}, extents[2] = {};
    std::uint32_t boxes = 1;
    ASSERT_EQ(ebb_model_pieces(&model.model, rank, 3, EBB_WEIGHTS, 0, offsets, extents, &boxes),
              EBB_DONE)
        << last_message();
    EXPECT_EQ(boxes, 1u);
    EXPECT_EQ(std::vector(offsets, offsets + 2), (std::vector<std::uint64_t>{8 * rank, 0}));
    EXPECT_EQ(std::vector(extents, extents + 2), (std::vector<std::uint64_t>{8, 16}));
    boxes = 1;
    ASSERT_EQ(ebb_model_pieces(&model.model, rank, 3, EBB_GRADIENTS, 3, offsets, extents, &boxes),
              EBB_DONE);
    EXPECT_EQ(offsets[0], 14 * rank);
    EXPECT_EQ(extents[0], rank == 2 ? 12u : 14u);
  }
  EXPECT_EQ(ebb_model_plan(&model.model, 3, 3, &plan), EBB_USAGE);
  EXPECT_EQ(last_message(), "rank 3 in a world of 3");
}

// Tensor parallelism: columns of a matrix are one box, not one a row.
TEST_F(CEngine, APieceOfColumnsIsOneBox) {
  SmallModel model;
  static constexpr ebb_axis kAxes[] = {{"data", 1}, {"tensor", 2}};
  static constexpr const char* kShards[] = {"data"};
  static constexpr ebb_on_axis kColumns[] = {{"tensor", 1}};
  ebb_partition part = {};
  part.size = sizeof(part);
  part.name = "columns";
  const ebb_layout rows = {sizeof(ebb_layout), EBB_ROWS, 0, 0, 0, nullptr, nullptr, 0, 0};
  part.gradients = part.weights = &rows;
  part.shards = kShards;
  part.shard_count = 1;
  model.model.axes = kAxes;
  model.model.axis_count = 2;
  model.model.partitions = &part;
  model.model.partition_count = 1;
  model.layout.shard_world = 0;
  for (ebb_param& param : model.params) {
    if (param.ndim != 2) continue;
    param.partition = "columns";
    param.cuts = kColumns;
    param.cut_count = 1;
  }
  std::uint64_t offsets[2] = {}, extents[2] = {};
  std::uint32_t boxes = 1;
  ASSERT_EQ(ebb_model_pieces(&model.model, 1, 2, EBB_WEIGHTS, 0, offsets, extents, &boxes),
            EBB_DONE)
      << last_message();
  EXPECT_EQ(boxes, 1u);
  EXPECT_EQ(std::vector(offsets, offsets + 2), (std::vector<std::uint64_t>{0, 8}));
  EXPECT_EQ(std::vector(extents, extents + 2), (std::vector<std::uint64_t>{24, 8}));
}

// The example, as it is shipped, twice.
TEST(CMinimal, LearnsAndGoesOnWhereItWas) {
  const test_support::ScratchDirectory scratch;
  const auto first = test_support::run_program("c_minimal", {scratch / "swap"});
  EXPECT_EQ(first.exit, 0) << first.err;
  EXPECT_TRUE(test_support::says(first.out, "step 10: loss 1.9878\n")) << first.out;
  const auto second = test_support::run_program("c_minimal", {scratch / "swap"});
  EXPECT_EQ(second.exit, 0) << second.err;
  EXPECT_FALSE(test_support::says(second.out, "step 50: ")) << second.out;
  const auto at = second.out.find("step 100: loss ");
  ASSERT_NE(at, std::string::npos) << second.out;
  EXPECT_LT(std::stod(second.out.substr(at + 15)), 0.2);
}

// A step is put away under nobody who looks at it, on whatever thread.
TEST_F(CEngine, GoesBackBesideThreadsThatWaitForAParameter) {
  SmallModel model;
  ebb_engine* const engine = opened(model);
  std::atomic<bool> over = false;
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (std::uint32_t param = 0; param < 3; ++param)
    threads.emplace_back([&, param] {
      while (!over)
        if (const ebb_status status = ebb_engine_wait_parameter(engine, param); status != EBB_DONE)
          refused += status == EBB_STATE ? 0 : 1;
    });
  for (std::uint64_t step = 0; step < 30; ++step) {
    ASSERT_EQ(model.step(engine, 0), EBB_DONE) << last_message();
    ASSERT_EQ(ebb_engine_abandon(engine), EBB_DONE) << last_message();
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(ebb_engine_close(engine), EBB_DONE);
}

}  // namespace
}  // namespace ebb::c
