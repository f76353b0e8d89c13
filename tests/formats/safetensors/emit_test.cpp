// What emit() plans, put together in memory, is what describe() and the library's rules accept.
#include <gtest/gtest.h>

#include <numeric>

#include "formats/safetensors/safetensors.h"
#include "tests/support/expected.h"
#include "tests/support/source_tree.h"

namespace {

using formats::Catalog;
using formats::Layout;
using formats::Policy;
using formats::TensorEntry;
using test_support::MemoryTree;

TensorEntry tensor(std::string name, std::string state, formats::Shape shape) {
  const std::string key = "optimizer.state." + name + "." + state;
  return {key, {}, std::move(name), std::move(state), formats::DType::f32, std::move(shape), {}};
}

Catalog content() {
  Catalog catalog;
  catalog.tensors = {tensor("w", "momentum_buffer", {5, 3}), tensor("w", "param", {5, 3}),
                     tensor("norm", "param", {4})};
  formats::ValueEntry note;
  note.key = "note";
  note.value.kind = formats::Value::Kind::string;
  note.value.text = "kept \"as is\"";
  formats::ValueEntry step;
  step.key = "step";
  step.value.kind = formats::Value::Kind::integer;
  catalog.values = {note, step};
  return catalog;
}

float element(std::size_t tensor, std::size_t index) {
  return static_cast<float>(tensor * 1000 + index);
}

// Carries a plan out: literal bytes and the elements of each box.
std::shared_ptr<MemoryTree> write(const formats::EmitPlan& plan, const Catalog& catalog) {
  auto tree = std::make_shared<MemoryTree>("out");
  for (const formats::OutputFile& file : plan.files) {
    formats::ByteVector bytes(file.size);
    for (const formats::Fragment& fragment : file.fragments) {
      formats::ByteVector data;
      if (const auto* literal = std::get_if<formats::ByteVector>(&fragment.data)) data = *literal;
      if (const auto* reference = std::get_if<formats::TensorData>(&fragment.data)) {
        const formats::Shape& shape = catalog.tensors[reference->tensor].shape;
        std::vector<float> whole(formats::volume(shape));
        for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = element(reference->tensor, i);
        data.resize(formats::volume(reference->box.extent) * sizeof(float));
        formats::copy_region(reference->box,
                             {formats::whole(shape), std::as_bytes(std::span(whole))},
                             {reference->box, data}, sizeof(float));
      }
      CHECK(fragment.offset + data.size() <= bytes.size());
      std::copy(data.begin(), data.end(),
                bytes.begin() + static_cast<std::ptrdiff_t>(fragment.offset));
    }
    tree->add(file.name, std::move(bytes));
  }
  return tree;
}

formats::Result<formats::EmitPlan> emit(const Catalog& catalog, Policy policy,
                                        std::uint32_t ranks) {
  std::vector<formats::Shape> shapes;
  for (const TensorEntry& entry : catalog.tensors) shapes.push_back(entry.shape);
  Layout::Spec spec;
  spec.policy = policy;
  spec.mesh.shard_world = ranks;
  TRY_ASSIGN(const Layout layout, Layout::make(spec, shapes));
  return formats::emit_safetensors({catalog, layout});
}

void expect_same_content(const Catalog& catalog, std::shared_ptr<const MemoryTree> tree) {
  const auto checkpoint = formats::describe_safetensors(tree);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_TRUE(prove_coverage((*checkpoint)->catalog()));
  EXPECT_EQ((*checkpoint)->catalog().tensors.size(), catalog.tensors.size());
  for (const TensorEntry& entry : (*checkpoint)->catalog().tensors) {
    const auto original =
        std::find_if(catalog.tensors.begin(), catalog.tensors.end(), [&](const auto& candidate) {
          return candidate.name == entry.name && candidate.state == entry.state;
        });
    ASSERT_NE(original, catalog.tensors.end()) << entry.name << " " << entry.state;
    EXPECT_EQ(entry.shape, original->shape);
    std::vector<float> whole(formats::volume(entry.shape));
    for (const formats::Chunk& chunk : entry.chunks) {
      formats::ByteVector part(chunk.length);
      ASSERT_TRUE((*checkpoint)->read(entry, chunk, 0, part));
      formats::copy_region(chunk.box, {chunk.box, part},
                           {formats::whole(entry.shape), std::as_writable_bytes(std::span(whole))},
                           sizeof(float));
    }
    const auto number = static_cast<std::size_t>(original - catalog.tensors.begin());
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i], element(number, i));
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

TEST(SafetensorsEmit, KeepsStringsAndListsWhatItCannotHold) {
  const Catalog catalog = content();
  const auto plan = emit(catalog, Policy::replicated, 1);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->dropped, std::vector<std::string>{"value 'step'"});
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
  formats::ValueEntry format;
  format.key = "format";
  format.value = formats::Value::of_string("tf");
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

}  // namespace
