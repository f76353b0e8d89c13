// Tensors in DeepSpeed's model files in forms that are not read: each named as what it is, and none
// hides what lies beside it.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/torch/file_writer.h"
#include "tests/support/archives.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/pickled_tensors.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using formats::PickleWriter;
using test_support::MemoryTree;

void folded(PickleWriter& pickle, const Shape& shape) {
  test_support::wrapper_subclass(pickle, "acme.tensors", "Folded", shape,
                                 [&] { pickle.empty_dict(); });
}

// A stage 2 checkpoint of one rank: "p" of 4 elements is trained; `client` is what the caller gave.
std::shared_ptr<MemoryTree> saved(const std::function<void(PickleWriter&)>& module,
                                  const std::function<void(PickleWriter&)>& client) {
  PickleWriter model;
  model.dict([&] {
    model.dict("module", [&] { module(model); });
    model.list("buffer_names", [&] { model.string("mask"); });
    model.list("param_shapes",
               [&] { model.dict([&] { model.entry("p", [&] { model.torch_size({4}); }); }); });
    model.entry("dp_world_size", 1);
    model.dict("mine", [&] { client(model); });
  });
  PickleWriter optimizer;
  optimizer.dict([&] {
    optimizer.dict("optimizer_state_dict", [&] {
      optimizer.entry("zero_stage", 2);
      optimizer.entry("partition_count", 1);
      optimizer.list("group_paddings", [&] { optimizer.integer(0); });
      optimizer.list("single_partition_of_fp32_groups",
                     [&] { test_support::plain_tensor(optimizer, "0", {4}); });
      optimizer.dict("base_optimizer_state", [&] {
        optimizer.dict("state", [&] {});
        optimizer.list("param_groups", [&] {
          optimizer.dict([&] { optimizer.list("params", [&] { optimizer.integer(0); }); });
        });
      });
    });
  });
  auto tree = std::make_shared<MemoryTree>("ck");
  tree->add("t/mp_rank_00_model_states.pt", test_support::archive_around(model.finish()));
  tree->add("t/zero_pp_rank_0_mp_rank_00_optim_states.pt",
            test_support::archive_around(optimizer.finish()));
  return tree;
}

std::vector<std::string> lines(const std::vector<formats::UnreadEntry>& unread) {
  std::vector<std::string> out;
  for (const formats::UnreadEntry& entry : unread)
    out.push_back(compose("{}: {} ({}) {}", entry.key, entry.name, entry.state, entry.what));
  return out;
}

TEST(DeepSpeedUnread, IsNamedAsWhatItIsAndHidesNothingElse) {
  const auto tree = saved(
      [](PickleWriter& pickle) {
        pickle.string("p");
        folded(pickle, {4});
        pickle.string("frozen");
        test_support::plain_tensor(pickle, "0", {4, 3});
        pickle.string("quantized");
        folded(pickle, {4, 3});
        pickle.string("mask");
        folded(pickle, {3});
      },
      [](PickleWriter& pickle) {
        pickle.entry("epoch", 3);
        pickle.list("ema", [&] {
          folded(pickle, {4});
          pickle.integer(7);
        });
      });
  const auto checkpoint = formats::describe_deepspeed(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  const std::string what = " a tensor of class Folded (acme)";
  EXPECT_EQ(
      lines(catalog.unread),
      (std::vector<std::string>{
          "mine.ema.0: mine.ema.0 (tensor)" + what, "module.p: p (param)" + what,
          "module.quantized: quantized (param)" + what, "module.mask: mask (buffer)" + what}));
  std::vector<std::string> read;
  for (const TensorEntry& tensor : catalog.tensors) {
    read.push_back(tensor.name + " " + tensor.state);
    EXPECT_TRUE(test_support::elements_of(**checkpoint, tensor).has_value()) << read.back();
  }
  EXPECT_EQ(read, (std::vector<std::string>{"p master", "frozen param"}));
  const auto mine = std::ranges::find(catalog.values, "mine", &ValueEntry::key);
  ASSERT_NE(mine, catalog.values.end());
  EXPECT_EQ(to_json(mine->value), R"({"epoch": 3, "ema": [null, 7]})");
}

}  // namespace

}  // namespace ebb
