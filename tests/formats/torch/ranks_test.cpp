// Files that ranks wrote side by side: joined to what torch said they hold together, and what is
// said where they do not belong together.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/torch_save/torch_save.h"
#include "ebb/formats/zip/zip.h"
#include "tests/formats/torch/sharded_pickles.h"
#include "tests/formats/torch/torch_fixtures.h"
#include "tests/support/expected.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using formats::describe_torch;
using formats::PickleWriter;
using test_support::MemoryTree;
using test_support::pickle_dtensor;
using test_support::PickledDTensor;
using test_support::rank_file;

class TorchRanks : public testing::TestWithParam<std::string_view> {};

TEST_P(TorchRanks, HoldTogetherWhatTorchSaidTheyHold) {
  const fs::path folder = kFixtures / GetParam();
  const auto tree = test_support::load_tree(folder / "data");
  ASSERT_TRUE(formats::detect_torch(*tree));
  const auto checkpoint = describe_torch(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ(test_support::differences(**checkpoint, folder / "expected.json",
                                      test_support::Compare::tensors),
            "");
  EXPECT_TRUE(prove_coverage((*checkpoint)->catalog()).has_value());
}

TEST_P(TorchRanks, ReadTheSameInPartsAndBackwards) {
  const auto checkpoint = describe_torch(test_support::load_tree(kFixtures / GetParam() / "data"));
  ASSERT_TRUE(checkpoint.has_value());
  expect_the_same_in_parts(**checkpoint);
}

INSTANTIATE_TEST_SUITE_P(Cases, TorchRanks,
                         testing::Values("ranks_hybrid_w4", "ranks_local_w2", "ranks_older_w3",
                                         "ranks_placements_w4", "ranks_sharded_w2"));

// The fixture without the files that end so.
std::shared_ptr<MemoryTree> without(std::string_view fixture, std::vector<std::string_view> ends) {
  const auto all = test_support::load_tree(kFixtures / fixture / "data");
  auto some = std::make_shared<MemoryTree>("ck");
  for (const auto& entry : all->entries())
    if (std::ranges::none_of(ends, [&](auto end) { return entry.name.ends_with(end); }))
      some->add(entry.name, all->bytes_of(entry.name));
  return some;
}

Error error_of(std::shared_ptr<const formats::SourceTree> tree) {
  const auto checkpoint = describe_torch(std::move(tree));
  return checkpoint ? Error{} : checkpoint.error();
}

bool says(const std::vector<std::string>& notes, std::string_view words) {
  return std::ranges::any_of(
      notes, [&](const std::string& note) { return note.find(words) != std::string::npos; });
}

TEST(TorchRankFiles, R01AMissingRankIsNamedWithItsFileAndWhatItHeld) {
  const Error error = error_of(without("ranks_placements_w4", {"rank2.pt"}));
  EXPECT_EQ(error.code, Code::incomplete);
  EXPECT_EQ(error.message,
            "ck: the file of rank 2 is missing: part_rank2.pt (rows: rows 6-8 are in no shard)");
  EXPECT_EQ(error.place.rank, 2u);
  EXPECT_EQ(error.place.file, "part_rank2.pt");
  EXPECT_EQ(error_of(without("ranks_older_w3", {"model_1.pt"})).message,
            "ck: the file of rank 1 is missing: model_1.pt (rows: rows 3-5 are in no shard)");
  EXPECT_EQ(error_of(without("ranks_sharded_w2", {"rank0.pt"})).code, Code::incomplete);
}

TEST(TorchRankFiles, OfAHybridMeshOneCopyOfEachIsEnoughAndTheOthersAreNoted) {
  const auto checkpoint = describe_torch(without("ranks_hybrid_w4", {"rank1.bin", "rank2.bin"}));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_EQ(test_support::differences(**checkpoint, kFixtures / "ranks_hybrid_w4" / "expected.json",
                                      test_support::Compare::tensors),
            "");
  EXPECT_EQ(catalog.world, 4u);
  EXPECT_TRUE(says(catalog.notes, "the files of ranks 1, 2 are missing"));
  const Error error = error_of(without("ranks_hybrid_w4", {"rank1.bin", "rank3.bin"}));
  EXPECT_EQ(error.code, Code::incomplete);
  EXPECT_NE(error.message.find("the files of ranks 1, 3 are missing"), std::string::npos);
}

// A replica is not read, but a flipped bit in it is found all the same.
TEST(TorchRankFiles, HaveTheirReplicasCheckedWhereTheyAreVerified) {
  const auto tree = without("ranks_hybrid_w4", {});
  const auto checkpoint = describe_torch(tree);
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_TRUE(formats::torch_problems(tree, (*checkpoint)->catalog()).empty());
  ByteVector& bytes = tree->bytes_of("pytorch_model_fsdp_0_rank3.bin");
  const std::string_view name = "pytorch_model_fsdp_0_rank3/data/2";
  const auto zip =
      formats::ZipReader::open(*tree->open("pytorch_model_fsdp_0_rank3.bin"), 0, bytes.size());
  ASSERT_TRUE(zip.has_value());
  bytes[*zip->data_offset(*zip->find("data/2"))] ^= std::byte{1};
  const auto again = describe_torch(tree);
  ASSERT_TRUE(again.has_value());
  const auto problems = formats::torch_problems(tree, (*again)->catalog());
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].message.find(name), std::string::npos) << problems[0].message;
  EXPECT_NE(problems[0].message.find("fails its CRC32 check"), std::string::npos);
}

