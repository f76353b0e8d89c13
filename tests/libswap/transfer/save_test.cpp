#include "ebb/libswap/write/save.h"

#include <gtest/gtest.h>

#include "ebb/formats/conversion/memory_content.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/read/digest.h"
#include "ebb/libswap/read/load.h"
#include "ebb/libswap/testing/fault_backend.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libswap/rank_threads.h"
#include "tests/libswap/transfer/toy_format.h"

namespace ebb::libswap {
namespace {

using formats::EmitRequest;
using testing::Files;
using testing::MemoryCheckpoint;
using testing::Random;

Result<EmitPlan> emit_toy(const EmitRequest& request) {
  return testing::toy_plan(request.content, request.layout);
}
Result<EmitPlan> emit_sums(const EmitRequest& request) {
  EmitPlan plan = testing::toy_plan(request.content, request.layout);
  testing::add_blocks(plan);
  return plan;
}
Result<EmitPlan> emit_less(const EmitRequest& request) {
  EmitPlan plan = testing::toy_plan(request.content, request.layout);
  plan.dropped = {"value \"x\": is a toy", "value \"y\": is another"};
  return plan;
}
const testing::ToyFormat kToy{{.name = "toy"}, emit_toy};
const testing::ToyFormat kSums{{.name = "sums"}, emit_sums};
const testing::ToyFormat kLess{{.name = "less"}, emit_less};

// A state that several ranks hold, each in memory of its own, and a disk with /out that they share.
class Save : public ::testing::Test {
 protected:
  Save() {
    all_.add("a", DType::f32, {13, 7}, random_);
    all_.add("b", DType::bf16, {4, 3, 5}, random_);
    all_.add("c", DType::f32, {}, random_);
    all_.add("none", DType::f32, {0, 4}, random_);
    EXPECT_TRUE(queue_->backend().make_directory("/out"));
    EXPECT_TRUE(queue_->backend().sync_directory("/"));
  }

  Layout layout(Policy policy, std::uint32_t world) {
    std::vector<Shape> shapes;
    for (const TensorEntry& tensor : all_.catalog().tensors) shapes.push_back(tensor.shape);
    auto layout = Layout::make({.policy = policy, .mesh = {world, 1}}, shapes);
    EXPECT_TRUE(layout);
    return *std::move(layout);
  }

  using Memory = std::vector<std::unique_ptr<ByteVector>>;
  formats::MemoryContent content_of(Policy policy, std::uint32_t world, Rank rank, Memory& memory) {
    const Layout cut = layout(policy, world);
    std::vector<formats::Held> held;
    for (std::uint32_t t = 0; t < all_.catalog().tensors.size(); ++t)
      for (const formats::Piece& piece : cut.pieces(t, rank)) {
        memory.push_back(std::make_unique<ByteVector>(all_.elements(t, piece.box)));
        held.push_back({t, piece.box, *memory.back()});
      }
    auto content = formats::MemoryContent::make(all_.catalog(), std::move(held));
    EXPECT_TRUE(content) << content.error().message;
    return *std::move(content);
  }

  using Reports = std::vector<Result<WriteReport>>;
  // `fault` makes operations of one rank go wrong.
  Reports save_all(Policy policy, std::uint32_t world, const formats::Format& format = kToy,
                   const std::shared_ptr<FaultPlan>& fault = nullptr, std::uint32_t faulty = 0) {
    Reports reports(world, Result<WriteReport>(Error{}));
    run_ranks(world, [&](std::uint32_t rank, Agreement& ranks) {
      Memory memory;
      const formats::MemoryContent content = content_of(policy, world, Rank{rank}, memory);
      auto backend = make_memory_backend(disk_);
      if (fault != nullptr && rank == faulty)
        backend = make_fault_backend(std::move(backend), fault);
      const auto io = testing::queue_over(std::move(backend));
      SaveRequest request{.format = format, .rank = Rank{rank}, .world = world, .policy = policy};
      request.write.workers = 2;
      reports[rank] = save(*io, ranks, content, request, "/out/ckpt");
    });
    return reports;
  }

