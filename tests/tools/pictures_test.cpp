// What pictures are made of: which layer a tensor is of, where it is stored too seldom or too
// often, and a page in which names stay data.
#include "tests/tools/pictures.h"

#include <gtest/gtest.h>

#include <array>

#include "tools/ckpt_inspect/gaps.h"
#include "tools/pictures/layers.h"
#include "tools/pictures/page.h"

namespace ebb::tools {
namespace {

using inspect::Gaps;
using inspect::gaps_of;
using pictures::Layer;
using pictures::layer_of;
using pictures::Layers;

struct Named {
  const char* name;
  const char* stack;
  std::uint64_t number;
};
constexpr std::array kNamed = {
    Named{"model.layers.3.self_attn.q_proj.weight", "model.layers", 3},
    Named{"layers.0.mlp.experts.7.w1", "layers", 0},
    Named{"transformer.h.11.attn.c_attn.weight", "transformer.h", 11},
    Named{"bert.encoder.layer.2.output.dense.bias", "bert.encoder.layer", 2},
    Named{"0.layers.5.weight", "0.layers", 5},
    Named{"blocks.12.fc1.weight", "blocks", 12},
    Named{"4.weight", "", 4},
    Named{"params/transformer/layer_9/kernel", "params/transformer/layer", 9},
    Named{"decoder/h3/attn/w", "decoder/h", 3},
};

TEST(PictureLayers, AreFoundInAnyNaming) {
  for (const Named& one : kNamed) {
    const auto layer = layer_of(one.name);
    ASSERT_TRUE(layer) << one.name;
    EXPECT_EQ(*layer, (Layer{one.stack, one.number, one.number})) << one.name;
  }
}

TEST(PictureLayers, ADigitInsideAWordIsNone) {
  for (const char* name : {"fc1.weight", "embed.weight", "w2", "decoder.layers.mlp.weight", "",
                           "layers.99999999999999999999.w"})
    EXPECT_FALSE(layer_of(name)) << name;
}

TensorEntry tensor_of(const std::string& name, Shape shape) {
  TensorEntry tensor;
  tensor.name = name;
  tensor.state = "param";
  tensor.shape = std::move(shape);
  return tensor;
}

std::string written(const Layers& layers) {
  JsonWriter json;
  layers.write(json);
  return json.take();
}

TEST(PictureLayers, OfAStackArePieces) {
  const TensorEntry weight = tensor_of("decoder.layers.mlp.weight", {4, 8, 8});
  const TensorEntry bias = tensor_of("decoder.layers.mlp.bias", {4, 8});
  const std::array<const TensorEntry*, 2> all = {&weight, &bias};
  Layers layers(all);
  EXPECT_EQ(layers.of(weight), -1);
  EXPECT_EQ(layers.of(weight, Box{{2, 0, 0}, {1, 8, 8}}), 0);
  EXPECT_EQ(layers.of(bias, Box{{2, 0}, {1, 8}}), 0);
  EXPECT_EQ(layers.of(bias, Box{{0, 0}, {2, 8}}), 1);
  EXPECT_EQ(written(layers), "[[\"decoder.layers\", 2, 2], [\"decoder.layers\", 0, 1]]\n");
}

TEST(PictureLayers, TensorsOfDifferentNumbersOfRowsAreNoStack) {
  const TensorEntry weight = tensor_of("net.blocks.conv.weight", {64, 3, 3});
  const TensorEntry other = tensor_of("net.blocks.out.weight", {10, 64});
  const TensorEntry bias = tensor_of("other.blocks.bias", {64});
  const std::array<const TensorEntry*, 3> all = {&weight, &other, &bias};
  const Layers layers(all);
  for (const TensorEntry* tensor : all) EXPECT_EQ(layers.stacked_in(*tensor), 0u) << tensor->name;
}

TensorEntry stored_as(Shape shape, const std::vector<Box>& boxes) {
  TensorEntry tensor = tensor_of("w", std::move(shape));
  for (const Box& box : boxes) tensor.chunks.push_back(Chunk{.box = box});
  return tensor;
}

TEST(Gaps, OfAWholeTensorAreNone) {
  const Gaps gaps =
      gaps_of(stored_as({4, 4}, {{{0, 0}, {2, 4}}, {{2, 0}, {2, 1}}, {{2, 1}, {2, 3}}}));
  EXPECT_TRUE(gaps.holes.empty());
  EXPECT_TRUE(gaps.twice.empty());
  EXPECT_TRUE(gaps_of(stored_as({}, {{{}, {}}})).holes.empty());
}

TEST(Gaps, AreAllFound) {
  const Gaps gaps =
      gaps_of(stored_as({6, 2}, {{{1, 0}, {2, 2}}, {{2, 0}, {1, 2}}, {{4, 0}, {1, 1}}}));
  const std::vector<Box> holes = {
      {{0, 0}, {1, 2}}, {{3, 0}, {1, 2}}, {{5, 0}, {1, 2}}, {{4, 1}, {1, 1}}};
  EXPECT_TRUE(std::ranges::is_permutation(gaps.holes, holes)) << gaps.holes.size();
  ASSERT_EQ(gaps.twice.size(), 1u);
  EXPECT_EQ(gaps.twice[0].chunk, 1u);
  EXPECT_EQ(gaps.twice[0].before, 0u);
  EXPECT_EQ(gaps.twice[0].box, (Box{{2, 0}, {1, 2}}));
  EXPECT_EQ(gaps_of(stored_as({}, {})).holes.size(), 1u);
}

TEST(Gaps, StopWhereThereAreTooMany) {
  std::vector<Box> boxes;
  for (std::uint64_t i = 0; i < 5000; ++i) boxes.push_back({{2 * i}, {1}});
  EXPECT_EQ(gaps_of(stored_as({10000}, boxes)).found, inspect::Found::some);
}

TEST(PicturePage, KeepsNamesAsData) {
  const std::string name = "</script><img src=x onerror=alert(1)><!--<script>";
  const std::string page = html_of(pictures::Kind::norms, {.subject = name,
                                                           .headline = name,
                                                           .facts = {name},
                                                           .warnings = {name},
                                                           .data = json_string(name)});
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(page.find("<!--"), std::string::npos);
  EXPECT_EQ(count_of(page, "</script>"), 2u);
  EXPECT_NE(page.find("\\u003c/script>\\u003cimg"), std::string::npos);
}

// The policy allows the one script that is there, by its digest: computed here by openssl's way.
TEST(PicturePage, AllowsNoOtherScript) {
  const std::string page = html_of(pictures::Kind::shard_map, {.data = "{}"});
  const std::string begin = "<script>";
  const std::size_t from = page.rfind(begin) + begin.size();
  const test_support::ScratchDirectory scratch;
  const test_support::Outcome digest = test_support::run_program(
      "/bin/sh", {"-c", "printf %s \"$1\" | openssl dgst -sha256 -binary | base64", "sh",
                  page.substr(from, page.rfind("</script>") - from)});
  ASSERT_EQ(digest.exit, 0) << digest.err;
  EXPECT_NE(page.find("'sha256-" + digest.out.substr(0, digest.out.size() - 1) + "'"),
            std::string::npos)
      << digest.out;
}

}  // namespace
}  // namespace ebb::tools
