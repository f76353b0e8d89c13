// Descriptions to catalogs: what is offered, and what is refused however the description came to
// be.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "ebb/formats/hdf5/filters.h"
#include "ebb/formats/hdf5/hdf5.h"
#include "tests/formats/hdf5/probed_tree.h"
#include "tests/support/counting_tree.h"
#include "tests/support/emit_in_memory.h"

namespace ebb {

namespace {

using formats::hdf5::Dataset;
using formats::hdf5::Description;
using formats::hdf5::ElementType;
using formats::hdf5::Link;
using formats::hdf5::Selection;
using test_support::hdf5_bytes;
using test_support::ProbedTree;

ElementType float32() {
  return {.kind = ElementType::Kind::floating,
          .size = 4,
          .sign_at = 31,
          .exponent_at = 23,
          .exponent_bits = 8,
          .mantissa_at = 0,
          .mantissa_bits = 23,
          .bias = 127,
          .words = "float of 4 bytes"};
}

Dataset contiguous(std::string path, Shape shape, std::uint64_t address) {
  Dataset dataset{.path = std::move(path), .type = float32(), .shape = shape};
  dataset.address = address;
  dataset.stored = formats::checked_volume(shape).value_or(0) * 4;
  return dataset;
}

Description with(std::vector<Dataset> datasets) {
  Description description;
  description.groups.push_back({"/", {}});
  description.datasets = std::move(datasets);
  return description;
}

Result<std::unique_ptr<Checkpoint>> describe(const Description& description, ByteVector bytes) {
  auto tree = std::make_shared<ProbedTree>("ckpt");
  tree->add_hdf5("a.h5", std::move(bytes), description);
  return formats::describe_hdf5(tree);
}

// What is said about one dataset in a file of 4096 bytes.
std::string refusal(Dataset dataset) {
  const auto checkpoint = describe(with({std::move(dataset)}), hdf5_bytes(4096));
  return checkpoint ? "no refusal" : checkpoint.error().message;
}

TEST(Hdf5Describe, ReadsBigEndianAndPartsOfElements) {
  ByteVector bytes = hdf5_bytes(4096);
  for (int i = 0; i < 24; ++i) bytes[1000 + i] = static_cast<std::byte>(i);
  Dataset dataset = contiguous("/state/w/master", {2, 3}, 1000);
  dataset.type.big_endian = true;
  const auto checkpoint = describe(with({dataset}), bytes);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const TensorEntry& tensor = (*checkpoint)->catalog().tensors.at(0);
  EXPECT_EQ(tensor.name + " " + tensor.state, "w master");
  std::array<std::byte, 5> part{};
  ASSERT_TRUE((*checkpoint)->read(tensor, tensor.chunks[0], 6, part));
  // Elements of 4 bytes, reversed: 3 2 1 0 7 6 [5 4 11 10 9] 8 ...
  const std::array<int, 5> expected = {5, 4, 11, 10, 9};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(std::to_integer<int>(part[i]), expected[i]);
}

TEST(Hdf5Describe, AnAddressBeyondTheFileIsRefused) {
  EXPECT_EQ(refusal(contiguous("/w", {10}, 4090)),
            "ckpt/a.h5: /w: 40 bytes at 4090 lie beyond the end of the file, 4096");
  EXPECT_NE(refusal(contiguous("/w", {10}, ~std::uint64_t{0} - 8)).find("beyond the end"),
            std::string::npos);
}

TEST(Hdf5Describe, WhatWasNeverWrittenIsIncomplete) {
  EXPECT_NE(
      refusal(contiguous("/w", {10}, formats::hdf5::kNowhere)).find("nothing was ever written"),
      std::string::npos);
}

TEST(Hdf5Describe, ShapesBeyond64BitsAreRefused) {
  Dataset bomb = contiguous("/w", {std::uint64_t{1} << 40, std::uint64_t{1} << 40}, 200);
  EXPECT_NE(refusal(bomb).find("more bytes than 64 bits count"), std::string::npos);
  bomb.shape = {std::uint64_t{1} << 61, 4};
  EXPECT_NE(refusal(bomb).find("more bytes than 64 bits count"), std::string::npos);
}

Dataset chunked(std::vector<formats::hdf5::StoredChunk> chunks) {
  Dataset dataset{.path = "/w", .type = float32(), .shape = {5}};
  dataset.layout = Dataset::Layout::chunked;
  dataset.chunk = {4};
  dataset.chunks_stored = chunks.size();
  dataset.chunks = std::move(chunks);
  return dataset;
}

TEST(Hdf5Describe, ChunksAreClippedAtTheEdge) {
  ByteVector bytes = hdf5_bytes(4096);
  for (int i = 0; i < 32; ++i) bytes[512 + i] = static_cast<std::byte>(i);
  const auto checkpoint = describe(with({chunked({{528, 16, 0}, {512, 16, 0}})}), bytes);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto all = test_support::elements_of(**checkpoint, (*checkpoint)->catalog().tensors.at(0));
  ASSERT_TRUE(all) << all.error().message;
  ASSERT_EQ(all->size(), 20u);
  EXPECT_EQ(std::to_integer<int>((*all)[0]), 16);
  EXPECT_EQ(std::to_integer<int>((*all)[16]), 0);
}

TEST(Hdf5Describe, AChunkWithFiltersIsDecodedOnceForAllThatReadPartsOfIt) {
  ByteVector bytes = hdf5_bytes(4096);
  for (std::size_t i = 0; i < 16; ++i)  // shuffled: all first bytes of elements, all second, ...
    bytes[512 + i % 4 * 4 + i / 4] = bytes[600 + i % 4 * 4 + i / 4] = static_cast<std::byte>(i);
  Dataset dataset = chunked({{512, 16, 0}, {600, 16, 0}});
  dataset.filters = {{formats::hdf5::kShuffle, {4}}};
  const auto file = std::make_shared<ProbedTree>("ckpt");
  file->add_hdf5("a.h5", bytes, with({dataset}));
  const auto tree = std::make_shared<test_support::CountingTree>(file);
  const auto checkpoint = formats::describe_hdf5(tree);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const TensorEntry& tensor = (*checkpoint)->catalog().tensors.at(0);
  const std::uint64_t before = tree->read();
  for (std::uint64_t round = 0; round < 3; ++round)
    for (std::uint64_t at = 0; at < 16; ++at) {
      std::byte one{};
      ASSERT_TRUE((*checkpoint)->read(tensor, tensor.chunks[0], at, {&one, 1}));
      EXPECT_EQ(std::to_integer<std::uint64_t>(one), at);
    }
  EXPECT_EQ(tree->read() - before, 16u);
  std::byte last{};
  ASSERT_TRUE((*checkpoint)->read(tensor, tensor.chunks[1], 3, {&last, 1}));
  EXPECT_EQ(std::to_integer<int>(last), 3);
  EXPECT_EQ(tree->read() - before, 32u);
  for (const std::uint64_t each : tree->decoded_bytes()) EXPECT_EQ(each, 16u);
}

TEST(Hdf5Describe, ChunksThatLieAreRefused) {
  EXPECT_NE(refusal(chunked({{512, 16, 0}})).find("stores 1 of its 2 chunks"), std::string::npos);
  EXPECT_NE(refusal(chunked({{512, 16, 0}, {520, 16, 0}})).find("two chunks overlap"),
            std::string::npos);
  EXPECT_NE(refusal(chunked({{512, 16, 0}, {4096, 16, 0}})).find("beyond the end"),
            std::string::npos);
  EXPECT_NE(refusal(chunked({{512, 12, 0}, {600, 16, 0}})).find("has 12 bytes"), std::string::npos);
  Dataset none = chunked({{512, 16, 0}, {600, 16, 0}});
  none.chunk = {0};
  EXPECT_NE(refusal(none).find("chunks of shape [0]"), std::string::npos);
}

TEST(Hdf5Describe, AnUnknownFilterIsNamed) {
  Dataset dataset = chunked({{512, 16, 0}, {600, 16, 0}});
  dataset.filters = {{32001, {}}};
  EXPECT_NE(refusal(dataset).find("filter 32001 (blosc) is not read"), std::string::npos);
}

TEST(Hdf5Describe, ExternalDataIsRefusedBeforeAnythingIsRead) {
  Dataset dataset = contiguous("/w", {4}, formats::hdf5::kNowhere);
  dataset.external = {{"/etc/passwd", 16}};
  EXPECT_EQ(refusal(dataset),
            "ckpt/a.h5: /w: raw data in an external file outside the checkpoint: /etc/passwd");
}

TEST(Hdf5Describe, ElementsThatAreNoNumbersAreNamed) {
  Dataset dataset = contiguous("/w", {4}, 200);
  dataset.type = {.kind = ElementType::Kind::text, .size = 16, .words = "variable-length string"};
  EXPECT_EQ(refusal(dataset),
            "ckpt/a.h5: /w: elements of type variable-length string are no tensor's");
}

TEST(Hdf5Describe, LinksThatCycleOrLeadNowhereAreRefused) {
  Description description = with({contiguous("/a/w", {4}, 200)});
  description.groups.push_back({"/a", {}});
  const auto refused = [&](Link link) {
    description.links = {std::move(link)};
    const auto checkpoint = describe(description, hdf5_bytes(4096));
    return checkpoint ? "no refusal" : checkpoint.error().message;
  };
  EXPECT_EQ(refused({Link::Kind::group_again, "/a/b", "/a", {}}),
            "ckpt/a.h5: hard links form a cycle: /a/b is /a");
  EXPECT_EQ(refused({Link::Kind::soft, "/s", "/a/v", {}}),
            "ckpt/a.h5: soft link /s leads to /a/v, where nothing is");
  EXPECT_EQ(refused({Link::Kind::soft, "/s", "s", {}}),
            "ckpt/a.h5: soft links form a loop: /s -> /s");
  EXPECT_EQ(refused({Link::Kind::soft, "/s", "a/w", {}}), "no refusal");
}

Dataset mapped(const std::string& file) {
  Dataset dataset{.path = "/w", .type = float32(), .shape = {4, 2}};
  dataset.layout = Dataset::Layout::mapped;
  dataset.mappings.push_back({.file = file, .dataset = "part"});
  return dataset;
}

TEST(Hdf5Describe, SourcesOfVirtualDatasetsStayInTheFolder) {
  EXPECT_NE(refusal(mapped("../b.h5")).find("../b.h5 lies outside the checkpoint"),
            std::string::npos);
  EXPECT_NE(refusal(mapped("/etc/b.h5")).find("/etc/b.h5 lies outside the checkpoint"),
            std::string::npos);
  EXPECT_NE(refusal(mapped("b.h5")).find("b.h5 does not exist"), std::string::npos);
  EXPECT_NE(refusal(mapped("b%b.h5")).find("numbered series"), std::string::npos);
}

TEST(Hdf5Describe, ShapesBeyond64BitsAreRefusedInVirtualDatasetsAndTheirSourcesToo) {
  const Shape bomb = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
  for (const bool in_source : {true, false}) {
    auto tree = std::make_shared<ProbedTree>("ckpt");
    Dataset global = mapped("b.h5"), part = contiguous("/part", {4, 2}, 200);
    (in_source ? part : global).shape = bomb;
    tree->add_hdf5("a.h5", hdf5_bytes(4096), with({global}));
    tree->add_hdf5("b.h5", hdf5_bytes(4096), with({part}));
    const auto refused = formats::describe_hdf5(tree);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::limit);
    EXPECT_NE(refused.error().message.find("more bytes than 64 bits count"), std::string::npos)
        << refused.error().message;
  }
}

TEST(Hdf5Describe, AHoleInAVirtualDatasetIsNamed) {
  auto tree = std::make_shared<ProbedTree>("ckpt");
  Dataset global = mapped("b.h5");
  global.mappings[0].target = {Selection::Kind::blocks, {0, 0}, {1, 1}, {1, 1}, {3, 2}};
  tree->add_hdf5("a.h5", hdf5_bytes(4096), with({global}));
  tree->add_hdf5("b.h5", hdf5_bytes(4096), with({contiguous("/part", {3, 2}, 200)}));
  const auto holed = formats::describe_hdf5(tree);
  ASSERT_FALSE(holed);
  EXPECT_EQ(holed.error().code, Code::incomplete);
  EXPECT_NE(holed.error().message.find("/w"), std::string::npos) << holed.error().message;
}

TEST(Hdf5Describe, RankFilesAreOneTensorByTheirOffsets) {
  auto tree = std::make_shared<ProbedTree>("ckpt");
  for (int rank = 0; rank < 2; ++rank) {
    Dataset part = contiguous("/state/w/master", {2, 2}, 256);
    Value shape, offset;
    shape.kind = offset.kind = Value::Kind::list;
    shape.items = {Value::of_int(4), Value::of_int(2)};
    offset.items = {Value::of_int(rank * 2), Value::of_int(0)};
    part.attributes = {{"global_shape", shape}, {"offset", offset}, {"rank", Value::of_int(rank)}};
    Description description = with({part});
    description.groups[0].attributes = {{"format", Value::of_string("ebb")},
                                        {"step", Value::of_int(7)}};
    tree->add_hdf5("r" + std::to_string(rank) + ".h5", hdf5_bytes(4096), description);
  }
  const auto checkpoint = formats::describe_hdf5(tree);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_EQ(catalog.world, 2u);
  EXPECT_EQ(catalog.step, 7);
  ASSERT_EQ(catalog.tensors.size(), 1u);
  EXPECT_EQ(catalog.tensors[0].shape, (Shape{4, 2}));
  EXPECT_EQ(catalog.tensors[0].chunks.size(), 2u);
}

TEST(Hdf5Describe, AttributesThatContradictTheShapeAreRefused) {
  Dataset dataset = contiguous("/state/w/master", {4}, 256);
  Value shape;
  shape.kind = Value::Kind::list;
  shape.items = {Value::of_int(2)};
  dataset.attributes = {{"global_shape", shape}};
  Description description = with({dataset});
  description.groups[0].attributes = {{"format", Value::of_string("ebb")}};
  auto refused = describe(description, hdf5_bytes(4096));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("not inside its global_shape [2]"), std::string::npos);
  shape.items = {Value::of_int(std::int64_t{1} << 62)};
  description.datasets[0].attributes = {{"global_shape", shape}};
  refused = describe(description, hdf5_bytes(4096));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("more bytes than 64 bits count"), std::string::npos);
  description.datasets[0].attributes = {{"dtype", Value::of_string("F16")}};
  refused = describe(description, hdf5_bytes(4096));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("dtype says F16"), std::string::npos);
}

