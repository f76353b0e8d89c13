// Steps on a device through ebb.h, over the plugin whose kernels run on the host: the bits of the
// engine of C++ on it, from the host's memory and from the device's own.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/bindings/c/trained_in_cpp.h"
#include "tests/libmuon/cuda/plugged.h"
#include "tests/support/in_child.h"
#include "tests/support/program.h"

namespace ebb::c {
namespace {

constexpr std::uint64_t kSteps = 3;

class CDevice : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(ebb_ranks_alone(&ranks_), EBB_DONE);
    ASSERT_EQ(ebb_device_open(EBB_CUDA_STUB, 0, &device_), EBB_DONE) << last_message();
    model_.model.device = device_;
  }
  // A test may have closed them.
  void TearDown() override {
    ebb_engine_close(engine_);
    ebb_device_close(device_);
    ebb_ranks_close(ranks_);
    EXPECT_EQ(plugged_.allocated(), 0u);
    EXPECT_EQ(plugged_.pinned(), 0u);
  }
  void open() {
    ASSERT_EQ(model_.open(ranks_, scratch_ / "swap", &engine_), EBB_DONE) << last_message();
  }
  Weights in_cpp() { return trained_in_cpp(scratch_ / "cpp", kSteps, &plugged_.accelerator()); }

  const test_support::ScratchDirectory scratch_;
  test::Plugged plugged_;  // the same device, as a trainer has it
  SmallModel model_;
  ebb_ranks* ranks_ = nullptr;
  ebb_device* device_ = nullptr;
  ebb_engine* engine_ = nullptr;
};

TEST_F(CDevice, StepsWithTheBitsOfTheCppEngineOnIt) {
  char* name = nullptr;
  ASSERT_EQ(ebb_device_name(device_, &name), EBB_DONE) << last_message();
  EXPECT_STREQ(name, "Stub 0");
  ebb_free(name);
  open();
  for (std::uint64_t step = 0; step < kSteps; ++step)
    ASSERT_EQ(model_.step(engine_, step), EBB_DONE) << last_message();
  EXPECT_GT(plugged_.calls("prepare_kernel"), 0u);
  EXPECT_GT(plugged_.calls("adamw_kernel"), 0u);
  EXPECT_EQ(model_.weights, in_cpp());
  // The host's in AdamW; in Newton-Schulz but for the order of sums.
  const Weights host = trained_in_cpp(scratch_ / "host", kSteps);
  EXPECT_EQ(model_.weights[3], host[3]);
  for (std::size_t i = 0; i < host[0].size(); ++i)
    EXPECT_NEAR(model_.weights[0][i], host[0][i], 1e-5);
}

// The gradients and weights of a trainer that computes there. Each gradient is made by work of the
// trainer's stream that is under way, late, when it is handed in.
TEST_F(CDevice, TakesWhatLiesThereBehindTheCallersStream) {
  plugged_.call(ebb_stub_late, "ebb_stub_late", 300u);
  void* const stream = plugged_.call(ebb_stub_open_stream, "ebb_stub_open_stream");
  std::vector<test::There<float>> weights, gradients;
  std::vector<ebb_buffer> places;
  for (auto& one : model_.weights) {
    weights.emplace_back(plugged_.device(), one, DType::f32);
    gradients.emplace_back(plugged_.device(), one, DType::f32);
    places.push_back({weights.back().buffer().data, one.size(), EBB_F32, 0, stream});
  }
  model_.model.gradients_on_device = model_.model.weights_on_device = 1;
  const std::string directory = scratch_ / "swap";
  ebb_start start = {};
  start.size = sizeof(start);
  start.directory = directory.c_str();
  start.weights = places.data();
  ASSERT_EQ(ebb_engine_open(&model_.model, ranks_, &start, &engine_), EBB_DONE) << last_message();
  static constexpr std::uint32_t kAll[] = {0, 1, 2, 3};
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    model_.set_gradients(step);
    std::vector<ebb_buffer> given;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const libswap::Buffer there = gradients[i].buffer();
      for (auto& number : gradients[i].here = model_.gradients[i]) number -= 1;
      libswap::copy(gradients[i].host(), there, {}).wait();
      plugged_.call(ebb_stub_add_one, "ebb_stub_add_one", stream,
                    reinterpret_cast<float*>(there.data), there.elems);
      given.push_back({there.data, there.elems, EBB_F32, 0, stream});
    }
    ASSERT_EQ(ebb_engine_gradients(engine_, kAll, given.data(), nullptr, 4), EBB_DONE)
        << last_message();
    ASSERT_EQ(ebb_engine_step(engine_, nullptr, nullptr), EBB_DONE) << last_message();
  }
  EXPECT_EQ(ebb_engine_close(engine_), EBB_DONE) << last_message();
  plugged_.call(ebb_stub_close_stream, "ebb_stub_close_stream", stream);
  // Less one and one more: other roundings, which in_cpp() has not.
  SmallModel plain;
  plain.model.device = device_;
  ebb_engine* beside = nullptr;
  ASSERT_EQ(plain.open(ranks_, scratch_ / "beside", &beside), EBB_DONE) << last_message();
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    plain.set_gradients(step);
    for (auto& one : plain.gradients)
      for (float& number : one) number = (number - 1) + 1;
    const auto given = SmallModel::buffers(plain.gradients);
    ASSERT_EQ(ebb_engine_gradients(beside, kAll, given.data(), nullptr, 4), EBB_DONE);
    ASSERT_EQ(ebb_engine_step(beside, nullptr, nullptr), EBB_DONE) << last_message();
  }
  EXPECT_EQ(ebb_engine_close(beside), EBB_DONE) << last_message();
  for (std::size_t i = 0; i < weights.size(); ++i)
    EXPECT_EQ(weights[i].back({}), plain.weights[i]) << i;
}

