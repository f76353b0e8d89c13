// What emit() plans, put together in memory, is what describe() and the library's rules accept.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "ebb/formats/safetensors/safetensors.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using test_support::MemoryTree;

TensorEntry tensor(std::string name, std::string state, Shape shape) {
  const std::string key = "optimizer.state." + name + "." + state;
  return {key, {}, std::move(name), std::move(state), DType::f32, std::move(shape), {}};
}

Catalog content() {
  Catalog catalog;
  catalog.tensors = {tensor("w", "momentum_buffer", {5, 3}), tensor("w", "param", {5, 3}),
                     tensor("norm", "param", {4})};
  ValueEntry note;
  note.key = "note";
  note.value.kind = Value::Kind::string;
  note.value.text = "kept \"as is\"";
  ValueEntry step;
  step.key = "step";
  step.value.kind = Value::Kind::integer;
  catalog.values = {note, step};
  return catalog;
}

// Element i of tensor t is 1000 t + i.
class Numbered : public Checkpoint {
 public:
  explicit Numbered(Catalog catalog) : catalog_(std::move(catalog)) {
    for (std::uint32_t t = 0; t < catalog_.tensors.size(); ++t) {
      TensorEntry& tensor = catalog_.tensors[t];
      const Box all = formats::whole(tensor.shape);
      tensor.chunks = {{all, 0, 0, formats::volume(tensor.shape) * sizeof(float), {}, t}};
    }
  }
  const Catalog& catalog() const override { return catalog_; }
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override {
    std::vector<float> all(formats::volume(tensor.shape));
    std::iota(all.begin(), all.end(), static_cast<float>(chunk.tag * 1000));
    std::ranges::copy(std::as_bytes(std::span(all)).subspan(first, into.size()), into.begin());
    return {};
  }

 private:
  Catalog catalog_;
};

std::shared_ptr<const MemoryTree> write(const EmitPlan& plan, const Catalog& catalog) {
  auto tree = test_support::carry_out(plan, Numbered(catalog), "out");
  EBB_CHECK(tree);
  return *tree;
}

Result<EmitPlan> emit(const Catalog& catalog, Policy policy, std::uint32_t ranks,
                      std::optional<std::uint64_t> file_bytes = {}) {
  std::vector<Shape> shapes;
  for (const TensorEntry& entry : catalog.tensors) shapes.push_back(entry.shape);
  Layout::Spec spec;
  spec.policy = policy;
  spec.mesh.shard_world = ranks;
  EBB_TRY_ASSIGN(const Layout layout, Layout::make(spec, shapes));
  formats::EmitRequest request{catalog, layout};
  if (file_bytes) request.file_bytes = *file_bytes;
  return formats::emit_safetensors(request);
}

void expect_same_content(const Catalog& catalog, std::shared_ptr<const MemoryTree> tree) {
  const auto checkpoint = formats::describe_safetensors(tree);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_TRUE(prove_coverage((*checkpoint)->catalog()));
  EXPECT_EQ((*checkpoint)->catalog().tensors.size(), catalog.tensors.size());
  const Numbered original(catalog);
  for (const TensorEntry& found : (*checkpoint)->catalog().tensors) {
    const auto& wanted = original.catalog().tensors;
    const auto match = std::find_if(wanted.begin(), wanted.end(), [&](const TensorEntry& entry) {
      return entry.name == found.name && entry.state == found.state;
    });
    ASSERT_NE(match, wanted.end()) << found.name << " " << found.state;
    EXPECT_EQ(found.shape, match->shape);
    EXPECT_EQ(*test_support::elements_of(**checkpoint, found),
              *test_support::elements_of(original, *match));
  }
}

TEST(SafetensorsEmit, OneRankGivesOneFile) {
  const Catalog catalog = content();
  const auto plan = emit(catalog, Policy::replicated, 1);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->files.size(), 1u);
  EXPECT_EQ(plan->files[0].name, "model.safetensors");
  expect_same_content(catalog, write(*plan, catalog));
}

TEST(SafetensorsEmit, SeveralRanksGiveShardsThatDcpReads) {
  const Catalog catalog = content();
  for (const Policy policy : {Policy::rows, Policy::zero3, Policy::zero12}) {
    const auto plan = emit(catalog, policy, 3);
    ASSERT_TRUE(plan) << plan.error().message;
    ASSERT_EQ(plan->files.size(), 3u);
    EXPECT_EQ(plan->files[1].name, "shard-00002-model-00001-of-00001.safetensors");
    expect_same_content(catalog, write(*plan, catalog));
  }
}

