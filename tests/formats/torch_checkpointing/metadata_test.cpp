// metadata.pkl: both versions, and what is none.
#include "ebb/formats/torch_checkpointing/metadata.h"

#include <gtest/gtest.h>

#include <functional>

#include "ebb/formats/pickle/pickle_writer.h"

namespace ebb {
namespace {

using formats::MemorySource;
using formats::PathItem;
using formats::PickleWriter;
using formats::torch_checkpointing::Metadata;
using formats::torch_checkpointing::path_text;
using formats::torch_checkpointing::read_metadata;
using formats::torch_checkpointing::SaidParts;

Result<Metadata> read(const std::function<void(PickleWriter&)>& fill) {
  PickleWriter pickle;
  pickle.dict([&] { fill(pickle); });
  return read_metadata(MemorySource("metadata.pkl", pickle.finish()));
}

void numbers(PickleWriter& pickle, std::string_view key, std::vector<std::uint64_t> values) {
  pickle.string(key);
  pickle.int_tuple(values);
}

// [5, 3] of float32 over a mesh of so many axes, the first of which cuts rows.
struct Written {
  std::vector<std::uint64_t> mesh = {2};
  std::vector<std::uint64_t> ranks = {0, 1};
  std::string_view placement = "Shard";
  std::uint64_t dim = 0;
  std::uint64_t world = 2;
  std::string_view version = "2.0";
};

void parts(PickleWriter& pickle, const Written& what) {
  pickle.list([&] {
    pickle.dict([&] {
      pickle.dict("sharding_metadata", [&] {
        pickle.entry("type", "DTensorShardingMetadata");
        pickle.dict("data", [&] {
          numbers(pickle, "global_shape", {5, 3});
          pickle.entry("dtype", "torch.float32");
          pickle.dict("mesh_spec", [&] {
            numbers(pickle, "mesh_shape", what.mesh);
            numbers(pickle, "mesh_data", what.ranks);
          });
          pickle.list("placements", [&] {
            pickle.dict([&] {
              pickle.entry("type", what.placement);
              pickle.entry("dim", what.dim);
            });
          });
        });
      });
      numbers(pickle, "ranks", what.ranks);
    });
  });
}

void write(PickleWriter& pickle, const Written& what, std::string_view path = "[\"w\"]") {
  pickle.dict("metadata", [&] {
    pickle.dict("model", [&] {
      pickle.dict("nested_path_to_metadata", [&] {
        pickle.string(path);
        parts(pickle, what);
      });
      pickle.dict("rank_to_layout_info", [&] {
        for (std::uint64_t rank = 0; rank < what.world; ++rank) {
          pickle.integer(static_cast<std::int64_t>(rank));
          pickle.none();
        }
      });
    });
  });
  pickle.entry("world_size", what.world);
  pickle.entry("version", what.version);
}

TEST(TorchCheckpointingMetadata, SaysWhatEachRankHas) {
  const auto metadata = read([](PickleWriter& pickle) { write(pickle, {}); });
  ASSERT_TRUE(metadata.has_value()) << metadata.error().message;
  const SaidParts& parts = metadata->items.at("model").tensors.at("[\"w\"]").at(0);
  EXPECT_TRUE(parts.is_cut());
  EXPECT_TRUE(parts.holds(1));
  EXPECT_FALSE(parts.holds(2));
  EXPECT_EQ(parts.part_of(1)->boxes.at(0).box.offset, (Shape{3, 0}));
  EXPECT_EQ(parts.part_of(1)->shape, (Shape{2, 3}));
}

TEST(TorchCheckpointingMetadata, OfVersion1IsReadAsThePackageDoes) {
  const auto metadata = read([](PickleWriter& pickle) {
    pickle.dict("metadata", [&] {
      for (const char* path : {"[\"model\",\"a.b\",0]", "[\"count\"]"}) {
        pickle.string(path);
        parts(pickle, {});
      }
    });
    pickle.dict("rank_to_layout_info_mappings", [&] {
      pickle.integer(1);
      pickle.dict([&] {
        pickle.dict("model", [&] {
          pickle.entry("file_path", "rank_1/model.pt");
          pickle.dict("serialization_format", [&] { pickle.entry("type", "TorchSerialization"); });
        });
        pickle.entry("rng", nullptr);
      });
    });
    pickle.entry("world_size", 2);
  });
  ASSERT_TRUE(metadata.has_value()) << metadata.error().message;
  EXPECT_TRUE(metadata->items.at("model").tensors.contains("[\"a.b\",0]"));
  EXPECT_TRUE(metadata->items.at("count").tensors.contains("[]"));
  EXPECT_EQ(metadata->items.at("model").files.at(1), "rank_1/model.pt");
}

TEST(TorchCheckpointingMetadata, ThatContradictsItselfIsRefused) {
  struct Case {
    Written what;
    std::string_view says;
  };
  const Case cases[] = {
      {{.mesh = {3}}, "a mesh without its ranks"},
      {{.ranks = {0, 7}}, "a mesh with a rank that is none of the 2"},
      {{.ranks = {1, 1}}, "a mesh with a rank that is none of the 2, or comes twice"},
      {{.mesh = {1, 2}}, "1 placements on a mesh of shape [1, 2]"},
      {{.placement = "Partial"}, "a placement that is not known"},
      {{.dim = 2}, "a placement that is not known"},
      {{.world = 0}, "a world_size of 1 to 131072"},
      {{.version = "3.0"}, "of version \"3.0\"; 1.0 and 2.0 are read"},
  };
  for (const auto& [what, words] : cases) {
    const auto metadata = read([&](PickleWriter& pickle) { write(pickle, what); });
    ASSERT_FALSE(metadata.has_value()) << words;
    EXPECT_NE(metadata.error().message.find(words), std::string::npos) << metadata.error().message;
  }
  EXPECT_FALSE(read([](PickleWriter& pickle) { write(pickle, {}, "w"); }).has_value());
}

TEST(TorchCheckpointingMetadata, SpellsPathsAsPythonDoes) {
  const std::vector<PathItem> path = {std::string("a\"\\\n\x7f\xc3\xa9\xf0\x9f\x98\x80"),
                                      std::int64_t{-3}};
  EXPECT_EQ(path_text(path), "[\"a\\\"\\\\\\n\\u007f\\u00e9\\ud83d\\ude00\",-3]");
}

}  // namespace
}  // namespace ebb
