// Arguments that are wrong, one at a time: refused by name, before anything is opened.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "tests/bindings/c/opened_engine.h"

namespace ebb::c {
namespace {

using Change = std::function<void(SmallModel&)>;

ebb_status planned(const Change& change, ebb_plan* plan = nullptr) {
  SmallModel model;
  change(model);
  ebb_plan room = {};
  room.size = sizeof(room);
  return ebb_model_plan(&model.model, 0, 1, plan == nullptr ? &room : plan);
}

TEST(CArguments, AreRefusedByName) {
  struct Case {
    const char* message;
    Change change;
  };
  static constexpr ebb_setting kWrong[] = {{"momentun", "0.9"}};
  static constexpr ebb_setting kNotKept[] = {{"momentum_buffer", "none"}};
  static constexpr ebb_setting kNoValue[] = {{"lr", nullptr}};
  static constexpr ebb_axis kAxes[] = {{"data", 0}};
  static constexpr ebb_setting kDevice[] = {{"exp_avg", "device"}};
  const std::vector<Case> cases = {
      {"the model's params is NULL", [](SmallModel& m) { m.model.params = nullptr; }},
      {"the model's groups is NULL", [](SmallModel& m) { m.model.groups = nullptr; }},
      {"parameter 1: name is NULL", [](SmallModel& m) { m.params[1].name = nullptr; }},
      {"b: shape is NULL", [](SmallModel& m) { m.params[1].shape = nullptr; }},
      {"b: weight_dtype = 77 is no dtype", [](SmallModel& m) { m.params[1].weight_dtype = 77; }},
      {"b: gradient_dtype = -3 is no dtype",
       [](SmallModel& m) { m.params[1].gradient_dtype = -3; }},
      {"group 0: optimizer is NULL", [](SmallModel& m) { m.groups[0].optimizer = nullptr; }},
      {"group 1: optimizer \"adam\"", [](SmallModel& m) { m.groups[1].optimizer = "adam"; }},
      {"momentun",
       [](SmallModel& m) { m.groups[0].settings = kWrong, m.groups[0].setting_count = 1; }},
      {"group 0: lr is NULL",
       [](SmallModel& m) { m.groups[0].settings = kNoValue, m.groups[0].setting_count = 1; }},
      {"moonlihgt", [](SmallModel& m) { m.groups[0].preset = "moonlihgt"; }},
      {"the model's gradients: policy = 9 is none of its values",
       [](SmallModel& m) { m.layout.policy = 9; }},
      {"the model's gradients says that it has 0 bytes", [](SmallModel& m) { m.layout.size = 0; }},
      {"the model's weights is NULL", [](SmallModel& m) { m.model.weights = nullptr; }},
      {"group 1 has 32 bytes, and the first 40", [](SmallModel& m) { m.groups[1].size = 32; }},
      {"the model's placement = -1 is none of its values",
       [](SmallModel& m) { m.model.placement = -1; }},
      {"the model's hand_in = 3 is none of its values", [](SmallModel& m) { m.model.hand_in = 3; }},
      {"the axes have 0 ranks",
       [](SmallModel& m) { m.model.axes = kAxes, m.model.axis_count = 1; }},
      {"the model says that it has 3 bytes", [](SmallModel& m) { m.model.size = 3; }},
      {"the model says that it has 44 bytes", [](SmallModel& m) { m.model.size = 44; }},
      {"parameter 2 says that it has 0 bytes", [](SmallModel& m) { m.params[2].size = 0; }},
      {"group 7", [](SmallModel& m) { m.params[2].group = 7; }},
      {"momentum_buffer cannot be kept as none",
       [](SmallModel& m) { m.model.dtypes = kNotKept, m.model.dtype_count = 1; }},
      {"the model's dtypes is NULL", [](SmallModel& m) { m.model.dtype_count = 1; }},
      {"the model's gradients_on_device = 2 is none of its values",
       [](SmallModel& m) { m.model.gradients_on_device = 2; }},
      {"the model says what lies on a device, and has none",
       [](SmallModel& m) { m.model.weights_on_device = 1; }},
      {"the model says what lies on a device, and has none",
       [](SmallModel& m) { m.model.device_budget_bytes = 1; }},
      {"tiers: exp_avg = \"device\"",
       [](SmallModel& m) { m.model.tiers = kDevice, m.model.tier_count = 1; }},
      {"there is no such device",
       [](SmallModel& m) { m.model.device = reinterpret_cast<ebb_device*>(&m); }},
      {"budget", [](SmallModel& m) { m.model.budget_bytes = 1; }},
      {"tile", [](SmallModel& m) { m.model.tile_bytes = 5; }},
  };
  for (const Case& one : cases) {
    EXPECT_NE(planned(one.change), EBB_DONE) << one.message;
    EXPECT_NE(last_message().find(one.message), std::string::npos) << one.message << "\n"
                                                                   << last_message();
  }
  EXPECT_EQ(ebb_model_plan(nullptr, 0, 1, nullptr), EBB_USAGE);
  EXPECT_EQ(last_message(), "the model is NULL");
}

// A program that was compiled against the header of another version.
TEST(CArguments, AnOlderCallersStructIsReadAsFarAsItGoes) {
  ebb_plan small = {};
  small.size = offsetof(ebb_plan, disk_bytes);
  small.disk_bytes = 4711;
  ASSERT_EQ(planned([](SmallModel&) {}, &small), EBB_DONE) << last_message();
  EXPECT_GT(small.memory_bytes, 0u);
  EXPECT_EQ(small.disk_bytes, 4711u) << "is not the caller's struct any more";
  // A model without what came behind the tile's size, whatever lies there.
  ASSERT_EQ(planned([](SmallModel& m) {
              std::memset(reinterpret_cast<char*>(&m.model) + offsetof(ebb_model, chunk_bytes),
                          0xee, sizeof(ebb_model) - offsetof(ebb_model, chunk_bytes));
              m.model.size = offsetof(ebb_model, chunk_bytes);
            }),
            EBB_DONE)
      << last_message();
}

// Its arrays lie as it was compiled.
TEST(CArguments, AnOlderCallersArrayIsReadInItsOwnSteps) {
  struct OlderGroup {
    std::uint64_t size;
    const char* optimizer;
    const char* preset;
  };
  static constexpr OlderGroup kGroups[] = {{sizeof(OlderGroup), "muon", nullptr},
                                           {sizeof(OlderGroup), "adamw", nullptr}};
  EXPECT_EQ(
      planned([](SmallModel& m) { m.model.groups = reinterpret_cast<const ebb_group*>(kGroups); }),
      EBB_DONE)
      << last_message();
}

using CArgumentsOfEngines = OpenedEngine;

TEST_F(CArgumentsOfEngines, ANewerCallersStructIsReadWhereItAsksForNothingNew) {
  struct Newer {
    ebb_step_args args;
    std::uint64_t new_field;
  };
  static constexpr std::uint32_t kAll[] = {0, 1, 2, 3};
  const auto given = SmallModel::buffers(model_.gradients);
  ASSERT_EQ(ebb_engine_gradients(engine_, kAll, given.data(), nullptr, 4), EBB_DONE);
  Newer newer = {{sizeof(Newer), 0, 0}, 1};
  EXPECT_EQ(ebb_engine_step(engine_, &newer.args, nullptr), EBB_UNSUPPORTED);
  EXPECT_NE(last_message().find("the step's arguments asks, in byte 24,"), std::string::npos)
      << last_message();
  newer.new_field = 0;
  EXPECT_EQ(ebb_engine_step(engine_, &newer.args, nullptr), EBB_DONE) << last_message();
  EXPECT_EQ(ebb_engine_close(engine_), EBB_DONE);
  EXPECT_EQ(ebb_ranks_close(ranks_), EBB_DONE);
}

TEST_F(CArgumentsOfEngines, OfAnEngineAreCheckedBeforeItIsAsked) {
  static constexpr std::uint32_t kFifth[] = {4}, kFirst[] = {0};
  auto buffers = SmallModel::buffers(model_.gradients);
  const auto refused = [&](ebb_status status, ebb_status wanted, const std::string& message) {
    EXPECT_EQ(status, wanted) << message;
    EXPECT_NE(last_message().find(message), std::string::npos) << last_message();
  };
  const auto with = [&](const std::function<void(ebb_buffer&)>& change) {
    ebb_buffer one = buffers[0];
    change(one);
    return ebb_engine_gradients(engine_, kFirst, &one, nullptr, 1);
  };
  refused(ebb_engine_gradients(engine_, kFifth, buffers.data(), nullptr, 1), EBB_USAGE,
          "parameter 4: the model has 4");
  refused(ebb_engine_gradients(engine_, nullptr, buffers.data(), nullptr, 1), EBB_USAGE,
          "params is NULL");
  refused(ebb_engine_gradients(engine_, kFirst, nullptr, nullptr, 1), EBB_USAGE,
          "the gradients is NULL");
  refused(with([](ebb_buffer& b) { b.data = nullptr; }), EBB_USAGE, "a is NULL");
  refused(with([](ebb_buffer& b) { b.device = 0; }), EBB_UNSUPPORTED, "a: memory of device 0");
  refused(with([](ebb_buffer& b) { b.stream = &b; }), EBB_UNSUPPORTED,
          "a: it comes with a stream, and the model has no device");
  refused(with([](ebb_buffer& b) { b.dtype = 99; }), EBB_USAGE, "a: dtype = 99 is no dtype");
  refused(with([](ebb_buffer& b) { b.dtype = EBB_BF16; }), EBB_USAGE, "a");
  refused(with([](ebb_buffer& b) { --b.elems; }), EBB_LAYOUT, "a");
  refused(ebb_engine_wait_parameter(engine_, 4), EBB_USAGE, "parameter 4: the model has 4");
  refused(ebb_engine_set(engine_, 0, nullptr, 1), EBB_USAGE, "ebb_engine_set: key is NULL");
  refused(ebb_engine_save_to(engine_, nullptr), EBB_USAGE, "ebb_engine_save_to: directory is NULL");
  const auto read = [&](std::vector<const char*> states, std::vector<ebb_buffer> into) {
    return ebb_engine_read_states(engine_, states.data(), static_cast<std::uint32_t>(states.size()),
                                  kFirst, into.data(), 1);
  };
  refused(read({"momentum"}, {buffers[0]}), EBB_USAGE, "momentum");
  refused(read({nullptr}, {buffers[0]}), EBB_USAGE, "the state's name is NULL");
  refused(read({"master", "master"}, {buffers[0], buffers[0]}), EBB_USAGE, "master is named twice");
  refused(read({"master", "exp_avg"}, {buffers[0], buffers[0]}), EBB_USAGE, "a has no exp_avg");
  refused(ebb_engine_read_states(engine_, nullptr, 1, kFirst, buffers.data(), 1), EBB_USAGE,
          "states is NULL");
  refused(ebb_engine_take_weights(engine_, kFifth, 1), EBB_USAGE, "4");
  refused(ebb_engine_set_blob(engine_, nullptr, "", 0), EBB_USAGE, "key is NULL");
  refused(ebb_engine_blob(engine_, "key", nullptr, nullptr), EBB_USAGE, "size is NULL");
  refused(ebb_engine_about(engine_, nullptr), EBB_USAGE, "json is NULL");
  EXPECT_EQ(model_.step(engine_, 0), EBB_DONE) << last_message();
  EXPECT_EQ(ebb_engine_close(engine_), EBB_DONE);
  EXPECT_EQ(ebb_ranks_close(ranks_), EBB_DONE);
}

}  // namespace
}  // namespace ebb::c
