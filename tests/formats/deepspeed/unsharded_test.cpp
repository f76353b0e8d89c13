// DeepSpeed without ZeRO: model and optimizer are one file, in which nothing says which parameter a
// number of the optimizer is.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/numbers.h"
#include "ebb/formats/torch/file_writer.h"
#include "tests/formats/deepspeed/deepspeed_fixtures.h"
#include "tests/support/archives.h"
#include "tests/support/pickled_tensors.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using formats::PickleWriter;
using test_support::MemoryTree;
using test_support::plain_tensor;

using Strings = std::vector<std::string>;
using Write = std::function<void(PickleWriter&)>;

// A model of "a" and "b", [4] each, and "c", [5]; `optimizer` writes what lies under "optimizer".
std::shared_ptr<MemoryTree> saved_whole(const Write& optimizer, const Write& shapes) {
  PickleWriter model;
  model.dict([&] {
    model.dict("module", [&] {
      for (const char* name : {"a", "b"}) {
        model.string(name);
        plain_tensor(model, name == std::string("a") ? "0" : "1", {4});
      }
      model.string("c");
      plain_tensor(model, "2", {5});
    });
    model.string("optimizer");
    optimizer(model);
    model.string("param_shapes");
    shapes(model);
    model.entry("global_steps", 3);
    model.entry("dp_world_size", 2);
  });
  auto tree = std::make_shared<MemoryTree>("ck");
  tree->add("latest", std::string_view("t"));
  tree->add("t/mp_rank_00_model_states.pt", test_support::archive_around(model.finish()));
  return tree;
}

// torch.optim's, of parameters with these shapes in one group; `setting` writes one more of it.
void state_dict(
    PickleWriter& pickle, const std::vector<Shape>& shapes,
    const Write& setting = [](PickleWriter&) {}) {
  pickle.dict([&] {
    pickle.dict("state", [&] {
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        pickle.integer(static_cast<std::int64_t>(i));
        pickle.dict([&] {
          pickle.string("exp_avg");
          plain_tensor(pickle, "3", shapes[i]);
        });
      }
    });
    pickle.list("param_groups", [&] {
      pickle.dict([&] {
        setting(pickle);
        pickle.list("params", [&] {
          for (std::size_t i = 0; i < shapes.size(); ++i)
            pickle.integer(static_cast<std::int64_t>(i));
        });
      });
    });
  });
}

// In half precision's wrapper, with masters of the same shapes.
Write wrapped(const std::vector<Shape>& shapes) {
  return [=](PickleWriter& pickle) {
    pickle.dict([&] {
      pickle.string("optimizer_state_dict");
      state_dict(pickle, shapes);
      pickle.list("fp32_groups", [&] {
        pickle.list([&] {
          for (const Shape& shape : shapes) plain_tensor(pickle, "3", shape);
        });
      });
    });
  };
}

void nothing(PickleWriter& pickle) { pickle.none(); }

std::unique_ptr<Checkpoint> described(const std::shared_ptr<MemoryTree>& tree) {
  auto checkpoint = formats::describe(tree);
  EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  return checkpoint ? *std::move(checkpoint) : nullptr;
}

Strings states_in(const Catalog& catalog) {
  Strings states;
  for (const TensorEntry& tensor : catalog.tensors)
    if (tensor.state != "param") states.push_back(tensor.name + " " + tensor.state);
  return states;
}

