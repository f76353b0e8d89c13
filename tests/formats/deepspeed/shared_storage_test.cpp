// Weights of stages 1 and 2 are views of one storage, which has one CRC32: whoever reads all of
// them reads each byte once, and a changed byte is noticed all the same.
#include <gtest/gtest.h>

#include <utility>

#include "formats/deepspeed/deepspeed.h"
#include "tests/formats/deepspeed/made_content.h"
#include "tests/support/emit_in_memory.h"

namespace {

using formats::Result;
using test_support::MemoryTree;

constexpr std::string_view kModelFile = "global_step7/mp_rank_00_model_states.pt";

class CountingSource : public formats::ByteSource {
 public:
  CountingSource(std::shared_ptr<const formats::ByteSource> source, std::uint64_t& count)
      : source_(std::move(source)), count_(count) {}
  std::uint64_t size() const override { return source_->size(); }
  std::string_view name() const override { return source_->name(); }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override {
    count_ += into.size();
    return source_->read(offset, into);
  }

 private:
  std::shared_ptr<const formats::ByteSource> source_;
  std::uint64_t& count_;
};

class CountingTree : public test_support::RememberingTree {
 public:
  explicit CountingTree(std::shared_ptr<const MemoryTree> tree) : tree_(std::move(tree)) {}
  std::string_view root() const override { return tree_->root(); }
  const std::vector<Entry>& entries() const override { return tree_->entries(); }
  Result<std::shared_ptr<const formats::ByteSource>> open(std::string_view name) const override {
    TRY_ASSIGN(auto source, tree_->open(name));
    return std::shared_ptr<const formats::ByteSource>(
        std::make_shared<CountingSource>(std::move(source), count));
  }
  mutable std::uint64_t count = 0;  // bytes read

 private:
  std::shared_ptr<const MemoryTree> tree_;
};

std::shared_ptr<MemoryTree> many_weights() {
  test_support::MadeContent content("deepspeed", formats::DType::bf16);
  std::vector<test_support::MadeContent::Param> params;
  for (int i = 0; i < 100; ++i) params.push_back({"w" + std::to_string(i), {8, 33}});
  content.add_group("adam", params, 0.1);
  content.edit().step = 7;
  const auto layout =
      test_support::layout_for(content.catalog(), formats::Policy::zero12_boundary, 2);
  const auto plan = formats::emit_deepspeed({content.catalog(), layout});
  CHECK(plan.has_value());
  auto tree = test_support::carry_out(*plan, content, "out");
  CHECK(tree.has_value());
  return *tree;
}

// How many bytes of tensors there are.
Result<std::uint64_t> read_all(const formats::Checkpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const formats::TensorEntry& tensor : checkpoint.catalog().tensors)
    for (const formats::Chunk& chunk : tensor.chunks) {
      formats::ByteVector data(chunk.length);
      TRY(checkpoint.read(tensor, chunk, 0, data));
      bytes += data.size();
    }
  return bytes;
}

TEST(DeepSpeedSharedStorage, IsReadOnce) {
  const auto tree = std::make_shared<CountingTree>(many_weights());
  const auto checkpoint = formats::describe_deepspeed(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  tree->count = 0;
  const auto bytes = read_all(**checkpoint);
  ASSERT_TRUE(bytes.has_value()) << bytes.error().message;
  EXPECT_LE(tree->count, *bytes + *bytes / 10);  // and some padding
}

TEST(DeepSpeedSharedStorage, ReportsOneChangedBit) {
  const auto whole = many_weights();
  const auto checkpoint = formats::describe_deepspeed(whole);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const formats::Chunk* inner = nullptr;
  for (const formats::TensorEntry& tensor : (*checkpoint)->catalog().tensors)
    if (tensor.name == "w50" && tensor.state == "param") inner = &tensor.chunks.front();
  ASSERT_NE(inner, nullptr);
  ASSERT_EQ((*checkpoint)->catalog().files[inner->file].name, kModelFile);
  whole->bytes_of(kModelFile)[inner->offset + 5] ^= std::byte{4};
  const auto bytes = read_all(**checkpoint);
  ASSERT_FALSE(bytes.has_value());
  EXPECT_EQ(bytes.error().code, formats::Code::corrupt);
}

}  // namespace
