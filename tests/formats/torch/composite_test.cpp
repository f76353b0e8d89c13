// Tensors that are made of parts: what the pickle says of them, and pieces of ranks put together.
#include <gtest/gtest.h>

#include "ebb/formats/torch/composite_join.h"
#include "ebb/formats/torch_save/torch_save.h"
#include "tests/support/archives.h"
#include "tests/support/pickled_tensors.h"
#include "tests/support/source_tree.h"

namespace ebb {
namespace {

using formats::Box;
using formats::CompositeJoin;
using formats::CompositePiece;
using formats::PickleWriter;
using formats::TorchComposite;
using formats::TorchTensor;
using test_support::MemoryTree;

struct PartShape {
  std::string name;
  Shape shape;
  DType dtype = DType::u8;
};

// Its first part begins at this byte of file 0.
CompositePiece piece(const std::string& type, Box box, const std::vector<PartShape>& parts,
                     std::uint64_t at = 0, std::uint32_t crc = 1) {
  CompositePiece made{box, {{.type = type, .shape = box.extent}, {}}, {}};
  for (const PartShape& part : parts) {
    TorchTensor tensor{.dtype = part.dtype, .shape = part.shape};
    made.made.parts.push_back({part.name, tensor});
    made.stored.push_back({{.offset = at, .length = tensor.bytes()}, crc});
  }
  return made;
}

constexpr const char* k8Bit = "torchao.optim.subclass_8bit.OptimState8bit";
constexpr const char* kFloat8 = "torchao.quantization.Float8Tensor";

std::vector<PartShape> parts_of_8bit(std::uint64_t rows) {
  return {{"codes", {rows, 32}}, {"scale", {rows / 8}, DType::f32}, {"qmap", {256}, DType::f32}};
}

TEST(CompositeJoin, ScalesOfRowsFollowTheRowsAndTablesAreCommon) {
  CompositeJoin join({32, 32});
  EXPECT_EQ(join.add(piece(k8Bit, {{0, 0}, {8, 32}}, parts_of_8bit(8))), "");
  EXPECT_EQ(join.add(piece(k8Bit, {{8, 0}, {24, 32}}, parts_of_8bit(24), 99)), "");
  const auto parts = join.take();
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].shape, (Shape{32, 32}));
  EXPECT_EQ(parts[0].chunks[1].box, (Box{{8, 0}, {24, 32}}));
  EXPECT_EQ(parts[1].shape, (Shape{4}));
  EXPECT_EQ(parts[1].chunks[1].box, (Box{{1}, {3}}));
  EXPECT_EQ(parts[1].chunks[1].offset, 99u);
  EXPECT_EQ(parts[2].shape, (Shape{256}));
  EXPECT_EQ(parts[2].chunks.size(), 1u);
  EXPECT_EQ(parts[2].part_of->part, "qmap");
  EXPECT_EQ(parts[2].part_of->whole->parts, 3u);
}

TEST(CompositeJoin, ScalesOfBoxesFollowTheBoxes) {
  CompositeJoin join({4, 64});
  for (std::uint64_t column = 0; column < 64; column += 32)
    EXPECT_EQ(join.add(piece(kFloat8, {{0, column}, {4, 32}},
                             {{"qdata", {4, 32}, DType::f8_e4m3}, {"scale", {4, 1}, DType::f32}})),
              "");
  const auto parts = join.take();
  EXPECT_EQ(parts[1].shape, (Shape{4, 2}));
  EXPECT_EQ(parts[1].chunks[1].box, (Box{{0, 1}, {4, 1}}));
}

TEST(CompositeJoin, AReplicaAddsNothingAndAnotherOneIsRefused) {
  CompositeJoin join({8, 32});
  EXPECT_EQ(join.add(piece(k8Bit, {{0, 0}, {8, 32}}, parts_of_8bit(8))), "");
  EXPECT_EQ(join.add(piece(k8Bit, {{0, 0}, {8, 32}}, parts_of_8bit(8), 7)), "");
  EXPECT_NE(join.add(piece(k8Bit, {{0, 0}, {8, 32}}, parts_of_8bit(8), 7, 2)), "");
  for (const TensorEntry& part : join.take()) EXPECT_EQ(part.chunks.size(), 1u);
}

