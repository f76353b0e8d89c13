// What crosses from one format to another, and in which form.
#include "ebb/formats/conversion/convert.h"

#include <gtest/gtest.h>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/formats/registry.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/libswap/read/digest.h"
#include "tests/libswap/transfer/toy_format.h"

namespace ebb::libswap {
namespace {

using formats::EmitRequest;
using testing::MemoryCheckpoint;
using testing::Random;

Result<EmitPlan> emit_nothing(const EmitRequest&) { return EmitPlan{}; }

const testing::ToyFormat kCountsInValues{{.name = "toy", .steps = formats::StepCounters::values},
                                         emit_nothing};
const testing::ToyFormat kCountsInTensors{{.name = "toy"}, emit_nothing};

class Crossing : public ::testing::Test {
 protected:
  Crossing() {
    Catalog& catalog = source_.catalog();
    catalog.format = "elsewhere";
    add("w", "param", DType::bf16, {3, 5});
    const float steps = 17;
    std::memcpy(source_.bytes(add("w", "step", DType::f32, {})).data(), &steps, 4);
    const float half = 2.5;
    std::memcpy(source_.bytes(add("v", "step", DType::f32, {})).data(), &half, 4);
    catalog.tensors[0].key = "model.w";
    catalog.values.push_back({"lr", {"lr"}, Value::of_real(0.5), true});
    catalog.values.push_back({"note", {"note"}, Value::of_string("x")});
  }
  std::uint32_t add(std::string name, std::string state, DType dtype, Shape shape) {
    const std::uint32_t number = source_.add(std::move(name), dtype, shape, random_);
    source_.catalog().tensors[number].state = std::move(state);
    source_.add_chunk(number, formats::whole(shape), 0);
    return number;
  }
  const formats::Format& from() const { return formats::format_of(source_.catalog()); }

