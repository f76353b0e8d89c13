// The rules by which parts of ranks belong together, as plain facts about names and numbers.
#include <gtest/gtest.h>

#include "ebb/formats/megatron/rank_buffers.h"
#include "ebb/formats/megatron/rank_names.h"

namespace ebb::formats::megatron {
namespace {

TEST(MegatronRankNames, TellHowRanksCutATensor) {
  struct Case {
    const char* key;
    Cut cut;
  };
  const Case cases[] = {
      {"embedding.word_embeddings.weight", Cut::rows},
      {"embedding.position_embeddings.weight", Cut::none},
      {"decoder.layers.0.self_attention.linear_qkv.weight", Cut::rows},
      {"decoder.layers.0.self_attention.linear_qkv.bias", Cut::rows},
      {"decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", Cut::none},
      {"decoder.layers.0.self_attention.linear_proj.weight", Cut::columns},
      {"decoder.layers.0.self_attention.linear_proj.bias", Cut::none},
      {"decoder.layers.0.self_attention.q_layernorm.weight", Cut::none},
      {"decoder.layers.0.self_attention.linear_kv_down_proj.weight", Cut::none},
      {"decoder.layers.0.self_attention.core_attention.softmax_offset", Cut::rows},
      {"decoder.layers.0.mlp.linear_fc1.weight", Cut::rows},
      {"decoder.layers.0.mlp.linear_fc2.weight", Cut::columns},
      {"decoder.final_layernorm.weight", Cut::none},
      {"output_layer.weight", Cut::rows},
      {"language_model.encoder.layers.3.self_attention.dense.weight", Cut::columns},
      {"lm_head.dense.weight", Cut::unknown},
      {"adapter.weight", Cut::unknown},
      {"decoder.layers.0.self_attention.linear_qkv.lora_a", Cut::unknown}};
  for (const auto& [key, cut] : cases) EXPECT_EQ(cut_of(key), cut) << key;
}

TEST(MegatronRankNames, SayInWhichLayerATensorIs) {
  const auto key = layer_key("decoder.layers.12.mlp.linear_fc1.weight");
  ASSERT_TRUE(key.has_value());
  EXPECT_EQ(key->list, "decoder.layers.");
  EXPECT_EQ(key->number, 12u);
  EXPECT_EQ(key->rest, "mlp.linear_fc1.weight");
  EXPECT_EQ(layer_key("mtp.layers.0.layers.1.x")->list, "mtp.layers.");
  for (const char* other : {"layers", "layers.", "decoder.layers.x.y", "sublayers.1.x", "layers.1"})
    EXPECT_FALSE(layer_key(other).has_value()) << other;
  EXPECT_EQ(second_weight_of("a.mlp.linear_fc1.bias"), "a.mlp.linear_fc2.weight");
  EXPECT_EQ(second_weight_of("a.mlp.linear_fc2.weight"), "");
  EXPECT_EQ(fused_norm_name("input_layernorm.bias"), "self_attention.linear_qkv.layer_norm_bias");
  EXPECT_EQ(fused_norm_name("pre_mlp_layernorm.weight"), "mlp.linear_fc1.layer_norm_weight");
  EXPECT_EQ(fused_norm_name("mlp.linear_fc1.weight"), "mlp.linear_fc1.weight");
}

using Firsts = std::vector<std::uint64_t>;

// The last parameter lies first; each begins at a multiple of 64, in its bucket.
TEST(MegatronRankBuffers, HaveTheModelInReverse) {
  const BufferedParam params[] = {{100}, {10}, {64}};
  const BufferLayout all = buffer_layout(params, {});
  EXPECT_EQ(all.first, (Firsts{128, 64, 0}));
  EXPECT_EQ(all.elems, 228u);
  // A bucket of 70: 64, 10 | 100. The second begins where the first ends, without its padding.
  const BufferLayout cut = buffer_layout(params, {.bucket = 70});
  EXPECT_EQ(cut.first, (Firsts{74, 64, 0}));
  EXPECT_EQ(cut.elems, 174u);
  const BufferLayout dense = buffer_layout(params, {.alignment = 1});
  EXPECT_EQ(dense.first, (Firsts{74, 64, 0}));
}

// A tied embedding has a bucket to itself; the one before it ends aligned.
TEST(MegatronRankBuffers, ATiedEmbeddingIsAlone) {
  const BufferedParam params[] = {{100, true}, {10}, {30}};
  const BufferLayout first = buffer_layout(params, {});
  EXPECT_EQ(first.first, (Firsts{128, 64, 0}));
  EXPECT_EQ(first.elems, 228u);
  const BufferedParam last[] = {{30}, {100, true}};
  EXPECT_EQ(buffer_layout(last, {}).first, (Firsts{100, 0}));
  EXPECT_EQ(buffer_layout({}, {}).elems, 0u);
}

}  // namespace
}  // namespace ebb::formats::megatron