TEST(TorchRankFiles, OfWhichOneIsNamedItselfAreOneRanksPart) {
  const auto all = test_support::load_tree(kFixtures / "ranks_hybrid_w4" / "data");
  const std::string name = "pytorch_model_fsdp_0_rank1.bin";
  auto one = std::make_shared<MemoryTree>("ck/" + name);
  one->add(name, all->bytes_of(name));
  const auto checkpoint = describe_torch(one);
  ASSERT_TRUE(checkpoint.has_value());
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_EQ(catalog.tensors.size(), 2u);  // the buffers, which are whole
  ASSERT_EQ(catalog.unread.size(), 3u);
  EXPECT_EQ(catalog.unread[0].what, "a DTensor: rank 1's part of a tensor that 4 ranks hold");
  EXPECT_NE(catalog.unread[0].hint.find("name the folder"), std::string::npos);
}

TEST(TorchRankFiles, ResumeOnAsManyRanksOnly) {
  const auto checkpoint =
      describe_torch(test_support::load_tree(kFixtures / "ranks_hybrid_w4" / "data"));
  ASSERT_TRUE(checkpoint.has_value());
  const auto answer = [&](std::uint32_t world) {
    return resume_answer(formats::torch_resume(), {(*checkpoint)->catalog(), world});
  };
  EXPECT_TRUE(answer(4).resumable);
  EXPECT_FALSE(answer(2).resumable);
  EXPECT_EQ(answer(2).to, "dcp");
}

// Two ranks' halves of "w", each with what `more` adds.
using More = std::function<void(PickleWriter&, std::uint64_t rank)>;
PickledDTensor half(std::uint64_t rank) {
  return {.shape = {4, 3}, .local = {2, 3}, .rank = rank, .coordinate = {rank}};
}
ByteVector half_file(std::uint64_t rank, const More& more = {}, char content = 'a') {
  return rank_file(
      [&](PickleWriter& pickle) {
        pickle.string("w");
        pickle_dtensor(pickle, "0", half(rank));
        if (more) more(pickle, rank);
      },
      content);
}
std::shared_ptr<MemoryTree> halves(const More& more = {}, std::string_view name = "x_rank") {
  auto tree = std::make_shared<MemoryTree>("ck");
  for (std::uint64_t rank = 0; rank < 2; ++rank)
    tree->add(std::string(name) + std::to_string(rank) + ".pt",
              half_file(rank, more, rank == 0 ? 'a' : 'b'));
  return tree;
}

TEST(TorchRankFiles, AreJoinedByWhatTheyHoldWhateverTheirNamesSay) {
  for (const std::string_view name : {"x_rank", "model_", "step5_part"}) {
    const auto checkpoint = describe_torch(halves({}, name));
    ASSERT_TRUE(checkpoint.has_value()) << name << ": " << checkpoint.error().message;
    ASSERT_EQ((*checkpoint)->catalog().tensors.size(), 1u) << name;
    EXPECT_EQ((*checkpoint)->catalog().tensors[0].chunks.size(), 2u) << name;
  }
  auto swapped = std::make_shared<MemoryTree>("ck");
  swapped->add("x_rank0.pt", half_file(1));
  swapped->add("x_rank1.pt", half_file(0));
  const auto checkpoint = describe_torch(swapped);
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_EQ((*checkpoint)->catalog().tensors[0].chunks[0].box.offset, (Shape{2, 0}));
  EXPECT_TRUE(says((*checkpoint)->catalog().notes, "not what the name says: x_rank0.pt"));
}