  Files expected(Policy policy, std::uint32_t world) {
    return testing::expected_files(testing::toy_plan(all_.catalog(), layout(policy, world)), all_);
  }
  Files written() { return testing::files_below(*queue_, "/out/ckpt"); }
  std::vector<std::string> beside() { return *queue_->backend().list("/out"); }

  Random random_{89};
  MemoryCheckpoint all_;
  std::shared_ptr<MemoryDisk> disk_ = MemoryDisk::create(testing::kDisk);
  std::unique_ptr<IoQueue> queue_ = testing::queue_on(disk_);
};

TEST_F(Save, RanksWriteOneCheckpointEachItsOwnFiles) {
  for (const Policy policy : {Policy::rows, Policy::zero3, Policy::zero12})
    for (const std::uint32_t world : {1u, 2u, 3u}) {
      const Reports reports = save_all(policy, world);
      std::vector<std::uint64_t> sums(4, 0);
      std::uint64_t files = 0;
      for (const auto& report : reports) {
        ASSERT_TRUE(report) << report.error().message;
        files += report->files;
        for (std::size_t t = 0; t < 4; ++t) sums[t] += report->fingerprints[t];
      }
      EXPECT_EQ(written(), expected(policy, world)) << name_of(policy) << " " << world;
      EXPECT_EQ(files, written().size());
      EXPECT_EQ(beside(), std::vector<std::string>{"ckpt"});
      all_.cut(layout(policy, world), random_);
      for (std::uint32_t t = 0; t < 4; ++t)
        EXPECT_EQ(sums[t], *fingerprint_of(all_, all_.tensor(t))) << t;
      ASSERT_TRUE(remove_tree(queue_->backend(), "/out/ckpt"));
    }
}

TEST_F(Save, WhateverFailsOnARankAllRanksFailAndNothingStays) {
  for (const std::uint32_t faulty : {0u, 1u})
    for (std::uint64_t at = 0;; ++at) {
      const auto faults = std::make_shared<FaultPlan>();
      faults->add({.on = FaultOn::durable, .at = at, .error = ENOSPC});
      const Reports reports = save_all(Policy::rows, 2, kToy, faults, faulty);
      if (faults->durable_operations() <= at) break;  // there is no at-th operation
      const bool published = written() == expected(Policy::rows, 2);
      EXPECT_TRUE(published || written().empty()) << faulty << " " << at;
      if (!published) {
        EXPECT_EQ(reports[faulty].error().code, Code::no_space) << at;
        EXPECT_EQ(reports[1 - faulty].error().code, Code::peer) << at;
        EXPECT_EQ(beside(), std::vector<std::string>{}) << faulty << " " << at;
      }
      // What was refused after publication is rank 0's to tell; the checkpoint stays.
      for (const std::string& name : beside())
        ASSERT_TRUE(remove_tree(queue_->backend(), "/out/" + name));
    }
}

// What a rank could not write is told to the one that would publish.
TEST_F(Save, AFollowersFailedWriteKeepsRank0FromPublishing) {
  const auto faults = std::make_shared<FaultPlan>();
  faults->add({.on = FaultOn::write, .count = FaultPlan::kForEver, .path_part = "rank1.bin"});
  const Reports reports = save_all(Policy::rows, 2, kToy, faults, 1);
  EXPECT_EQ(reports[1].error().code, Code::io);
  EXPECT_EQ(reports[0].error().code, Code::peer);
  EXPECT_EQ(reports[0].error().message, "another rank failed while writing its files");
  EXPECT_EQ(beside(), std::vector<std::string>{});
}

TEST_F(Save, AnExistingDestinationStaysAsItIs) {
  for (const auto& report : save_all(Policy::rows, 2)) ASSERT_TRUE(report);
  const Files before = written();
  all_.bytes(0)[0] ^= std::byte{1};
  const Reports again = save_all(Policy::rows, 2);
  EXPECT_EQ(again[0].error().message, "/out/ckpt: exists already and was left as it is");
  EXPECT_EQ(again[1].error().message, "another rank failed while beginning to save");
  EXPECT_EQ(written(), before);
}

TEST_F(Save, ARankThatDoesNotHoldWhatItWritesFailsForAll) {
  Reports reports(2, Result<WriteReport>(Error{}));
  run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
    Memory memory;
    const formats::MemoryContent content = content_of(Policy::rows, 3, Rank{rank}, memory);
    const auto io = testing::queue_on(disk_);
    reports[rank] =
        save(*io, ranks, content, {.format = kToy, .rank = Rank{rank}, .world = 2}, "/out/ckpt");
  });
  EXPECT_EQ(reports[0].error().code, Code::incomplete);
  EXPECT_EQ(reports[0].error().message,
            "a (master): 14 of the 49 elements of [0:7, 0:7] are in no shard");
  EXPECT_EQ(beside(), std::vector<std::string>{});
}