TEST_F(CDevice, IsPlannedAndItsBudgetIsALimit) {
  ebb_plan plan = {}, host = {};
  plan.size = host.size = sizeof(plan);
  ASSERT_EQ(ebb_model_plan(&model_.model, 0, 1, &plan), EBB_DONE) << last_message();
  EXPECT_GT(plan.device_bytes, 0u);
  open();
  EXPECT_LE(plugged_.allocated(), plan.device_bytes + 256 * 16) << "and what alignment takes";
  EXPECT_EQ(ebb_engine_close(engine_), EBB_DONE);
  model_.model.device_budget_bytes = plan.device_bytes;
  EXPECT_EQ(ebb_model_plan(&model_.model, 0, 1, &plan), EBB_DONE) << last_message();
  model_.model.device_budget_bytes = plan.device_bytes - 1;
  EXPECT_EQ(ebb_model_plan(&model_.model, 0, 1, &plan), EBB_NO_MEMORY);
  EXPECT_NE(last_message().find("bytes of the device is too small"), std::string::npos)
      << last_message();
  EXPECT_EQ(model_.open(ranks_, scratch_ / "small", &engine_), EBB_NO_MEMORY);
  SmallModel other;
  ASSERT_EQ(ebb_model_plan(&other.model, 0, 1, &host), EBB_DONE) << last_message();
  EXPECT_EQ(host.device_bytes, 0u);
  EXPECT_GT(host.memory_bytes, plan.memory_bytes) << "updates and scratch are there";
}

TEST_F(CDevice, KeepsStateWhereATierSaysSo) {
  static constexpr ebb_setting kThere[] = {{"master", "device"}, {"momentum_buffer", "device"}};
  model_.model.tiers = kThere;
  model_.model.tier_count = 2;
  open();
  for (std::uint64_t step = 0; step < kSteps; ++step)
    ASSERT_EQ(model_.step(engine_, step), EBB_DONE) << last_message();
  EXPECT_EQ(model_.weights, in_cpp());
}

TEST_F(CDevice, StaysWithItsEngineWhenItsHandleIsClosed) {
  open();
  EXPECT_EQ(ebb_device_close(device_), EBB_DONE) << last_message();
  ebb_plan plan = {};
  plan.size = sizeof(plan);
  EXPECT_EQ(ebb_model_plan(&model_.model, 0, 1, &plan), EBB_USAGE);
  EXPECT_EQ(last_message(), "there is no such device: it was closed, or never was one");
  for (std::uint64_t step = 0; step < kSteps; ++step)
    ASSERT_EQ(model_.step(engine_, step), EBB_DONE) << last_message();
  EXPECT_EQ(model_.weights, in_cpp());
}

// A data loader's worker: CUDA is not to be called in it.
TEST_F(CDevice, IsLetGoInAForkedChildWithoutACall) {
  open();
  ASSERT_EQ(model_.step(engine_, 0), EBB_DONE) << last_message();
  const auto said = test_support::in_child([&]() -> std::string {
    // What is freed is counted by what is left; a thread that is joined would wait for ever.
    const auto count = [&] {
      return plugged_.allocated() + plugged_.pinned() + plugged_.calls("cudaStreamSynchronize") +
             plugged_.calls("cudaEventRecord") + plugged_.calls("cudaMemcpyAsync");
    };
    const std::uint64_t before = count();
    char* name = nullptr;
    if (ebb_device_name(device_, &name) != EBB_STATE) return "its name is told";
    ebb_plan plan = {};
    plan.size = sizeof(plan);
    if (ebb_model_plan(&model_.model, 0, 1, &plan) != EBB_STATE) return "a plan is made";
    if (ebb_engine_close(engine_) != EBB_DONE) return last_message();
    if (ebb_device_close(device_) != EBB_DONE) return last_message();
    return count() == before ? "" : "CUDA was called";
  });
  EXPECT_EQ(said, "");
  EXPECT_EQ(model_.step(engine_, 1), EBB_DONE) << last_message();
}