// A rank's file lists a model as the job has it. Where a later one has more, nothing tells where
// in the model that lies.
TEST(TorchRankFiles, NameTheNumbersOfAnOptimizerByTheOrderOfTheModel) {
  for (const bool alike : {true, false}) {
    auto tree = std::make_shared<MemoryTree>("ck");
    for (std::uint64_t rank = 0; rank < 2; ++rank)
      tree->add(std::to_string(rank) + ".pt", rank_file([&](PickleWriter& pickle) {
                  const auto part = [&](std::string_view key, std::string_view storage) {
                    pickle.string(key);
                    pickle_dtensor(pickle, storage, half(rank));
                  };
                  pickle.dict("model", [&] {
                    part("b", "0");
                    part("a", "1");
                    if (!alike && rank == 1) {
                      pickle.string("first");
                      test_support::plain_tensor(pickle, "2", {5});
                    }
                  });
                  pickle.dict("optimizer", [&] {
                    pickle.dict("state", [&] {
                      for (std::int64_t number = 0; number < 2; ++number) {
                        pickle.integer(number);
                        pickle.dict([&] { part("exp_avg", number == 0 ? "2" : "3"); });
                      }
                    });
                    pickle.list("param_groups", [&] {
                      pickle.dict([&] {
                        pickle.list("params", [&] {
                          pickle.integer(0);
                          pickle.integer(1);
                        });
                      });
                    });
                  });
                }));
    const auto checkpoint = describe_torch(tree);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    const Catalog& catalog = (*checkpoint)->catalog();
    std::vector<std::string> names;
    for (const TensorEntry& tensor : catalog.tensors)
      if (tensor.state == "exp_avg") names.push_back(tensor.name);
    const std::vector<std::string> numbers = {"optimizer.0", "optimizer.1"};
    EXPECT_EQ(names, alike ? (std::vector<std::string>{"b", "a"}) : numbers);
    EXPECT_EQ(says(catalog.notes, "are by order, not recorded"), alike);
  }
}

TEST(TorchRankFiles, R02TwoFilesOfOneRankAreRefused) {
  auto tree = std::make_shared<MemoryTree>("ck");
  tree->add("x_rank0.pt", half_file(0));
  tree->add("x_rank1.pt", half_file(0));
  const Error error = error_of(tree);
  EXPECT_EQ(error.code, Code::layout);
  EXPECT_EQ(error.message, "ck: x_rank0.pt and x_rank1.pt both hold the parts of rank 0");
}

void step(PickleWriter& pickle, std::uint64_t value) {
  pickle.string("step");
  pickle.integer(static_cast<std::int64_t>(value));
}

// What all ranks of a save have alike: a step, settings, whole counters; replicas of a mesh.
TEST(TorchRankFiles, R03FilesOfTwoSavesAreRefused) {
  EXPECT_TRUE(describe_torch(halves([](PickleWriter& pickle, std::uint64_t) {
                step(pickle, 7);
              })).has_value());
  const Error steps = error_of(halves(step));
  EXPECT_EQ(steps.code, Code::layout);
  EXPECT_EQ(steps.message,
            "ck/x_rank1.pt: \"step\": another value than in x_rank0.pt (files of two saves)");
  const Error counters = error_of(halves([](PickleWriter& pickle, std::uint64_t) {
    pickle.dict("state", [&] {
      pickle.string("step");
      test_support::plain_tensor(pickle, "1", {});
    });
  }));
  EXPECT_EQ(
      counters.message,
      "ck/x_rank1.pt: \"state.step\": other elements than in x_rank0.pt (files of two saves)");
  auto replicas = std::make_shared<MemoryTree>("ck");
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    PickledDTensor copy = half(rank);
    copy.local = copy.shape;
    copy.placements[0].name = "Replicate";
    replicas->add(
        "x_rank" + std::to_string(rank) + ".pt",
        rank_file([&](auto& pickle) { pickle.string("w"), pickle_dtensor(pickle, "0", copy); },
                  rank == 0 ? 'a' : 'b'));
  }
  EXPECT_EQ(error_of(replicas).message,
            "ck/x_rank1.pt: \"w\": other elements than in x_rank0.pt (files of two saves)");
}

TEST(TorchRankFiles, R04MeshesOfAnotherSizeAreRefused) {
  auto tree = std::make_shared<MemoryTree>("ck");
  tree->add("x_rank0.pt", half_file(0));
  PickledDTensor third = half(1);
  third.mesh = {4};
  third.ranks = {0, 1, 2, 3};
  third.local = {1, 3};
  tree->add("x_rank1.pt", rank_file([&](auto& pickle) {
              pickle.string("w"), pickle_dtensor(pickle, "0", third);
            }));
  EXPECT_EQ(error_of(tree).message,
            "ck/x_rank1.pt: \"w\": cut over 4 ranks, in x_rank0.pt over 2 (files of two saves)");
}

// Plain tensors that ranks have alike are one; others are nobody's to choose from.
TEST(TorchRankFiles, WholeTensorsThatDifferAreNotReadAndHideNothing) {
  const auto checkpoint = describe_torch(halves([](PickleWriter& pickle, std::uint64_t rank) {
    pickle.string("mean");
    test_support::plain_tensor(pickle, "1", {4});
    pickle.string("seed");
    pickle.integer(static_cast<std::int64_t>(rank));
  }));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  ASSERT_EQ(catalog.tensors.size(), 1u);
  ASSERT_EQ(catalog.unread.size(), 1u);
  EXPECT_EQ(catalog.unread[0].key, "mean");
  EXPECT_NE(catalog.unread[0].what.find("not the same in the files of ranks 0 and 1"),
            std::string::npos);
  EXPECT_TRUE(says(catalog.notes, "the first one's is shown: seed"));
}

