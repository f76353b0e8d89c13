// Archives with several storages, read back by our own reader; tests/judges lets torch read them.
#include "ebb/formats/torch/file_writer.h"

#include <gtest/gtest.h>

#include "ebb/formats/catalog/range_crcs.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/torch/archive.h"
#include "tests/libswap/transfer/memory_checkpoint.h"
#include "tests/support/emit_in_memory.h"

namespace ebb {

namespace {

using formats::PickleGraph;
using formats::PickleId;
using formats::ZeroElems;
using libswap::testing::MemoryCheckpoint;
using libswap::testing::Random;

TEST(TorchFileWriter, StoragesOfPiecesZerosAndBytesHoldWhatTheirTensorsSay) {
  Random random{11};
  MemoryCheckpoint content;
  content.add("w", DType::f32, {6, 5}, random);
  content.add_chunk(0, formats::whole({6, 5}), 0);
  formats::TorchFileWriter file(content.catalog(), "model");
  const std::uint32_t flat = file.add_storage(
      DType::f32, {TensorData{0, {{2, 0}, {4, 5}}}, ZeroElems{3}, ByteVector(8, std::byte{7})});
  EXPECT_EQ(file.storage_elems(flat), 25u);
  file.dict([&] {
    file.entry("flat", [&] { file.tensor(flat, 0, {25}); });
    file.entry("view", [&] { file.tensor(flat, 5, {2, 5}); });
    file.entry("whole", [&] { file.tensor(0); });
    file.entry("none", [&] { file.tensor(file.add_storage(DType::bf16, {}), 0, {0, 4}); });
    file.entry("value", Value::of_string("text"));
  });
  EmitPlan plan;
  plan.files.push_back(file.finish("m.pt", Rank{0}));
  const auto tree = test_support::carry_out(plan, content, "out");
  ASSERT_TRUE(tree);
  const auto bytes = (*tree)->bytes_of("m.pt");
  const auto archive = formats::TorchArchive::open(
      std::make_shared<formats::MemorySource>("m.pt", bytes), 0, bytes.size());
  ASSERT_TRUE(archive) << archive.error().message;
  const PickleGraph& graph = archive->graph();
  const auto elements = [&](std::string_view key) {
    const auto tensor = formats::torch_tensor(graph, graph.find(graph.root(), key));
    EXPECT_TRUE(tensor);
    const auto read = archive->elements(*tensor, formats::MiB);
    EXPECT_TRUE(read) << read.error().message;  // CRC32s included
    return *read;
  };
  ByteVector wanted = content.elements(0, {{2, 0}, {4, 5}});
  EXPECT_EQ(elements("view"), ByteVector(wanted.begin() + 20, wanted.begin() + 60));
  wanted.resize(wanted.size() + 12);
  wanted.resize(wanted.size() + 8, std::byte{7});
  EXPECT_EQ(elements("flat"), wanted);
  EXPECT_EQ(elements("whole"), content.bytes(0));
  EXPECT_TRUE(elements("none").empty());
  EXPECT_EQ(graph.text(graph.find(graph.root(), "value")), "text");
}

}  // namespace

}  // namespace ebb
