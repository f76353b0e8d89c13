// How parts of tensor-parallel ranks are joined: the patterns of names, and what they say of parts.
#include "ebb/formats/deepspeed/tensor_parts.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "ebb/formats/deepspeed/name_pattern.h"

namespace ebb {

namespace {

using formats::Shape;
using formats::deepspeed::NamePattern;
using formats::deepspeed::TensorParts;

bool matches(const std::string& pattern, const std::string& name) {
  const auto opened = NamePattern::open(pattern);
  EXPECT_TRUE(opened.has_value()) << pattern;
  return opened && opened->matches(name);
}

// As Python's re.match.
TEST(NamePattern, MatchesFromTheStart) {
  EXPECT_TRUE(matches("^model\\.norm\\.weight$", "model.norm.weight"));
  EXPECT_FALSE(matches("^model\\.norm\\.weight$", "model.norm.weights"));
  EXPECT_FALSE(matches("^model\\.norm\\.weight$", "modelXnorm.weight"));
  EXPECT_TRUE(matches("tied_modules", "tied_modules.embed.weight"));
  EXPECT_FALSE(matches("embed", "tied_modules.embed.weight"));
  EXPECT_TRUE(matches("\\d+.input_layernorm.(weight|bias)", "13.input_layernorm.bias"));
  EXPECT_FALSE(matches("\\d+.input_layernorm.(weight|bias)", ".input_layernorm.bias"));
  EXPECT_TRUE(matches(".*\\.experts\\.w[123]$", "a.experts.w2"));
  EXPECT_FALSE(matches(".*\\.experts\\.w[^123]$", "a.experts.w2"));
  EXPECT_TRUE(matches("(?:a|bc){2}d?", "abc"));
  EXPECT_FALSE(matches("(?:a|bc){2}$", "a"));
  EXPECT_TRUE(matches("(?P<layer>[0-9a-f]+?)\\.x", "1f.x"));
}

TEST(NamePattern, RefusesWhatItDoesNotKnow) {
  for (const char* pattern :
       {"(", ")", "[", "[a", "a{2", "*a", "(?=a)", "(?<!a)b", "\\1", "a\\", "(a", "a{300}",
        "\\bword", "((((((((((((((((((((((((((((((((((((a))))))))))))))))))))))))))))))))))))",
        "((((a{99}){99}){99}){99})"})
    EXPECT_FALSE(NamePattern::open(pattern).has_value()) << pattern;
}

// Backtracking would take for ever.
TEST(NamePattern, TakesTimeInLineWithTheName) {
  EXPECT_FALSE(matches("(a*)*(a*)*(a*)*b", std::string(4096, 'a')));
  EXPECT_TRUE(matches("((a|aa)+)+$", std::string(4096, 'a')));
  EXPECT_TRUE(matches("()*()*a", "a"));
}

Value list_of(std::vector<std::int64_t> numbers) {
  Value list = Value::of_list({});
  for (const std::int64_t number : numbers) list.items.push_back(Value::of_int(number));
  return list;
}

Value names(std::vector<std::string> patterns) {
  Value list = Value::of_list({});
  for (std::string& pattern : patterns) list.items.push_back(Value::of_string(std::move(pattern)));
  return list;
}

// The whole as the joined chunks make it, where each part holds numbers of its own.
std::string joined(const Value& info, const std::string& name, const std::vector<Shape>& shapes) {
  const auto parts = TensorParts::open(&info, static_cast<std::uint32_t>(shapes.size()));
  if (!parts) return parts.error().message;
  const auto whole = parts->whole_of(name, shapes);
  if (!whole) return whole.error().message;
  TensorEntry entry{{}, {}, name, "master", formats::DType::f32, whole->shape, {}};
  std::vector<float> elements(formats::volume(whole->shape), -1);
  for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
    TensorEntry part = entry;
    part.chunks.clear();
    part.shape = shapes[rank];
    const std::uint64_t elems = formats::volume(shapes[rank]);
    std::uint64_t at = 0;  // cut as data-parallel ranks cut it: in two
    for (const formats::FlatRange range :
         {formats::FlatRange{0, elems / 3}, formats::FlatRange{elems / 3, elems - elems / 3}})
      for (formats::Box& box : formats::boxes_of(part.shape, range)) {
        const std::uint64_t count = formats::volume(box.extent);
        part.chunks.push_back({std::move(box), 0, (rank * 100 + at) * 4, count * 4, {}, 0});
        at += count;
      }
    EXPECT_TRUE(place_chunks(part, whole->of_ranks[rank], entry).has_value());
  }
  Catalog catalog;
  catalog.files.push_back({"f", 1 << 20, {}});
  const auto covered = prove_coverage(entry, catalog);
  EXPECT_TRUE(covered.has_value()) << covered.error().message;
  for (const Chunk& chunk : entry.chunks) {
    std::uint64_t element = chunk.offset / 4;
    formats::for_each_run(entry.shape, chunk.box, [&](formats::FlatRange run) {
      std::iota(elements.begin() + static_cast<std::ptrdiff_t>(run.first),
                elements.begin() + static_cast<std::ptrdiff_t>(run.first + run.count),
                static_cast<float>(element));
      element += run.count;
    });
  }
  std::string out = formats::to_string(whole->shape);
  for (const float element : elements) out += " " + std::to_string(static_cast<int>(element));
  return out;
}

TEST(TensorParts, WithoutARecordNothingIsJoined) {
  const auto parts = TensorParts::open(nullptr, 2);
  ASSERT_FALSE(parts.has_value());
  EXPECT_EQ(parts.error().code, Code::unsupported);
}

TEST(TensorParts, ColumnsRowsCopiesAndVocabulary) {
  Value info = Value::of_dict();
  info.add("parameter_with_row_parallelism_patterns", names({"row"}));
  info.add("tp_replicated_parameter_patterns", names({"norm", "odd"}));
  info.add("vocabulary_parameter_patterns", names({"vocab"}));
  info.add("original_vocab_size", Value::of_int(3));
  EXPECT_EQ(joined(info, "column", {{1, 2}, {2, 2}}), "[3, 2] 0 1 100 101 102 103");
  EXPECT_EQ(joined(info, "row", {{2, 2}, {2, 1}}), "[2, 3] 0 1 100 2 3 101");
  EXPECT_EQ(joined(info, "norm", {{3}, {3}}), "[3] 0 1 2");
  EXPECT_EQ(joined(info, "vocab", {{2, 1}, {2, 1}}), "[3, 1] 0 1 100");
  EXPECT_NE(joined(info, "odd", {{3}, {2}}).find("they should be copies"), std::string::npos);
  EXPECT_NE(joined(info, "column", {{1, 2}, {1, 3}}).find("more than one dimension"),
            std::string::npos);
  EXPECT_NE(joined(info, "row", {{2}, {2}}).find("too few dimensions"), std::string::npos);
  EXPECT_NE(joined(info, "scalar", {{}, {}}).find("too few dimensions"), std::string::npos);
}

TEST(TensorParts, SubParametersLieOneBehindTheOther) {
  Value info = Value::of_dict();
  info.add("universal_checkpoint_version", Value::of_real(0.4));
  Value sub = Value::of_dict();
  sub.add("patterns", names({"qkv"}));
  sub.add("shape", list_of({2, -1}));
  sub.add("partition_dim", Value::of_int(0));
  info.add("parameter_with_sub_params", Value::of_list({sub}));
  Value widths = Value::of_dict();
  widths.add("qkv", Value::of_list({list_of({2, 1}), list_of({1, 1})}));
  info.add("sub_param_shard_widths", widths);
  EXPECT_EQ(joined(info, "qkv", {{3, 1}, {2, 1}}), "[5, 1] 0 1 100 2 101");
  EXPECT_NE(joined(info, "qkv", {{2, 1}, {2, 1}}).find("what is recorded of them is wider"),
            std::string::npos);
  EXPECT_NE(joined(info, "qkv", {{4, 1}, {2, 1}}).find("what is recorded of them is narrower"),
            std::string::npos);
  EXPECT_NE(joined(info, "qkv", {{3}, {2}}).find("another view"), std::string::npos);
}

TEST(TensorParts, HalvesOfEachRankAreHalvesOfTheWhole) {
  Value info = Value::of_dict();
  info.add("parameter_with_2_sub_params_cat_dim_0", names({"up"}));
  EXPECT_EQ(joined(info, "up", {{4}, {4}}), "[8] 0 1 100 101 2 3 102 103");
}

Value piece(Shape extent, std::int64_t source, std::vector<std::int64_t> source_strides,
            std::vector<std::int64_t> dest_strides, std::vector<std::int64_t> holders) {
  Value dict = Value::of_dict();
  std::vector<std::int64_t> shape(extent.begin(), extent.end());
  dict.add("shape", list_of(shape));
  dict.add("source", Value::of_list({Value::of_int(source), list_of(std::move(source_strides))}));
  dict.add("dest", Value::of_list({Value::of_int(0), list_of(std::move(dest_strides))}));
  dict.add("locations", list_of(std::move(holders)));
  return dict;
}

Value map_of(const Value& first, const Value& second) {
  Value ranks = Value::of_dict();
  std::int64_t rank = 0;
  for (const Value* one : {&first, &second}) {
    Value mine = Value::of_dict();
    mine.add("shard_shape", *one->find("shape"));
    mine.add("pieces", Value::of_list({*one}));
    ranks.entries.emplace_back(Value::of_int(rank++), std::move(mine));
  }
  Value map = Value::of_dict();
  map.add("logical_shape", list_of({2, 3}));
  map.add("ranks", std::move(ranks));
  Value params = Value::of_dict();
  params.add("^w$", std::move(map));
  Value affine = Value::of_dict();
  affine.add("version", Value::of_int(1));
  affine.add("params", std::move(params));
  Value info = Value::of_dict();
  info.add("affine_map", std::move(affine));
  return info;
}

TEST(TensorParts, AnAffineMapSaysWhereEachPieceLies) {
  const Value left = piece({2, 2}, 0, {3, 1}, {2, 1}, {0});
  const Value right = piece({2, 1}, 2, {3, 1}, {1, 1}, {1});
  EXPECT_EQ(joined(map_of(left, right), "w", {{2, 2}, {2, 1}}), "[2, 3] 0 1 100 2 3 101");
  const Value copy = piece({2, 3}, 0, {3, 1}, {3, 1}, {0, 1});
  EXPECT_EQ(joined(map_of(copy, copy), "w", {{2, 3}, {2, 3}}), "[2, 3] 0 1 2 3 4 5");
  Value scaled = copy;
  scaled.add("scale", Value::of_real(0.5));
  EXPECT_NE(joined(map_of(scaled, scaled), "w", {{2, 3}, {2, 3}}).find("scaled"),
            std::string::npos);
  const Value strided = piece({2, 2}, 0, {1, 3}, {2, 1}, {0});
  EXPECT_NE(joined(map_of(strided, right), "w", {{2, 2}, {2, 1}}).find("no boxes"),
            std::string::npos);
  const Value outside = piece({2, 2}, 4, {3, 1}, {2, 1}, {0});
  EXPECT_NE(joined(map_of(outside, right), "w", {{2, 2}, {2, 1}}).find("no boxes"),
            std::string::npos);
  EXPECT_NE(joined(map_of(left, right), "w", {{2, 2}, {2, 2}}).find("other shapes"),
            std::string::npos);
}

TEST(TensorParts, WhatAutoTpCannotJoinIsSaidInItsWords) {
  Value info = Value::of_dict();
  Value why = Value::of_dict();
  why.add("^w$", Value::of_string("fused in a way"));
  info.add("autotp_unsupported_parameter_patterns", why);
  EXPECT_NE(joined(info, "w", {{2}, {2}}).find("fused in a way"), std::string::npos);
}

}  // namespace

}  // namespace ebb