TEST(SafetensorsEmit, BigDataBeginsWhereODirectCanReadIt) {
  Catalog catalog;
  catalog.tensors = {tensor("w", "param", {64, 64})};
  const auto plan = emit(catalog, Policy::replicated, 1);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->files[0].fragments.at(1).offset, 4096u);
  EXPECT_EQ(plan->files[0].size, 4096u + 64 * 64 * 4);
}

TEST(SafetensorsEmit, KeepsStringsAsEntriesOfTheirOwn) {
  Catalog catalog = content();
  catalog.values.pop_back();
  const auto plan = emit(catalog, Policy::replicated, 1);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->dropped.empty());
  const auto& head = std::get<ByteVector>(plan->files[0].fragments.at(0).data);
  const std::string_view text = formats::text_of(head);
  // As the releases before values were held had it, byte for byte.
  EXPECT_EQ(text.substr(8, text.find("\"norm\"") - 8),
            R"({"__metadata__":{"ebb":"1 added:format","format":"pt","note":"kept \"as is\""},)");
  const auto checkpoint = formats::describe_safetensors(write(*plan, catalog));
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ((*checkpoint)->catalog().producer, "Ebb");
  ASSERT_EQ((*checkpoint)->catalog().values.size(), 1u);
  EXPECT_EQ((*checkpoint)->catalog().values[0].value.text, "kept \"as is\"");
}

TEST(SafetensorsEmit, KeepsEmptyTensorsAndNamesThatKeysDoNotTell) {
  Catalog catalog;
  catalog.tensors = {tensor("rng.state.0", "tensor", {3}), tensor("odd.exp", "buffer", {2})};
  catalog.tensors[1].key = "odd";
  catalog.tensors.push_back(tensor("empty", "param", {0, 3}));
  const auto plan = emit(catalog, Policy::rows, 2);
  ASSERT_TRUE(plan) << plan.error().message;
  expect_same_content(catalog, write(*plan, catalog));
}

TEST(SafetensorsEmit, KeepsAFormatThatCameWithTheContent) {
  Catalog catalog = content();
  ValueEntry format;
  format.key = "format";
  format.value = Value::of_string("tf");
  catalog.values = {format};
  const auto plan = emit(catalog, Policy::replicated, 1);
  ASSERT_TRUE(plan);
  const auto checkpoint = formats::describe_safetensors(write(*plan, catalog));
  ASSERT_TRUE(checkpoint);
  ASSERT_EQ((*checkpoint)->catalog().values.size(), 1u);
  EXPECT_EQ((*checkpoint)->catalog().values[0].value.text, "tf");
}

TEST(SafetensorsEmit, TwoTensorsOfOneNameAreRefused) {
  Catalog catalog = content();
  catalog.tensors.push_back(tensor("norm", "param", {4}));
  const auto plan = emit(catalog, Policy::replicated, 1);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().message, "two tensors would be called 'norm' in safetensors");
}

TEST(SafetensorsEmit, CutsFilesOfTheAskedSizeAndNamesThemInAnIndex) {
  const Catalog catalog = content();  // 60, 60 and 16 bytes
  for (const auto& [bytes, files] : std::vector<std::pair<std::uint64_t, std::size_t>>{
           {1, 3}, {60, 3}, {76, 2}, {119, 2}, {136, 1}}) {
    const auto plan = emit(catalog, Policy::rows, 1, bytes);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->files.size(), files) << bytes;
    EXPECT_EQ(plan->commit_files.size(), files > 1 ? 1u : 0u) << bytes;
    for (std::size_t i = 0; i < files && files > 1; ++i)
      EXPECT_EQ(plan->files[i].name, "model-0000" + std::to_string(i + 1) + "-of-0000" +
                                         std::to_string(files) + ".safetensors");
    expect_same_content(catalog, write(*plan, catalog));
    const auto shards = emit(catalog, Policy::rows, 2, bytes);
    ASSERT_TRUE(shards) << shards.error().message;
    EXPECT_TRUE(shards->commit_files.empty());
    expect_same_content(catalog, write(*shards, catalog));
  }
}

}  // namespace

}  // namespace ebb