  Random random_{3};
  MemoryCheckpoint source_;
};

TEST_F(Crossing, StepCountersBecomeValuesAndEchoesKeysAndFractionsDoNot) {
  const auto made = formats::plan_conversion(source_, {.from = from(), .to = kCountsInValues});
  ASSERT_TRUE(made) << made.error().message;
  const Catalog& content = made->content->catalog();
  EXPECT_EQ(content.param_steps, (std::map<std::string, std::int64_t>{{"w", 17}}));
  ASSERT_EQ(content.tensors.size(), 2u);
  EXPECT_FALSE(content.tensors[0].key.has_value());
  EXPECT_EQ(content.tensors[1].name, "v");
  ASSERT_EQ(content.values.size(), 1u);
  EXPECT_EQ(content.values[0].key, "note");
}

// A torch state dict: a model, an optimizer called "muon", and what frameworks and users add.
class WeightsAlone : public Crossing {
 protected:
  WeightsAlone() {
    Catalog& catalog = source_.catalog();
    catalog.format = "toy";
    catalog.step = 9;
    catalog.tensors[0].path = {"model", "w"};
    catalog.tensors[1].path = {"muon", "state", 0, "step"};
    catalog.tensors[2].path = {"muon", "state", 1, "step"};
    catalog.values.clear();
    add_value({"muon", "param_groups", 0, "lr"});
    add_value({"muon", "state", 0, "kind"});
    add_value({"optim", "extra"});
    add_value({"lr_scheduler", "last_epoch"});
    add_value({"loader", "state", "epoch"});
    add_value({"step"});
    catalog.values.push_back({"ds_config", {}, Value::of_int(1)});
    catalog.values.push_back({"note", {}, Value::of_string("x")});
    catalog.groups = {{"muon", {{"lr", Value::of_real(0.5)}}, {"w"}}};
    catalog.param_steps = {{"w", 17}};
    catalog.containers = {{{"muon", "state"}}, {{"muon"}}, {{"optim"}}, {{"model"}}, {{"empty"}}};
  }
  void add_value(std::vector<formats::PathItem> path) {
    source_.catalog().values.push_back({formats::joined(path), path, Value::of_int(1)});
  }
  formats::Conversion made(const formats::ConvertRequest& request) {
    auto made = formats::plan_conversion(source_, request);
    EXPECT_TRUE(made) << made.error().message;
    return made ? *std::move(made) : formats::Conversion();
  }
  static std::vector<std::string> keys(const Catalog& content) {
    std::vector<std::string> keys;
    for (const ValueEntry& value : content.values) keys.push_back(value.key);
    return keys;
  }
};

TEST_F(WeightsAlone, LeaveWhatOnlyAnOptimizerReads) {
  const formats::Conversion taken =
      made({.from = kCountsInTensors, .to = kCountsInTensors, .wanted = [](const auto& one) {
              return one.state == "param";
            }});
  const Catalog& content = taken.content->catalog();
  ASSERT_EQ(content.tensors.size(), 1u);
  EXPECT_TRUE(content.groups.empty());
  EXPECT_TRUE(content.param_steps.empty());
  EXPECT_EQ(content.step, 9);
  EXPECT_EQ(keys(content), (std::vector<std::string>{"loader.state.epoch", "step", "note"}));
  ASSERT_EQ(content.containers.size(), 2u);
  EXPECT_EQ(content.containers[0].path, (std::vector<formats::PathItem>{"model"}));
  EXPECT_EQ(content.containers[1].path, (std::vector<formats::PathItem>{"empty"}));
  EXPECT_EQ(taken.changes, (std::vector<std::string>{"leaves out what only an optimizer reads: "
                                                     "1 parameter group, 5 values",
                                                     "weights only: a job that loads it starts a "
                                                     "new optimizer"}));
}

TEST_F(WeightsAlone, IsNotWhereSomeOptimizerStateIsTakenOrThereIsNone) {
  const auto is_v = [](const TensorEntry& one) { return one.name == "v"; };
  const auto not_v = [](const TensorEntry& one) { return one.name != "v"; };
  const std::vector<std::function<bool(const TensorEntry&)>> selections = {nullptr, not_v};
  for (const auto& wanted : selections) {
    const formats::Conversion taken =
        made({.from = kCountsInTensors, .to = kCountsInTensors, .wanted = wanted});
    EXPECT_EQ(taken.content->catalog().groups.size(), 1u);
    EXPECT_EQ(taken.content->catalog().values.size(), 8u);
    EXPECT_TRUE(taken.changes.empty());
  }
  const formats::Conversion state =
      made({.from = kCountsInTensors, .to = kCountsInTensors, .wanted = is_v});
  EXPECT_EQ(state.content->catalog().groups.size(), 1u);
  EXPECT_EQ(
      state.changes,
      (std::vector<std::string>{"leaves out the weights of 1 of 1 parameters and buffers: w"}));
  for (TensorEntry& tensor : source_.catalog().tensors) tensor.state = "buffer";
  EXPECT_EQ(made({.from = kCountsInTensors, .to = kCountsInTensors, .wanted = not_v})
                .content->catalog()
                .groups.size(),
            1u);
}

TEST_F(Crossing, StepCountersBecomeTensorsWhereTheTargetKeepsThemSo) {
  source_.catalog().param_steps = {{"x", 9}};
  const auto made = formats::plan_conversion(source_, {.from = from(), .to = kCountsInTensors});
  ASSERT_TRUE(made) << made.error().message;
  const Catalog& content = made->content->catalog();
  EXPECT_TRUE(content.param_steps.empty());
  ASSERT_EQ(content.tensors.size(), 4u);
  EXPECT_EQ(label_of(content.tensors[3]), "x (step)");
  ByteVector bytes(4);
  ASSERT_TRUE(formats::read_box(*made->content, content.tensors[3], {}, bytes));
  EXPECT_EQ(formats::load_le<float>(bytes), 9);
}

TEST_F(Crossing, TheSameFormatKeepsEverythingAsItWas) {
  const auto made =
      formats::plan_conversion(source_, {.from = kCountsInValues, .to = kCountsInValues});
  ASSERT_TRUE(made) << made.error().message;
  const Catalog& content = made->content->catalog();
  EXPECT_TRUE(content.param_steps.empty());
  EXPECT_EQ(content.tensors.size(), 3u);
  EXPECT_EQ(content.tensors[0].key, "model.w");
  EXPECT_EQ(content.values.size(), 2u);
}

// DCP and torch.save hold the same kind of thing.
TEST_F(Crossing, BetweenStateDictsPlacesAndValuesStayAndNamesAreTheTargets) {
  Catalog& catalog = source_.catalog();
  catalog.format = "dcp";
  for (TensorEntry& tensor : catalog.tensors) tensor.key = tensor.name + tensor.state;
  catalog.tensors[0].key = "model.w";
  catalog.tensors[0].path = {"model", "w"};
  catalog.containers = {{{"empty"}, Value::Kind::dict}};
  const formats::Format* torch = formats::format_named("torch");
  const auto made = formats::plan_conversion(source_, {.from = from(), .to = *torch});
  ASSERT_TRUE(made) << made.error().message;
  const Catalog& content = made->content->catalog();
  EXPECT_EQ(content.values.size(), 2u);
  EXPECT_EQ(content.containers.size(), 1u);
  EXPECT_EQ(content.tensors.size(), 3u);
  EXPECT_EQ(content.tensors[0].path, (std::vector<formats::PathItem>{"model", "w"}));
  EXPECT_EQ(label_of(content.tensors[0]), "model.w");
  EXPECT_EQ(content.tensors[0].name, "w");
}

TEST_F(Crossing, ATorchFileLeavesWithTheNamesOfItsParameters) {
  Catalog& catalog = source_.catalog();
  catalog.format = "torch";
  catalog.tensors[0].path = {"model", "w"};
  catalog.tensors[1].path = {"opt", "state", 0, "step"};
  catalog.tensors[2].path = {"opt", "state", 1, "step"};
  for (TensorEntry& tensor : catalog.tensors) tensor.key = formats::joined(tensor.path);
  const auto list = [](Value a, Value b) { return Value::of_list({std::move(a), std::move(b)}); };
  catalog.values = {{"opt.param_groups.0.params",
                     {"opt", "param_groups", 0, "params"},
                     list(Value::of_int(0), Value::of_int(1))},
                    {"opt.param_groups.0.param_names",
                     {"opt", "param_groups", 0, "param_names"},
                     list(Value::of_string("w"), Value::of_string("v"))}};
  ASSERT_TRUE(formats::name_contents(catalog));
  const auto made = formats::plan_conversion(source_, {.from = from(), .to = kCountsInValues});
  ASSERT_TRUE(made) << made.error().message;
  const Catalog& content = made->content->catalog();
  EXPECT_EQ(content.param_steps, (std::map<std::string, std::int64_t>{{"w", 17}}));
  ASSERT_EQ(content.tensors.size(), 2u);
  EXPECT_EQ(label_of(content.tensors[0]), "w (param)");
  EXPECT_EQ(label_of(content.tensors[1]), "v (step)");
  ASSERT_EQ(content.groups.size(), 1u);
  EXPECT_EQ(content.groups[0].params, (std::vector<std::string>{"w", "v"}));
}

TEST(ContentView, CastsAndScalesWhatItReadsWhereverTheReadBegins) {
  Random random{5};
  MemoryCheckpoint source;
  source.add("m", DType::bf16, {40, 7}, random);
  for (std::uint64_t row = 0; row < 40; row += 10) source.add_chunk(0, {{row, 0}, {10, 7}}, 0);
  for (std::size_t i = 1; i < source.bytes(0).size(); i += 2)
    source.bytes(0)[i] &= std::byte{0x3f};  // no NaN
  Catalog content;
  content.tensors.push_back(source.tensor(0));
  content.tensors[0].dtype = DType::f32;
  const formats::ContentView view(source, content, {{0, 0.5}});
  const Box box{{7, 2}, {20, 3}};
  ByteVector got(20 * 3 * 4);
  ASSERT_TRUE(formats::read_box(view, view.catalog().tensors[0], box, got));
  ByteVector wanted(got.size());
  formats::cast_floats(DType::bf16, source.elements(0, box), DType::f32, wanted, 0.5);
  EXPECT_EQ(got, wanted);
}

}  // namespace
}  // namespace ebb::libswap
