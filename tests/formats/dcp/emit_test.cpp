// What emit() plans, carried out in memory, is what describe() finds again, under every partition.
#include <gtest/gtest.h>

#include <filesystem>

#include "ebb/formats/core/units.h"
#include "ebb/formats/dcp/dcp.h"
#include "tests/formats/dcp/dcp_fixtures.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/expected.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using formats::describe_dcp;
using test_support::Compare;

std::unique_ptr<Checkpoint> fixture(std::string_view name) {
  auto checkpoint = describe_dcp(test_support::load_tree(kFixtures / name / "data"));
  EBB_CHECK(checkpoint.has_value());
  return std::move(*checkpoint);
}

Layout layout_of(const Catalog& catalog, Policy policy, formats::Mesh mesh) {
  Layout::Spec spec;
  spec.policy = policy;
  spec.mesh = mesh;
  spec.align_elems = 2;
  std::vector<Shape> shapes;
  for (const TensorEntry& tensor : catalog.tensors) {
    shapes.push_back(tensor.shape);
    if (policy == Policy::layer_wise)
      spec.owners.push_back(static_cast<std::uint32_t>(shapes.size() % mesh.shard_world));
  }
  auto layout = Layout::make(spec, shapes);
  EBB_CHECK(layout.has_value());
  return std::move(*layout);
}

struct Emitted {
  EmitPlan plan;
  std::unique_ptr<Checkpoint> checkpoint;
};

Emitted emit(const Checkpoint& content, Policy policy, formats::Mesh mesh,
             std::optional<formats::Compression> compression = std::nullopt) {
  const Layout layout = layout_of(content.catalog(), policy, mesh);
  auto plan = formats::emit_dcp(
      {.content = content.catalog(), .layout = layout, .compression = compression});
  EBB_CHECK(plan.has_value());
  auto tree = test_support::carry_out(*plan, content, "out");
  EBB_CHECK(tree.has_value());
  auto again = describe_dcp(*tree);
  EXPECT_TRUE(again.has_value()) << again.error().message;
  return {std::move(*plan), again ? std::move(*again) : nullptr};
}

struct Cut {
  Policy policy;
  formats::Mesh mesh;
  std::optional<formats::Compression> compression = std::nullopt;
};

class DcpEmit : public testing::TestWithParam<Cut> {};

TEST_P(DcpEmit, WritesWhatItReadsBack) {
  for (const std::string_view name : {"zoo_w1", "fsdp2_w2_odd_rows_tied", "tp_fsdp_2x2_strided"}) {
    const auto content = fixture(name);
    const Emitted emitted =
        emit(*content, GetParam().policy, GetParam().mesh, GetParam().compression);
    ASSERT_NE(emitted.checkpoint, nullptr);
    EXPECT_TRUE(emitted.plan.dropped.empty());
    EXPECT_EQ(emitted.checkpoint->catalog().world, GetParam().mesh.world());
    EXPECT_EQ(test_support::differences(*emitted.checkpoint, kFixtures / name / "expected.json",
                                        Compare::tensors_and_values),
              "");
    ASSERT_EQ(emitted.checkpoint->catalog().tensors.size(), content->catalog().tensors.size());
    for (std::size_t i = 0; i < content->catalog().tensors.size(); ++i)
      EXPECT_EQ(emitted.checkpoint->catalog().tensors[i].path, content->catalog().tensors[i].path);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, DcpEmit,
                         testing::Values(Cut{Policy::replicated, {3, 1}}, Cut{Policy::rows, {3, 1}},
                                         Cut{Policy::rows, {2, 2}}, Cut{Policy::zero3, {4, 1}},
                                         Cut{Policy::zero12, {3, 1}},
                                         Cut{Policy::zero12_boundary, {2, 1}},
                                         Cut{Policy::layer_wise, {3, 1}},
                                         Cut{Policy::rows, {3, 1}, formats::Compression{}},
                                         Cut{Policy::zero12, {2, 1}, formats::Compression{}}));

TEST(DcpEmitFiles, StoreReplicatedPiecesOnce) {
  const auto content = fixture("fsdp2_w1");
  const Emitted whole = emit(*content, Policy::replicated, {4, 1});
  ASSERT_NE(whole.checkpoint, nullptr);
  for (const TensorEntry& tensor : whole.checkpoint->catalog().tensors)
    EXPECT_EQ(tensor.chunks.size(), 1u) << tensor.name;
  std::uint64_t least = whole.plan.files[0].size;
  for (const OutputFile& file : whole.plan.files) least = std::min(least, file.size);
  EXPECT_GT(least, 0u) << "the ranks share the writing";
}

TEST(DcpEmitFiles, HoldLargePartsInSeveralItemsWhereTheyAreCompressed) {
  const auto content = fixture("fsdp2_w1");
  Catalog large = content->catalog();
  large.values.clear();
  large.containers.clear();
  large.tensors.resize(1);
  large.tensors[0].dtype = DType::f32;
  large.tensors[0].shape = {3, 5, 1000000};
  const Layout layout = layout_of(large, Policy::rows, {2, 1});
  for (const bool compressed : {false, true}) {
    formats::EmitRequest request{.content = large, .layout = layout};
    if (compressed) request.compression = formats::Compression{};
    const auto plan = formats::emit_dcp(request);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->packing.has_value(), compressed);
    std::uint64_t elems = 0;
    for (const OutputFile& file : plan->files) {
      std::uint64_t end = 0;
      for (const auto& [item, pack] : file.items) {
        EXPECT_EQ(item.offset, end) << "there are no gaps to compress";
        end += item.size;
        EXPECT_LE(item.size, 9 * formats::MiB);
      }
      EXPECT_EQ(end, compressed ? file.size : 0);
      EXPECT_EQ(file.items.empty(), !compressed);
      for (const Fragment& fragment : file.fragments)
        if (const auto* data = std::get_if<TensorData>(&fragment.data))
          elems += formats::volume(data->box.extent);
    }
    EXPECT_EQ(elems, 15000000u);
  }
}