// On slices of a mesh there may be replicas, or other tensors under the same keys.
TEST(TorchRankFiles, MeshesWithoutACommonRankAreReplicasOrNotRead) {
  for (const char second : {'a', 'b'}) {
    auto tree = std::make_shared<MemoryTree>("ck");
    for (std::uint64_t rank = 0; rank < 2; ++rank)
      tree->add("x_rank" + std::to_string(rank) + ".pt", rank_file(
                                                             [&](auto& pickle) {
                                                               pickle.string("w");
                                                               pickle_dtensor(pickle, "0",
                                                                              {.shape = {4, 3},
                                                                               .local = {4, 3},
                                                                               .rank = rank,
                                                                               .mesh = {1},
                                                                               .ranks = {rank},
                                                                               .coordinate = {0}});
                                                             },
                                                             rank == 0 ? 'a' : second));
    const auto checkpoint = describe_torch(tree);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    EXPECT_EQ((*checkpoint)->catalog().tensors.size(), second == 'a' ? 1u : 0u);
    EXPECT_EQ((*checkpoint)->catalog().unread.size(), second == 'a' ? 0u : 1u);
  }
}

TEST(TorchRankFiles, OfMoreThanOneSaveAreRefusedByName) {
  auto tree = halves();
  for (std::uint64_t rank = 0; rank < 2; ++rank)
    tree->add("y_rank" + std::to_string(rank) + ".pt", half_file(rank));
  const Error error = error_of(tree);
  EXPECT_EQ(error.code, Code::unsupported);
  EXPECT_NE(error.message.find("x_rank*.pt, 2 files; y_rank*.pt, 2 files"), std::string::npos);
  EXPECT_NE(error.hint.find("ln -s"), std::string::npos);
}

// A trainer's own, or a model that somebody gathered.
TEST(TorchRankFiles, AreReadWhereFilesWithoutPartsLieBesideThem) {
  const auto plain = [](PickleWriter& pickle) {
    pickle.string("note");
    pickle.integer(1);
  };
  for (const std::vector<std::string>& names : std::vector<std::vector<std::string>>{
           {"full.pt"}, {"trainer_rank0.pt", "trainer_rank1.pt"}}) {
    auto tree = halves();
    for (const std::string& name : names) tree->add(name, rank_file(plain));
    const auto checkpoint = describe_torch(tree);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    EXPECT_EQ((*checkpoint)->catalog().files.size(), 2u);
    ASSERT_EQ((*checkpoint)->catalog().tensors.size(), 1u);
    EXPECT_EQ((*checkpoint)->catalog().tensors[0].key, "w");
  }
}

TEST(TorchRankFiles, ThatSayNothingOfTheWholeAreNotJoined) {
  auto tree = std::make_shared<MemoryTree>("ck");
  for (const char* const name : {"x_rank0.pt", "x_rank1.pt"})
    tree->add(name, rank_file([&](auto& pickle) {
                pickle.string("w");
                test_support::plain_tensor(pickle, "0", {4});
                step(pickle, name[6] == '0' ? 1 : 2);
              }));
  const Error error = error_of(tree);
  EXPECT_EQ(error.code, Code::unsupported);
  EXPECT_NE(error.message.find("does not join them"), std::string::npos);
}

// One dict, referred to forty thousand times: a few MiB of each file's own budget.
TEST(TorchRankFiles, R08WhatSmallFilesUnfoldToIsLimitedForAllTogether) {
  test_support::PickleText pickle;
  pickle.raw("}(").text("a").raw("](}").put(1);
  for (int i = 0; i < 40000; ++i) pickle.get(1);
  const ByteVector file = test_support::archive_of(
      {{"x/data.pkl", pickle.raw("eu").done()}, {"x/byteorder", "little"}, {"x/version", "3\n"}});
  auto tree = std::make_shared<MemoryTree>("ck");
  for (int rank = 10; rank < 30; ++rank) tree->add("x_rank" + std::to_string(rank) + ".pt", file);
  const Error error = error_of(tree);
  EXPECT_EQ(error.code, Code::limit);
  EXPECT_NE(error.message.find("with the files of lower ranks"), std::string::npos)
      << error.message;
}

TEST(TorchRankFiles, ADamagedOneIsNamedItself) {
  auto tree = halves();
  tree->bytes_of("x_rank1.pt").resize(40);
  EXPECT_TRUE(error_of(tree).message.starts_with("ck/x_rank1.pt:40: the zip has no"));
}

}  // namespace
}  // namespace ebb