TEST_F(CDevice, ThatFailsStopsTheStepAndGoesOnElsewhere) {
  open();
  ASSERT_EQ(model_.step(engine_, 0), EBB_DONE) << last_message();
  ASSERT_EQ(ebb_engine_snapshot(engine_, nullptr), EBB_DONE) << last_message();
  ASSERT_EQ(ebb_engine_wait_snapshot(engine_, nullptr), EBB_DONE) << last_message();
  plugged_.fail("finish_kernel");
  EXPECT_EQ(model_.step(engine_, 1), EBB_IO);
  EXPECT_NE(last_message().find("Stub 0: "), std::string::npos) << last_message();
  EXPECT_EQ(ebb_engine_close(engine_), EBB_DONE) << last_message();
  plugged_.fail(nullptr);
  model_.model.device = nullptr;  // the host
  open();
  EXPECT_EQ(model_.step(engine_, 1), EBB_DONE) << last_message();
}

TEST_F(CDevice, RefusesMemoryThatIsNotWhereTheModelSays) {
  open();
  static constexpr std::uint32_t kFirst[] = {0};
  test::There<float> there(plugged_.device(), model_.weights[0], DType::f32);
  const auto with = [&](void* data, std::int32_t device) {
    const ebb_buffer one = {data, model_.weights[0].size(), EBB_F32, device, nullptr};
    const ebb_status status = ebb_engine_gradients(engine_, kFirst, &one, nullptr, 1);
    return std::pair(status, last_message());
  };
  const auto other = with(there.buffer().data, 1);
  EXPECT_EQ(other.first, EBB_UNSUPPORTED);
  EXPECT_EQ(other.second, "a: memory of device 1; here it is the host's, or of device 0");
  const auto elsewhere = with(there.buffer().data, 0);
  EXPECT_EQ(elsewhere.first, EBB_USAGE);
  EXPECT_NE(elsewhere.second.find("it lies in the memory of Stub 0, where that of the host is"),
            std::string::npos)
      << elsewhere.second;
}

TEST_F(CDevice, DoesNotTakeWhatTheHostAloneDoes) {
  for (ebb_param& param : model_.params) param.weight_dtype = EBB_BF16;
  static constexpr ebb_setting kHalves[] = {{"master", "U16"}};
  model_.model.dtypes = kHalves;
  model_.model.dtype_count = 1;
  model_.model.weights_on_device = 1;
  ebb_plan plan = {};
  plan.size = sizeof(plan);
  EXPECT_EQ(ebb_model_plan(&model_.model, 0, 1, &plan), EBB_UNSUPPORTED);
  EXPECT_NE(last_message().find("master is not kept as U16 of weights that lie on"),
            std::string::npos)
      << last_message();
}

TEST(CDeviceOpening, SaysInOneSentenceWhyNotAndWhatToDo) {
  test::Plugged plugged;
  ebb_device* device = nullptr;
  const auto refused = [&](const char* plugin, std::int32_t index, const std::string& says) {
    const ebb_status status = ebb_device_open(plugin, index, &device);
    EXPECT_NE(last_message().find(says), std::string::npos) << last_message();
    EXPECT_STRNE(ebb_last_error()->hint, "") << says;
    return status;
  };
  EXPECT_EQ(refused("/nowhere/ebb-cuda.so", 0, "cannot load the plugin /nowhere/ebb-cuda.so"),
            EBB_IO);
  EXPECT_EQ(refused("libc.so.6", 0, "libc.so.6 is no plugin"), EBB_UNSUPPORTED);
  EXPECT_EQ(refused(EBB_CUDA_STUB, 2, "there is no device 2, there are 2"), EBB_UNSUPPORTED);
  EXPECT_EQ(refused(EBB_CUDA_STUB, -1, "there is no device -1, there are 2"), EBB_UNSUPPORTED);
  plugged.fail("devices");
  EXPECT_EQ(refused(EBB_CUDA_STUB, 0, "the NVIDIA driver sees no device"), EBB_UNSUPPORTED);
  EXPECT_EQ(ebb_device_open(EBB_CUDA_STUB, 0, nullptr), EBB_USAGE);
  EXPECT_EQ(ebb_device_name(nullptr, nullptr), EBB_USAGE);
  EXPECT_EQ(last_message(), "the device is NULL");
}

// Beside the library, in a build tree: in its bin.
TEST(CDeviceOpening, FindsThePluginThatCameWithTheLibrary) {
  char* json = nullptr;
  ASSERT_EQ(ebb_about(&json), EBB_DONE) << last_message();
  const std::string key = "\"plugin\":\"", text = json;
  ebb_free(json);
  const auto at = text.find(key) + key.size();
  const std::string found = text.substr(at, text.find('"', at) - at);
  EXPECT_TRUE(std::filesystem::equivalent(found, EBB_CUDA_PLUGIN)) << found;
  ebb_device* device = nullptr;
  if (ebb_device_open(nullptr, 0, &device) == EBB_DONE) {
    EXPECT_EQ(ebb_device_close(device), EBB_DONE);
    GTEST_SKIP() << "there is a GPU";
  }
  EXPECT_NE(last_message().find(found + ": there is no NVIDIA driver"), std::string::npos)
      << last_message();
}

}  // namespace
}  // namespace ebb::c