TEST_F(Save, RanksThatDescribeDifferentStatesAreRefused) {
  Reports reports(2, Result<WriteReport>(Error{}));
  run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
    Memory memory;
    formats::MemoryContent content = content_of(Policy::rows, 2, Rank{rank}, memory);
    const auto io = testing::queue_on(disk_);
    reports[rank] = save(*io, ranks, content,
                         {.format = kToy,
                          .rank = Rank{rank},
                          .world = 2,
                          .policy = rank == 0 ? Policy::rows : Policy::zero12},
                         "/out/ckpt");
  });
  for (const auto& report : reports) {
    EXPECT_EQ(report.error().code, Code::layout);
    EXPECT_EQ(report.error().message,
              "the ranks describe different states, or cut them differently");
  }
  EXPECT_EQ(beside(), std::vector<std::string>{});
}

TEST_F(Save, FormatsWhoseLastFilesDependOnAllRanksAreForOneRank) {
  for (const auto& report : save_all(Policy::rows, 2, kSums)) {
    EXPECT_EQ(report.error().code, Code::unsupported);
    EXPECT_EQ(report.error().message,
              "sums is not written by several ranks: its last files depend on all of them");
  }
  EXPECT_TRUE(save_all(Policy::rows, 1, kSums)[0]);
}

// On all ranks, which go on: nobody waits for one that was refused.
TEST_F(Save, RequestsThatNoRankCanBeAskedAreNamed) {
  const auto expect_refused = [&](const std::function<void(SaveRequest&)>& spoil, Code code,
                                  const std::string& part) {
    run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
      Memory memory;
      const formats::MemoryContent content = content_of(Policy::rows, 2, Rank{rank}, memory);
      SaveRequest request{.format = kToy, .rank = Rank{rank}, .world = 2};
      spoil(request);
      const auto io = testing::queue_over(make_memory_backend(disk_));
      const auto saved = save(*io, ranks, content, request, "/out/ckpt");
      ASSERT_FALSE(saved) << part;
      if (rank != 0 && saved.error().code == Code::peer) return;  // what rank 0 says first
      EXPECT_EQ(saved.error().code, code) << saved.error().message;
      EXPECT_NE(saved.error().message.find(part), std::string::npos) << saved.error().message;
    });
    EXPECT_EQ(beside(), std::vector<std::string>()) << part;
  };
  expect_refused([](SaveRequest& request) { request.world = 0; }, Code::usage, "of 0 cannot save");
  expect_refused([](SaveRequest& request) { request.rank = Rank{2}; }, Code::usage, "rank 2 of 2");
  expect_refused([](SaveRequest& request) { request.policy = static_cast<Policy>(99); },
                 Code::layout, "no partition policy 99");
  expect_refused([](SaveRequest& request) { request.write.segment_bytes = 0; }, Code::usage,
                 "0 bytes");
  expect_refused([](SaveRequest& request) { request.write.memory_bytes = 1; }, Code::usage,
                 "memory budget of 1 bytes");
}

TEST_F(Save, WhatTheFormatCannotHoldIsRefused) {
  EXPECT_EQ(save_all(Policy::rows, 1, kLess)[0].error().message,
            "less cannot hold value \"x\": is a toy and 1 more");
}

