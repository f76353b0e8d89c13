// Weights, states, settings and what the job keeps, of each folder as one checkpoint, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/formats/describe.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/torch/file_writer.h"
#include "tests/formats/folders/folders_fixtures.h"
#include "tests/support/safetensors_file.h"

namespace ebb {
namespace {

using folders_test::digests_in;
using folders_test::has_note;
using folders_test::load;
using folders_test::truth_of;
using folders_test::value_of;
using formats::compose;

// In the order in which Trainer gave them to the optimizer: tests/fixtures/folders/trainer/names.
const std::vector<std::string> kNames = {"emb.weight",  "b.weight", "a.weight",
                                         "head.weight", "b.bias",   "head.bias"};

std::unique_ptr<Checkpoint> read_folder(std::string_view name, std::string_view format,
                                        const formats::PartsSaid& said = {}) {
  auto checkpoint = formats::describe(load(name), said);
  EXPECT_TRUE(checkpoint) << name << (checkpoint ? "" : checkpoint.error().message);
  if (!checkpoint) return nullptr;
  EXPECT_EQ((*checkpoint)->catalog().format, format);
  EXPECT_TRUE(prove_coverage((*checkpoint)->catalog())) << name;
  return *std::move(checkpoint);
}

TEST(FoldersContent, IsThatOfTheFrameworkWhereNamesAreRecorded) {
  for (const auto& [name, format] :
       {std::pair("accelerate", "accelerate"), std::pair("fsdp_sharded", "accelerate-fsdp"),
        std::pair("fsdp_full", "accelerate-fsdp"), std::pair("lightning", "lightning")}) {
    const auto checkpoint = read_folder(name, format);
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_EQ(digests_in(*checkpoint), truth_of(name)) << name;
    EXPECT_TRUE(formats::mere_numbers(checkpoint->catalog()).empty());
    ASSERT_EQ(checkpoint->catalog().groups.size(), 1u);
    EXPECT_EQ(checkpoint->catalog().groups.front().optimizer, "adamw");
  }
}

TEST(FoldersContent, OfTrainerHasTheNamesThatAreSaid) {
  formats::PartsSaid said;
  said.names = kNames;
  for (const char* name : {"trainer", "trainer_cut", "trainer_bin"}) {
    const auto checkpoint = read_folder(name, "transformers", said);
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_EQ(digests_in(*checkpoint), truth_of(name)) << name;
    EXPECT_EQ(checkpoint->catalog().groups.at(1).params,
              (std::vector<std::string>{"b.bias", "head.bias"}));
  }
  said.names = std::vector<std::string>(kNames.rbegin(), kNames.rend());
  EXPECT_FALSE(formats::describe(load("trainer"), said)) << "shapes that do not fit";
}

// safetensors is sorted by name: its order says nothing, and of two matrices of one shape nothing
// tells which is which. A torch.save file has the model's order.
TEST(FoldersContent, OfTrainerKeepsItsNumbersWhereNothingDecidesTheNames) {
  for (const char* name : {"trainer", "trainer_cut"}) {
    const auto checkpoint = read_folder(name, "transformers");
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_EQ(formats::mere_numbers(checkpoint->catalog()).size(), kNames.size()) << name;
    EXPECT_TRUE(has_note(checkpoint->catalog(), "6 parameters of an optimizer are numbers"));
  }
  const auto ordered = read_folder("trainer_bin", "transformers");
  ASSERT_NE(ordered, nullptr);
  EXPECT_EQ(ordered->catalog().groups.at(0).params,
            (std::vector<std::string>{"emb.weight", "b.weight", "a.weight", "head.weight"}));
  EXPECT_EQ(ordered->catalog().groups.at(1).params,
            (std::vector<std::string>{"optimizer.4", "optimizer.5"}))
      << "two biases are alike, and one of them is frozen";
  EXPECT_TRUE(has_note(ordered->catalog(), "are by order, not recorded"));
}

// Names that happen to sort as the optimizer's shapes go are no order of the model: of the two
// alike nothing says which is which. What is alone of its shape in its group and in the model is
// named.
TEST(FoldersContent, SortedNamesThatFitByChanceAreNoOrder) {
  const auto tree = load("trainer");
  tree->bytes_of("model.safetensors") = test_support::safetensors_bytes(
      R"({"a":{"dtype":"F32","shape":[7,4],"data_offsets":[0,112]},)"
      R"("b":{"dtype":"F32","shape":[4,4],"data_offsets":[112,176]},)"
      R"("c":{"dtype":"F32","shape":[4,4],"data_offsets":[176,240]},)"
      R"("d":{"dtype":"F32","shape":[3,4],"data_offsets":[240,288]},)"
      R"("e":{"dtype":"F32","shape":[4],"data_offsets":[288,304]},)"
      R"("f":{"dtype":"F32","shape":[3],"data_offsets":[304,316]}})",
      316);
  const auto read = formats::describe(folders_test::without(*tree, ""));
  ASSERT_TRUE(read) << read.error().message;
  const auto& groups = (*read)->catalog().groups;
  EXPECT_EQ(groups.at(0).params,
            (std::vector<std::string>{"optimizer.0", "optimizer.1", "optimizer.2", "optimizer.3"}));
  EXPECT_EQ(groups.at(1).params, (std::vector<std::string>{"e", "f"}));
}

TEST(FoldersContent, HasStepSchedulerAndRandomNumbersAsValues) {
  const auto trainer = read_folder("trainer", "transformers");
  ASSERT_NE(trainer, nullptr);
  const Catalog& catalog = trainer->catalog();
  EXPECT_EQ(catalog.step, 2);
  ASSERT_NE(value_of(catalog, "scheduler.last_epoch"), nullptr);
  EXPECT_EQ(value_of(catalog, "scheduler.last_epoch")->integer, 2);
  ASSERT_NE(value_of(catalog, "rng_state.cpu"), nullptr);
  EXPECT_EQ(value_of(catalog, "rng_state.cpu")->raw.size(), 5056u) << "no parameter called cpu";
  const Value* numpy = value_of(catalog, "rng_state.numpy");
  ASSERT_NE(numpy, nullptr);
  ASSERT_EQ(numpy->items.size(), 5u) << to_json(*numpy);
  ASSERT_EQ(numpy->items[1].items.size(), 2u) << "an array, with its 624 words";
  EXPECT_EQ(numpy->items[1].items[1].raw.size(), 624 * 4u);
  EXPECT_NE(std::ranges::find(catalog.files, "trainer_state.json", &formats::FileEntry::name),
            catalog.files.end());
}

// A generator of numpy's: an object that nobody can hold.
ByteVector file_with_an_object() {
  const Catalog nothing;
  formats::TorchFileWriter file(nothing);
  file.dict([&] {
    file.entry("python", 3);
    file.string("numpy");
    file.call("numpy.random._pickle", "__generator_ctor", [&] { file.string("PCG64"); });
  });
  const formats::OutputFile made = file.finish("rng_state.pth", Rank{0});
  return std::get<ByteVector>(made.fragments.front().data);
}

// Of each rank of a job there is one, and one line.
TEST(FoldersContent, WhatIsLeftOfManyRanksFilesIsOneLine) {
  const auto tree = load("trainer");
  for (const char* rank : {"0", "1", "2"})
    tree->add(compose("rng_state_{}.pth", rank), file_with_an_object());
  const auto read = formats::describe(folders_test::without(*tree, "rng_state.pth"));
  ASSERT_TRUE(read) << read.error().message;
  const Catalog& catalog = (*read)->catalog();
  EXPECT_EQ(catalog.world, 3u);
  EXPECT_NE(value_of(catalog, "rng_state_2.python"), nullptr);
  const auto left =
      std::ranges::find(catalog.beside, "rng_state_0.pth", &formats::BesideEntry::path);
  ASSERT_NE(left, catalog.beside.end());
  EXPECT_EQ(left->count, 3u);
}

// Python writes NaN into JSON.
TEST(FoldersContent, ALossThatIsNoNumberIsRead) {
  const auto checkpoint = read_folder("fsdp_sharded", "accelerate-fsdp");
  ASSERT_NE(checkpoint, nullptr);
  const Value* log = value_of(checkpoint->catalog(), "trainer_state.log_history");
  ASSERT_NE(log, nullptr);
  EXPECT_EQ(to_json(*log), R"([{"loss": {"$float": "nan"}, "step": 1}])");
  EXPECT_EQ(checkpoint->catalog().world, 2u);
}

TEST(FoldersContent, OfLightningHasWhatMetaPtSays) {
  const auto checkpoint = read_folder("lightning", "lightning");
  ASSERT_NE(checkpoint, nullptr);
  const Catalog& catalog = checkpoint->catalog();
  EXPECT_EQ(catalog.step, 2);
  ASSERT_NE(value_of(catalog, "epoch"), nullptr);
  EXPECT_EQ(value_of(catalog, "epoch")->integer, 1);
  ASSERT_NE(value_of(catalog, "hyper_parameters.lr"), nullptr);
  EXPECT_EQ(value_of(catalog, "hyper_parameters.lr")->real, 0.01);
  EXPECT_TRUE(catalog.beside.empty());
}

}  // namespace
}  // namespace ebb
