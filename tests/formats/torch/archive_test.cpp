// torch.save archives that torch wrote, element by element, and damaged ones with their reasons.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <filesystem>

#include "ebb/formats/core/sha256.h"
#include "ebb/formats/pickle/pickle_writer.h"
#include "ebb/formats/torch/archive.h"
#include "ebb/formats/torch/file_writer.h"
#include "tests/formats/torch/torch_fixtures.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using formats::PickleGraph;
using formats::PickleId;
using formats::PickleKind;
using formats::TorchArchive;

Result<TorchArchive> open_bytes(ByteVector bytes) {
  const std::uint64_t size = bytes.size();
  return TorchArchive::open(std::make_shared<formats::MemorySource>("m.pt", std::move(bytes)), 0,
                            size);
}

Result<TorchArchive> open_fixture(std::string_view name) {
  const auto tree = test_support::load_tree(kFixtures / name / "data");
  const std::string file = tree->entries().front().name;
  return open_bytes(tree->bytes_of(file));
}

PickleId step_into(const PickleGraph& graph, PickleId id, simdjson::dom::element item) {
  std::int64_t number = 0;
  std::string_view text;
  const bool is_number = item.get(number) == simdjson::SUCCESS;
  if (!is_number) EBB_CHECK(item.get(text) == simdjson::SUCCESS);
  const std::span<const PickleId> items = graph.items(id);
  if (!graph.is(id, PickleKind::dict))
    return is_number && std::size_t(number) < items.size() ? items[std::size_t(number)]
                                                           : formats::kNoPickle;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (is_number && graph.is(items[i], PickleKind::integer) && graph.integer(items[i]) == number)
      return items[i + 1];
    if (!is_number && graph.is(items[i], PickleKind::string) && graph.text(items[i]) == text)
      return items[i + 1];
  }
  return formats::kNoPickle;
}

class TorchFixture : public testing::TestWithParam<std::string_view> {};

TEST_P(TorchFixture, HoldsTheTensorsTorchSaved) {
  const auto archive = open_fixture(GetParam());
  ASSERT_TRUE(archive.has_value()) << archive.error().message;
  const PickleGraph& graph = archive->graph();
  simdjson::dom::parser parser;
  const simdjson::dom::element root =
      parser.load((kFixtures / GetParam() / "expected.json").string());
  for (const simdjson::dom::element expected : root["tensors"].get_array()) {
    PickleId at = graph.root();
    for (const simdjson::dom::element item : expected["path"].get_array()) {
      ASSERT_NE(at, formats::kNoPickle);
      at = step_into(graph, at, item);
    }
    ASSERT_NE(at, formats::kNoPickle) << expected["key"];
    const auto tensor = torch_tensor(graph, at);
    ASSERT_TRUE(tensor.has_value()) << expected["key"] << tensor.error().message;
    const auto elements = archive->elements(*tensor, 1u << 30);
    ASSERT_TRUE(elements.has_value()) << elements.error().message;
    EXPECT_EQ(formats::sha256_hex(*elements), std::string_view(expected["sha256"]))
        << expected["key"];
    EXPECT_EQ(name_of(tensor->dtype), std::string_view(expected["dtype"])) << expected["key"];
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TorchFixture,
                         testing::Values("deflated", "dtypes_views", "file_object_ordered_dict",
                                         "memo_past_256", "muon_adamw_state", "pickle_protocol4"));

// What is wrong with an archive, when it is opened and its tensors are read.
std::string complaint(std::string_view name) {
  const auto archive = open_fixture(name);
  if (!archive) return archive.error().message;
  const auto value = value_of(archive->graph(), archive->graph().root(), &*archive);
  return value ? "" : value.error().message;
}

TEST(TorchArchive, DamageIsNamed) {
  const auto says = [](std::string_view name, std::string_view what) {
    const std::string message = complaint(name);
    EXPECT_NE(message.find(what), std::string::npos) << name << ": " << message;
  };
  says("bad_crc", "record 'ckpt/data/0' fails its CRC32 check");
  says("bad_duplicate_record", "record 'ckpt/data/0' is listed twice in the central directory");
  says("bad_record_name_escape", "record name 'ckpt/../../evil' leaves the archive's directory");
  says("bad_storage_too_short",
       "storage '0' is declared with 120 bytes but its record has 112 bytes");
  says("bad_truncated", "the zip has no end-of-central-directory record: it is cut off");
  says("legacy_stream", "older than torch 1.6");
}

TEST(TorchArchive, P09ACallInsideIsRefusedByNameWhereNamesMatter) {
  const auto archive = open_fixture("bad_system_call");
  ASSERT_TRUE(archive.has_value());
  const auto known = require_known_globals(archive->graph());
  ASSERT_FALSE(known.has_value());
  EXPECT_NE(known.error().message.find("posix.system"), std::string::npos);
  EXPECT_FALSE(fs::exists("PWNED"));
}

// A tensor whose pickle says what the test wants it to say.
std::string complaint_about(std::int64_t numel, std::int64_t offset, std::int64_t rows,
                            std::int64_t stride) {
  formats::PickleWriter pickle;
  const auto storage = [&] {
    pickle.string("storage");
    pickle.global("torch", "FloatStorage");
    pickle.string("0");
    pickle.string("cpu");
    pickle.integer(numel);
  };
  pickle.call("torch._utils", "_rebuild_tensor_v2", [&] {
    pickle.persistent([&] { pickle.tuple(storage); });
    pickle.integer(offset);
    pickle.tuple([&] { pickle.integer(rows); });
    pickle.tuple([&] { pickle.integer(stride); });
  });
  const auto graph = PickleGraph::parse(pickle.finish(), "p");
  EBB_CHECK(graph.has_value());
  const auto tensor = torch_tensor(*graph, graph->root());
  return tensor ? "" : tensor.error().message;
}

TEST(TorchTensor, P28P29MustLieInsideItsStorage) {
  EXPECT_EQ(complaint_about(8, 0, 8, 1), "");
  EXPECT_EQ(complaint_about(8, 1, 7, 1), "");
  EXPECT_EQ(complaint_about(8, 1, 8, 1),
            "p: a tensor of shape [8] reaches past the end of storage '0' of 32 bytes");
  EXPECT_EQ(complaint_about(8, 0, 8, 2),
            "p: a tensor of shape [8] reaches past the end of storage '0' of 32 bytes");
  EXPECT_EQ(complaint_about(8, 0, 8, -1),
            "p: a tensor whose offset, size or strides make no sense");
  EXPECT_NE(complaint_about(8, 0, 1l << 62, 1l << 62), "");
  EXPECT_NE(complaint_about(1l << 62, 0, 8, 1), "");
}

TEST(TorchArchive, ValuesWrittenReadBackEqual) {
  const Value list = Value::of_list(
      {Value::of_int(-5), Value::of_real(0.1), Value::of_bool(true), Value::of_string("ü"),
       Value::of_bytes({std::byte{0}, std::byte{0xff}, std::byte{0x80}})});
  Value dict = Value::of_dict({{"l", list}});
  dict.entries.emplace_back(Value::of_int(3), Value{});
  const auto bytes = formats::value_archive(dict);
  ASSERT_TRUE(bytes.has_value());
  const auto archive = open_bytes(*bytes);
  ASSERT_TRUE(archive.has_value()) << archive.error().message;
  const auto again = value_of(archive->graph(), archive->graph().root(), &*archive);
  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_EQ(to_json(*again), to_json(dict));
}

}  // namespace

}  // namespace ebb
