// Weights of stages 1 and 2 are views of one storage, which has one CRC32: whoever reads all of
// them reads each byte once, and a changed byte is noticed all the same.
#include <gtest/gtest.h>

#include <utility>

#include "ebb/formats/deepspeed/deepspeed.h"
#include "tests/formats/deepspeed/made_content.h"
#include "tests/support/counting_tree.h"
#include "tests/support/emit_in_memory.h"

namespace ebb {

namespace {

using test_support::MemoryTree;

constexpr std::string_view kModelFile = "global_step7/mp_rank_00_model_states.pt";

std::shared_ptr<MemoryTree> many_weights() {
  test_support::MadeContent content("deepspeed", DType::bf16);
  std::vector<test_support::MadeContent::Param> params;
  for (int i = 0; i < 100; ++i) params.push_back({"w" + std::to_string(i), {8, 33}});
  content.add_group("adam", params, 0.1);
  content.edit().step = 7;
  const auto layout = test_support::layout_for(content.catalog(), Policy::zero12_boundary, 2);
  const auto plan = formats::emit_deepspeed({content.catalog(), layout});
  EBB_CHECK(plan.has_value());
  auto tree = test_support::carry_out(*plan, content, "out");
  EBB_CHECK(tree.has_value());
  return *tree;
}

// How many bytes of tensors there are.
Result<std::uint64_t> read_all(const Checkpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const TensorEntry& tensor : checkpoint.catalog().tensors)
    for (const Chunk& chunk : tensor.chunks) {
      ByteVector data(chunk.length);
      EBB_TRY(checkpoint.read(tensor, chunk, 0, data));
      bytes += data.size();
    }
  return bytes;
}

TEST(DeepSpeedSharedStorage, IsReadOnce) {
  const auto tree = std::make_shared<test_support::CountingTree>(many_weights());
  const auto checkpoint = formats::describe_deepspeed(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const std::uint64_t before = tree->read();
  const auto bytes = read_all(**checkpoint);
  ASSERT_TRUE(bytes.has_value()) << bytes.error().message;
  EXPECT_LE(tree->read() - before, *bytes + *bytes / 10);  // and some padding
}

TEST(DeepSpeedSharedStorage, ReportsOneChangedBit) {
  const auto whole = many_weights();
  const auto checkpoint = formats::describe_deepspeed(whole);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Chunk* inner = nullptr;
  for (const TensorEntry& tensor : (*checkpoint)->catalog().tensors)
    if (tensor.name == "w50" && tensor.state == "param") inner = &tensor.chunks.front();
  ASSERT_NE(inner, nullptr);
  ASSERT_EQ((*checkpoint)->catalog().files[inner->file].name, kModelFile);
  whole->bytes_of(kModelFile)[inner->offset + 5] ^= std::byte{4};
  const auto bytes = read_all(**checkpoint);
  ASSERT_FALSE(bytes.has_value());
  EXPECT_EQ(bytes.error().code, Code::corrupt);
}

}  // namespace

}  // namespace ebb