TEST(Hdf5Describe, EveryPrefixOfADescriptionIsRefused) {
  auto tree = std::make_shared<ProbedTree>("ckpt");
  Description description = with({chunked({{512, 16, 0}, {600, 16, 0}}), mapped("b.h5")});
  description.groups[0].attributes = {{"x", Value::of_real(1.5)}};
  tree->add_hdf5("a.h5", hdf5_bytes(4096), description);
  const ByteVector whole = tree->report_of("a.h5");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    tree->report_of("a.h5").assign(whole.begin(),
                                   whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(formats::describe_hdf5(tree)) << size;
  }
}

// Any changed byte gives a refusal or a catalog that can be read: nothing outside the file, no
// crash.
TEST(Hdf5Describe, EveryChangedByteOfADescriptionIsHarmless) {
  auto tree = std::make_shared<ProbedTree>("ckpt");
  Description description =
      with({chunked({{512, 16, 0}, {600, 16, 0}}), contiguous("/state/v/exp_avg", {3, 2}, 1000)});
  description.groups[0].attributes = {{"x", Value::of_real(1.5)}};
  description.datasets[0].filters = {{formats::hdf5::kShuffle, {4}}};
  tree->add_hdf5("a.h5", hdf5_bytes(4096), description);
  const ByteVector whole = tree->report_of("a.h5");
  std::size_t read = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int mask : {1, 0x80, 0xff}) {
      ByteVector& report = tree->report_of("a.h5");
      report = whole;
      report[at] ^= static_cast<std::byte>(mask);
      const auto checkpoint = formats::describe_hdf5(tree);
      if (!checkpoint) continue;
      ++read;
      for (const TensorEntry& tensor : (*checkpoint)->catalog().tensors)
        for (const Chunk& chunk : tensor.chunks) {
          const std::uint64_t bytes = formats::volume(chunk.box.extent) * bytes_of(tensor.dtype);
          ASSERT_LE(bytes, 4096u);
          ByteVector into(bytes);
          const auto done = (*checkpoint)->read(tensor, chunk, 0, into);
          EXPECT_TRUE(done || !done.error().message.empty());
        }
    }
  }
  EXPECT_GT(read, 0u);
}

}  // namespace

}  // namespace ebb