TEST_F(Save, DcpOfTwoRanksIsLoadedByThree) {
  const fs::path parent = fs::path(::testing::TempDir()) / "ebb_save_dcp";
  auto chosen = open_backend(BackendChoice::automatic);
  ASSERT_TRUE(chosen);
  const auto real = testing::queue_over(std::move(chosen->backend));
  ASSERT_TRUE(remove_tree(real->backend(), parent));
  ASSERT_TRUE(real->backend().make_directory(parent));
  all_.add("large", DType::f32, {2300, 1024}, random_);
  all_.catalog().param_steps = {{"a", 17}};
  run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
    Memory memory;
    const formats::MemoryContent content = content_of(Policy::zero3, 2, Rank{rank}, memory);
    const auto saved = save(*real, ranks, content,
                            {.format = *formats::format_named("dcp"),
                             .rank = Rank{rank},
                             .world = 2,
                             .policy = Policy::zero3},
                            parent / "ckpt");
    EXPECT_TRUE(saved) << saved.error().message;
  });
  auto tree = open_tree(parent / "ckpt");
  ASSERT_TRUE(tree) << tree.error().message;
  EXPECT_EQ((*tree)->entries().size(), 3u);
  const auto checkpoint = formats::describe(*std::move(tree));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto& tensors = (*checkpoint)->catalog().tensors;
  const Layout cut = layout(Policy::rows, 3);
  for (std::uint32_t t = 0; t < all_.catalog().tensors.size(); ++t) {
    const auto found = std::ranges::find(tensors, all_.tensor(t).name, &TensorEntry::name);
    ASSERT_NE(found, tensors.end()) << t;
    for (std::uint32_t rank = 0; rank < 3; ++rank)
      for (const formats::Piece& piece : cut.pieces(t, Rank{rank})) {
        const ByteVector expected = all_.elements(t, piece.box);
        ByteVector memory(expected.size());
        const Wanted wanted{static_cast<std::uint32_t>(found - tensors.begin()), piece.box, memory};
        const auto loaded = load(**checkpoint, {&wanted, 1});
        ASSERT_TRUE(loaded) << loaded.error().message;
        EXPECT_EQ(memory, expected);
      }
  }
  ASSERT_TRUE(remove_tree(real->backend(), parent));
}

TEST(MemoryContent, RefusesWhatDoesNotFitTheDescription) {
  Catalog catalog;
  catalog.tensors.resize(1);
  catalog.tensors[0].name = "w";
  catalog.tensors[0].state = "master";
  catalog.tensors[0].shape = {3, 2};
  ByteVector bytes(16);
  const auto complaint = [&](formats::Held held) {
    const auto made = formats::MemoryContent::make(catalog, {std::move(held)});
    return made ? std::string() : made.error().message;
  };
  EXPECT_EQ(complaint({0, {{1, 0}, {2, 2}}, bytes}), "");
  EXPECT_EQ(complaint({0, {{2, 0}, {2, 2}}, bytes}),
            "w (master): [2:4, 0:2] is held of a tensor of shape [3, 2]");
  EXPECT_EQ(complaint({0, {{0, 0}, {3, 2}}, bytes}),
            "w (master): the memory of [0:3, 0:2] has 16 bytes, its elements 24");
  EXPECT_EQ(complaint({1, {{0, 0}, {2, 2}}, bytes}), "tensor 1 is held of a state that has 1");
  EXPECT_EQ(complaint({0, {{1, 0}, {2, 2}}, {static_cast<const std::byte*>(nullptr), 16}}),
            "w (master): the memory of [1:3, 0:2] has 16 bytes and no address, its elements 16");
  catalog.tensors[0].shape = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
  EXPECT_EQ(complaint({0, formats::whole(catalog.tensors[0].shape), bytes}),
            "w (master): shape [1099511627776, 1099511627776] has more than 2^64 bytes");
  catalog.tensors[0].shape = {3, 2};
  catalog.tensors[0].dtype = static_cast<DType>(99);
  EXPECT_EQ(complaint({0, {{1, 0}, {2, 2}}, bytes}), "w (master): there is no dtype 99");
}

}  // namespace
}  // namespace ebb::libswap