TEST(DcpEmitFiles, HoldALayerWiseMatrixWholeAtItsOwnerOnly) {
  const auto content = fixture("fsdp2_w2_odd_rows_tied");
  const Layout layout = layout_of(content->catalog(), Policy::layer_wise, {3, 1});
  const Emitted emitted = emit(*content, Policy::layer_wise, {3, 1});
  ASSERT_NE(emitted.checkpoint, nullptr);
  const Catalog& catalog = emitted.checkpoint->catalog();
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorEntry& tensor = catalog.tensors[i];
    ASSERT_EQ(tensor.chunks.size(), 1u) << tensor.name;
    EXPECT_EQ(tensor.chunks[0].box, formats::whole(tensor.shape));
    EXPECT_EQ(index_of(tensor.chunks[0].holder), layout.spec().owners[i]);
    EXPECT_TRUE(prove_coverage(tensor, catalog).has_value());
  }
}

TEST(DcpEmitFiles, PlaceLargeItemsOnPagesAndAllItemsOnLines) {
  const auto content = fixture("zstd_w2");
  Catalog catalog = content->catalog();
  catalog.tensors = {{"big", {}, "big", "tensor", DType::f32, {64, 32}, {}},
                     {"small", {}, "small", "tensor", DType::bf16, {3}, {}}};
  const Layout layout = layout_of(catalog, Policy::replicated, {1, 1});
  const auto plan = formats::emit_dcp({catalog, layout});
  ASSERT_TRUE(plan.has_value());
  std::vector<std::uint64_t> data;
  for (const Fragment& fragment : plan->files[0].fragments)
    if (std::holds_alternative<TensorData>(fragment.data)) data.push_back(fragment.offset);
  ASSERT_EQ(data.size(), 2u);
  EXPECT_EQ(data[0] % 4096, 0u);
  EXPECT_EQ(data[1] % 64, 0u);
}

TEST(DcpEmitNames, AreTheOnesTorchStateDictsUse) {
  Catalog catalog;
  catalog.tensors = {{std::nullopt, {}, "a.w", "param", DType::bf16, {2}, {}},
                     {std::nullopt, {}, "a.w", "master", DType::f32, {2}, {}},
                     {std::nullopt, {}, "b.w", "master", DType::f32, {2}, {}},
                     {std::nullopt, {}, "b.w", "momentum_buffer", DType::f32, {2}, {}}};
  catalog.step = 7;
  catalog.groups = {{"muon", {{"lr", Value::of_real(0.02)}}, {"a.w", "b.w"}}};
  const Layout layout = layout_of(catalog, Policy::rows, {2, 1});
  const auto plan = formats::emit_dcp({catalog, layout});
  ASSERT_TRUE(plan.has_value());
  class Zeros : public Checkpoint {
   public:
    explicit Zeros(const Catalog& catalog) : catalog_(catalog) {
      for (TensorEntry& tensor : catalog_.tensors)
        tensor.chunks = {{formats::whole(tensor.shape), 0, 0, 0, {}, 0}};
    }
    const Catalog& catalog() const override { return catalog_; }
    Result<> read_chunk(const TensorEntry&, const Chunk&, std::uint64_t,
                        std::span<std::byte>) const override {
      return {};
    }

   private:
    Catalog catalog_;
  };
  const auto tree = test_support::carry_out(*plan, Zeros(catalog), "out");
  ASSERT_TRUE(tree.has_value());
  const auto again = describe_dcp(*tree);
  ASSERT_TRUE(again.has_value()) << again.error().message;
  const Catalog& found = (*again)->catalog();
  std::vector<std::string> keys;
  for (const TensorEntry& tensor : found.tensors) keys.push_back(*tensor.key);
  EXPECT_EQ(keys, (std::vector<std::string>{"model.a.w", "optimizer.state.a.w.master", "model.b.w",
                                            "optimizer.state.b.w.momentum_buffer"}));
  EXPECT_EQ(found.tensors[3].name, "b.w");
  EXPECT_EQ(found.tensors[3].state, "momentum_buffer");
  EXPECT_EQ(found.step, 7);
  ASSERT_EQ(found.groups.size(), 1u);
  EXPECT_EQ(found.groups[0].optimizer, "muon");
  EXPECT_EQ(found.groups[0].params, (std::vector<std::string>{"a.w", "b.w"}));
}

TEST(DcpEmitNames, MayNotRepeat) {
  Catalog catalog;
  catalog.tensors = {{"k", {}, "k", "tensor", DType::f32, {2}, {}},
                     {"k", {}, "k", "tensor", DType::f32, {2}, {}}};
  const Layout layout = layout_of(catalog, Policy::rows, {1, 1});
  const auto plan = formats::emit_dcp({catalog, layout});
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().message, "two entries would be stored under the key \"k\"");
}

TEST(DcpEmitValues, ListsWhatItCannotHold) {
  Catalog catalog;
  Value object;
  object.kind = Value::Kind::object;
  object.text = "numpy.random.RandomState";
  catalog.values = {{"rng", {}, object}};
  const Layout layout = layout_of(catalog, Policy::rows, {1, 1});
  const auto plan = formats::emit_dcp({catalog, layout});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->dropped,
            (std::vector<std::string>{
                "value \"rng\": holds an object of class numpy.random.RandomState"}));
}

}  // namespace

}  // namespace ebb