bool has_note(const Catalog& catalog, std::string_view text) {
  return std::ranges::any_of(
      catalog.notes, [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

TEST(DeepSpeedUnsharded, MastersNameTheirNumbersInAnyOrder) {
  const auto backwards =
      described(test_support::load_tree(kFixtures / "z0_torch_adam_bf16_w2/data"));
  const Catalog& catalog = backwards->catalog();
  ASSERT_EQ(catalog.groups.size(), 1u);
  EXPECT_EQ(catalog.groups[0].params, (Strings{"c.u", "c.C", "b.t", "a.B", "a.s", "a.A"}));
  EXPECT_TRUE(has_note(catalog, "names of 18 states follow from the master weights"));
  EXPECT_EQ(formats::said_by_order(catalog).by_order, 0u);
  EXPECT_EQ(catalog.world, 2u);
  EXPECT_EQ(catalog.step, 3);
}

TEST(DeepSpeedUnsharded, MastersThatAreAlikeAreNamedByOrder) {
  const auto checkpoint = described(saved_whole(wrapped({{4}, {4}, {5}}), nothing));
  const Catalog& catalog = checkpoint->catalog();
  EXPECT_EQ(states_in(catalog),
            (Strings{"a master", "b master", "c master", "a exp_avg", "b exp_avg", "c exp_avg"}));
  EXPECT_TRUE(has_note(catalog, "names of 6 states are by order"));
  EXPECT_EQ(formats::said_by_order(catalog).by_order, 6u);
}

TEST(DeepSpeedUnsharded, MastersOfAnotherModelStayNumbers) {
  const auto checkpoint = described(saved_whole(wrapped({{4}, {6}}), nothing));
  const Catalog& catalog = checkpoint->catalog();
  EXPECT_EQ(states_in(catalog), (Strings{"optimizer.0 master", "optimizer.1 master",
                                         "optimizer.0 exp_avg", "optimizer.1 exp_avg"}));
  EXPECT_EQ(formats::mere_numbers(catalog).size(), 2u);
  EXPECT_FALSE(formats::check_named(catalog, catalog).has_value());
  EXPECT_TRUE(has_note(catalog, "2 parameters of the optimizer are numbers"));
}

TEST(DeepSpeedUnsharded, WithoutMastersShapesAndOrderTell) {
  const auto by_shape =
      described(saved_whole([](PickleWriter& pickle) { state_dict(pickle, {{5}}); }, nothing));
  EXPECT_EQ(states_in(by_shape->catalog()), Strings{"c exp_avg"});
  EXPECT_TRUE(has_note(by_shape->catalog(), "names of 1 states follow from shapes"));
  const auto some =
      described(saved_whole([](PickleWriter& pickle) { state_dict(pickle, {{4}, {5}}); }, nothing));
  EXPECT_EQ(states_in(some->catalog()), (Strings{"optimizer.0 exp_avg", "optimizer.1 exp_avg"}))
      << "the first may be a or b";
}

TEST(DeepSpeedUnsharded, NamesThatSomebodySaysAreBetterThanTheOrder) {
  const auto tree =
      saved_whole([](PickleWriter& pickle) { state_dict(pickle, {{4}, {4}, {5}}); }, nothing);
  formats::PartsSaid said;
  said.names = Strings{"b", "a", "c"};
  const auto checkpoint = formats::describe(tree, said);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_EQ(states_in(catalog), (Strings{"b exp_avg", "a exp_avg", "c exp_avg"}));
  EXPECT_EQ(catalog.groups[0].params, (Strings{"b", "a", "c"}));
  EXPECT_EQ(formats::said_by_order(catalog).by_order, 0u);
  EXPECT_FALSE(has_note(catalog, "by order"));
}

TEST(DeepSpeedUnsharded, SettingsThatAreTensorsAreNumbers) {
  const auto checkpoint = described(saved_whole(
      [](PickleWriter& pickle) {
        state_dict(pickle, {{5}}, [](PickleWriter& group) {
          group.string("lr");
          plain_tensor(group, "3", {});
        });
      },
      nothing));
  const auto& settings = checkpoint->catalog().groups.at(0).settings;
  ASSERT_EQ(settings.size(), 1u);
  EXPECT_EQ(settings[0].second.kind, Value::Kind::real);
}

TEST(DeepSpeedUnsharded, WithoutAnOptimizerItIsWeights) {
  const auto checkpoint = described(saved_whole(nothing, nothing));
  EXPECT_EQ(states_in(checkpoint->catalog()), Strings());
  EXPECT_EQ(checkpoint->catalog().tensors.size(), 3u);
}

// The same files, but param_shapes says that there were partitions.
TEST(DeepSpeedUnsharded, ZeroWithoutItsOptimizerFilesIsIncomplete) {
  const auto lost = formats::describe(saved_whole(
      nothing, [](PickleWriter& pickle) { pickle.list([&] { pickle.dict([&] {}); }); }));
  ASSERT_FALSE(lost.has_value());
  EXPECT_EQ(lost.error().code, Code::incomplete);
  EXPECT_NE(lost.error().message.find("no optim_states.pt file"), std::string::npos);
}

TEST(DeepSpeedUnsharded, EveryNumberOfRanksLoadsIt) {
  const auto checkpoint = described(test_support::load_tree(kFixtures / "z0_adamw_bf16_w2/data"));
  const formats::ResumeAnswer answer =
      formats::resume_answer(formats::deepspeed_resume(), {checkpoint->catalog(), 5});
  EXPECT_TRUE(answer.resumable) << answer.why;
}

}  // namespace

}  // namespace ebb