TEST(CompositeJoin, WhatDoesNotFitTogetherIsNotJoined) {
  struct Case {
    CompositePiece second;
    std::string why;
  };
  const Box rest{{8, 0}, {8, 32}};
  const auto with = [&](std::size_t part, PartShape other) {
    auto parts = parts_of_8bit(8);
    parts[part] = std::move(other);
    return piece(k8Bit, rest, parts);
  };
  const std::vector<Case> cases = {
      {piece(kFloat8, rest, parts_of_8bit(8)), "not made alike"},
      {piece(k8Bit, rest, {{"codes", {8, 32}}}), "not made alike"},
      {with(0, {"codes", {8, 32}, DType::i8}), "not made alike"},
      {with(1, {"scale", {3}, DType::f32}), "scale does not follow the rows"},
      {with(1, {"scale", {2}, DType::f32}), "scale does not follow the rows"},
      {with(2, {"qmap", {16}, DType::f32}), "each has its own qmap"},
      {piece(k8Bit, rest, parts_of_8bit(8), 0, 5), "each has its own qmap"},
      {piece(k8Bit, {{8, 0}, {8, 16}}, parts_of_8bit(8)), "does not follow the rows"}};
  for (const Case& one : cases) {
    CompositeJoin join({16, 32});
    EXPECT_EQ(join.add(piece(k8Bit, {{0, 0}, {8, 32}}, parts_of_8bit(8))), "");
    EXPECT_NE(join.add(one.second).find(one.why), std::string::npos) << one.why;
  }
  CompositeJoin stranger({16, 32});
  EXPECT_NE(stranger.add(piece("my.Quantized", {{0, 0}, {8, 32}}, {{"codes", {8, 32}}}))
                .find("not known how its codes is cut"),
            std::string::npos);
}

// "w" with these attributes, in an archive whose storages are "1" and "2" of four floats each.
template <typename Attributes>
Result<std::unique_ptr<Checkpoint>> described(const Attributes& attributes) {
  PickleWriter pickle;
  pickle.dict([&] {
    pickle.string("plain");
    test_support::plain_tensor(pickle, "1", {2});
    pickle.string("w");
    test_support::wrapper_subclass(pickle, "my.package", "Quantized", {4},
                                   [&] { pickle.dict([&] { attributes(pickle); }); });
  });
  auto tree = std::make_shared<MemoryTree>("ck");
  tree->add("x.pt", test_support::archive_around(pickle.finish()));
  return formats::describe_torch(std::move(tree));
}

TEST(Composite, AnyClassIsReadAsItsParts) {
  const auto checkpoint = described([](PickleWriter& pickle) {
    pickle.string("data");
    test_support::plain_tensor(pickle, "1", {2});
    pickle.string("bits");
    pickle.integer(3);
    pickle.string("inner");
    test_support::wrapper_subclass(pickle, "my.package", "Layout", {2}, [&] {
      pickle.dict([&] {
        pickle.string("scale");
        test_support::plain_tensor(pickle, "1", {1});
      });
    });
  });
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const auto& catalog = (*checkpoint)->catalog();
  ASSERT_EQ(catalog.tensors.size(), 3u);
  EXPECT_EQ(*catalog.tensors[1].key, "w.data");
  EXPECT_EQ(*catalog.tensors[2].key, "w.inner.scale");
  const formats::Composite& whole = *catalog.tensors[2].part_of->whole;
  EXPECT_EQ(whole.type, "my.package.Quantized");
  EXPECT_EQ(whole.shape, (Shape{4}));
  ASSERT_EQ(whole.settings.size(), 2u);
  EXPECT_EQ(whole.settings[0].first, "bits");
  EXPECT_TRUE(catalog.unread.empty());
}

TEST(Composite, OneThatKeepsWhatIsNotReadIsNot) {
  const auto checkpoint = described([](PickleWriter& pickle) {
    pickle.string("data");
    test_support::wrapper_subclass(pickle, "torch.distributed.tensor", "DTensor", {2},
                                   [&] { pickle.empty_dict(); });
  });
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->catalog().tensors.size(), 1u);
  ASSERT_EQ((*checkpoint)->catalog().unread.size(), 1u);
  EXPECT_EQ((*checkpoint)->catalog().unread[0].key, "w");
}

TEST(Composite, APartPastItsStorageIsDamage) {
  const auto checkpoint = described([](PickleWriter& pickle) {
    pickle.string("data");
    test_support::plain_tensor(pickle, "1", {1000000});
  });
  ASSERT_FALSE(checkpoint.has_value());
  EXPECT_EQ(checkpoint.error().code, Code::corrupt) << checkpoint.error().message;
}

}  // namespace
}  // namespace ebb
