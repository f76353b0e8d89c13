// Files of about a megabyte made to cost as much as they can: references to one object in place of
// copies, and what compresses well. Each must be refused or read for less than 256 MiB and 2 s.
#include <gtest/gtest.h>

#include <zstd.h>

#include <memory>
#include <string>
#include <unordered_set>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/megatron/flat_boxes.h"
#include "ebb/formats/torch/archive.h"
#include "ebb/formats/torch/file_writer.h"
#include "tests/support/archives.h"
#include "tests/support/cost.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using formats::MiB;
using test_support::archive_around;
using test_support::MemoryTree;
using test_support::PickleText;
using Tree = std::shared_ptr<MemoryTree>;

void expect_cheap(const std::function<void()>& work) {
  const test_support::Cost cost = test_support::cost_of(work);
  EXPECT_TRUE(cost.returned);
  EXPECT_LT(cost.seconds, 2.0);
  EXPECT_LT(cost.peak_bytes, 256 * MiB);
}

// Everything ckpt-inspect would do to show it.
void look(const Tree& tree) {
  const auto checkpoint = formats::describe(tree);
  if (!checkpoint) return;
  for (const ValueEntry& entry : (*checkpoint)->catalog().values) to_json(entry.value);
  (void)prove_coverage((*checkpoint)->catalog());
}

void expect_cheap(const Tree& tree) {
  expect_cheap([&] { look(tree); });
}

// "" when it is read.
std::string refusal(const Tree& tree) {
  const auto checkpoint = formats::describe(tree);
  return checkpoint ? "" : checkpoint.error().message;
}

void expect_refused(const Tree& tree, std::string_view why) {
  EXPECT_NE(refusal(tree).find(why), std::string::npos) << refusal(tree);
}

Tree torch_tree(const std::string& pickle) {
  auto tree = std::make_shared<MemoryTree>("t");
  tree->add("c.pt", archive_around(formats::view_of(pickle)));
  return tree;
}

// `count` times the opcodes of `item`, as the items of a list.
std::string list_of(PickleText begin, std::size_t count, const std::string& item) {
  begin.raw("](");
  for (std::size_t i = 0; i < count; ++i) begin.raw(item);
  return begin.raw("e").done();
}

std::string got(std::uint32_t memo) { return PickleText().get(memo).done().substr(2, 2); }

// A dict of `count` short entries at the top of the stack.
PickleText& add_dict(PickleText& pickle, std::size_t count) {
  pickle.raw("}(");
  for (std::size_t i = 0; i < count; ++i) pickle.text("k" + std::to_string(i)).raw("N");
  return pickle.raw("u");
}

TEST(Costs, SetsInSetsAreWrittenOnce) {
  PickleText pickle;
  for (int depth = 0; depth < 200; ++depth) pickle.raw("\x8f(").text("a").text("b");
  for (int depth = 0; depth < 200; ++depth) pickle.raw("\x90");
  expect_cheap(torch_tree(pickle.done()));
  EXPECT_EQ(refusal(torch_tree(pickle.done())), "");
}

// A hash of an integer is mostly the integer, and the sizes of hash tables are known.
TEST(Costs, IntegerKeysMadeToCollideAreReadQuickly) {
  constexpr std::int64_t kKeys = 80000;
  std::unordered_set<std::int64_t> table;
  for (std::int64_t i = 0; i < kKeys; ++i) table.insert(i);
  const auto buckets = static_cast<std::int64_t>(table.bucket_count());
  PickleText pickle;
  pickle.raw("}(");
  for (std::int64_t i = 0; i < kKeys; ++i) {
    const std::int64_t key = i * buckets;
    pickle.raw("\x8a\x08").raw({reinterpret_cast<const char*>(&key), sizeof(key)}).raw("N");
  }
  const Tree tree = torch_tree(pickle.raw("u").done());
  expect_cheap(tree);
  EXPECT_EQ(refusal(tree), "");
}

TEST(Costs, ADictCopiedByManyCallsIsRefused) {
  for (const auto& [module, name] :
       {std::pair{"collections", "OrderedDict"}, std::pair{"builtins", "set"},
        std::pair{"builtins", "frozenset"}}) {
    PickleText pickle;
    pickle.global(module, name).put(0).raw("0");
    if (std::string_view(name) == "OrderedDict")
      add_dict(pickle, 40000).put(1).raw("0");
    else
      pickle.raw("](").raw(std::string(500000, 'N')).raw("e").put(1).raw("0");
    const Tree attack = torch_tree(list_of(pickle, 50000, got(0) + got(1) + "\x85R"));
    expect_cheap(attack);
    expect_refused(attack, "copied again and again");
  }
}

TEST(Costs, ATextEncodedByManyCallsIsRefused) {
  PickleText pickle;
  pickle.global("_codecs", "encode").put(0).raw("0").text(std::string(500000, 'x')).put(1).raw("0");
  pickle.text("latin1").put(2).raw("0");
  const Tree tree = torch_tree(list_of(pickle, 50000, got(0) + got(1) + got(2) + "\x86R"));
  expect_cheap(tree);
  expect_refused(tree, "copied again and again");
}

TEST(Costs, NamesOfHalfAMegabyteAreRefused) {
  PickleText pickle;
  pickle.text(std::string(500000, 'x')).put(0).raw("0");
  const Tree tree = torch_tree(list_of(pickle, 100000, got(0) + got(0) + "\x93"));
  expect_cheap(tree);
  expect_refused(tree, "a name of 1000000 bytes; the limit is 1024");
}

TEST(Costs, OneLongTextReferredToOftenIsRefused) {
  PickleText pickle;
  pickle.text(std::string(500000, 'x')).put(0).raw("0");
  const Tree tree = torch_tree(list_of(pickle, 200000, got(0)));
  expect_cheap(tree);
  expect_refused(tree, "its values refer to each other until they take more than");
}

TEST(Costs, ALongKeyAboveManyEntriesIsRefused) {
  PickleText pickle;
  pickle.raw("}").text(std::string(500000, 'x'));
  add_dict(pickle, 30000).raw("s");
  const Tree tree = torch_tree(pickle.done());
  expect_cheap(tree);
  expect_refused(tree, "until they take more than");
}

TEST(Costs, AMillionSmallPartsStayBounded) {
  expect_cheap(torch_tree(list_of(PickleText(), 1000000, "N")));
  expect_cheap(torch_tree(list_of(PickleText(), 1000000, "]")));
  expect_cheap(torch_tree(list_of(PickleText(), 1000000, "}")));
  expect_cheap(torch_tree(list_of(PickleText(), 500000, "}\x85")));
}

TEST(Costs, ADeflatedPickleOfMillionsOfValuesIsRefused) {
  auto tree = std::make_shared<MemoryTree>("t");
  tree->add("c.pt", test_support::archive_of({{"a/data.pkl", list_of(PickleText(), 30000000, "]"),
                                               test_support::ArchiveRecord::Method::deflated},
                                              {"a/version", "3\n"}}));
  expect_refused(tree, "more than 2097152 values");
  expect_cheap(tree);
}

TEST(Costs, TensorsInValuesPayForWhatTheyShareOrRepeat) {
  const auto tensor = [](std::int32_t size, std::int32_t stride) {
    PickleText pickle;
    pickle.global("torch._utils", "_rebuild_tensor_v2").raw("((").text("storage");
    pickle.global("torch", "ByteStorage").text("0").text("cpu").number(900000).raw("tQ");
    pickle.number(0).number(size).raw("\x85").number(stride).raw("\x85").raw("\x89}tR");
    return pickle.put(0).raw("0");
  };
  for (const bool shared : {true, false}) {
    const std::string pickle =
        list_of(tensor(shared ? 10 : 100000000, shared ? 1 : 0), 50000, got(0));
    const ByteVector bytes = archive_around(formats::view_of(pickle), {900000});
    const auto archive = formats::TorchArchive::open(
        std::make_shared<formats::MemorySource>("m", bytes), 0, bytes.size());
    ASSERT_TRUE(archive.has_value()) << archive.error().message;
    expect_cheap([&] { (void)value_of(archive->graph(), archive->graph().root(), &*archive); });
    EXPECT_FALSE(value_of(archive->graph(), archive->graph().root(), &*archive).has_value());
  }
}

// --- DCP ---------------------------------------------------------------------------------------

// Memo 10: class of tensors, 11: of chunks, 12: of bytes, 13: of index keys, 14: of places,
// 15: the properties of fp32, 16: torch.Size, 20: the Metadata class.
PickleText dcp_classes() {
  PickleText pickle;
  const std::string metadata = "torch.distributed.checkpoint.metadata";
  const auto keep = [&](const std::string& module, const std::string& name, std::uint32_t memo) {
    pickle.global(module, name).put(memo).raw("0");
  };
  pickle.raw("N");
  for (std::uint32_t memo = 0; memo < 10; ++memo) pickle.put(memo);
  pickle.raw("0");
  keep(metadata, "TensorStorageMetadata", 10);
  keep(metadata, "ChunkStorageMetadata", 11);
  keep(metadata, "BytesStorageMetadata", 12);
  keep(metadata, "MetadataIndex", 13);
  keep("torch.distributed.checkpoint.filesystem", "_StorageInfo", 14);
  pickle.global(metadata, "TensorProperties").raw(")\x81(").global("torch", "float32");
  pickle.raw("NNNNtb").put(15).raw("0");
  keep("torch", "Size", 16);
  keep(metadata, "Metadata", 17);
  return pickle;
}

PickleText& size_of(PickleText& pickle, std::initializer_list<std::int32_t> extents) {
  pickle.get(16).raw("((");
  for (const std::int32_t extent : extents) pickle.number(extent);
  return pickle.raw("ttR");
}

// A checkpoint of what `described` and `stored` add to the two dicts, beside a payload.
Tree dcp_tree(PickleText pickle, const std::function<void(PickleText&)>& described,
              const std::function<void(PickleText&)>& stored,
              const std::function<void(PickleText&)>& paths = {}, ByteVector payload = {}) {
  pickle.object(17, [&] {
    pickle.text("state_dict_metadata").raw("}(");
    described(pickle);
    pickle.raw("u").text("storage_data").raw("}(");
    stored(pickle);
    pickle.raw("u");
    if (paths) {
      pickle.text("planner_data").raw("}(");
      paths(pickle);
      pickle.raw("u");
    }
  });
  auto tree = std::make_shared<MemoryTree>("t");
  const std::string text = pickle.done();
  tree->add(".metadata", std::string_view(text));
  tree->add("__0_0.distcp", std::move(payload));
  return tree;
}

void add_place(PickleText& pickle, std::int32_t length, const std::function<void()>& more = {}) {
  pickle.object(14, [&] {
    pickle.text("relative_path").text("__0_0.distcp").text("offset").number(0).text("length");
    pickle.number(length);
    if (more) more();
  });
}

TEST(Costs, ChunksSharedByManyTensorsAreRefused) {
  PickleText pickle = dcp_classes();
  pickle.object(11, [&] {
    size_of(pickle.text("offsets"), {0});
    size_of(pickle.text("sizes"), {1});
  });
  pickle.put(18).raw("0](");
  for (int i = 0; i < 200000; ++i) pickle.get(18);
  pickle.raw("e").put(19).raw("0");
  pickle.object(10, [&] {
    pickle.text("properties").get(15).text("chunks").get(19);
    size_of(pickle.text("size"), {1});
  });
  pickle.put(20).raw("0");
  const Tree tree = dcp_tree(
      pickle,
      [](PickleText& text) {
        for (int i = 0; i < 40000; ++i) text.text(std::to_string(i)).get(20);
      },
      [](PickleText&) {});
  expect_cheap(tree);
  expect_refused(tree, "until they take more than");
}

TEST(Costs, ALongKeyOfManyChunksIsRefused) {
  PickleText pickle = dcp_classes();
  pickle.object(13, [&] { pickle.text("fqn").text(std::string(500000, 'x')); }).put(18).raw("0");
  add_place(pickle, 1);
  pickle.put(19).raw("0");
  const Tree tree = dcp_tree(
      pickle, [](PickleText&) {},
      [](PickleText& text) {
        for (int i = 0; i < 100000; ++i) text.get(18).get(19);
      });
  expect_cheap(tree);
  expect_refused(tree, "until they take more than");
}

TEST(Costs, ALongPathOfManyKeysIsRefused) {
  PickleText pickle = dcp_classes();
  pickle.text(std::string(500000, 'x')).raw("\x85").put(18).raw("0");
  const Tree tree = dcp_tree(
      pickle, [](PickleText&) {}, [](PickleText&) {},
      [](PickleText& text) {
        for (int i = 0; i < 40000; ++i) text.text(std::to_string(i)).get(18);
      });
  expect_cheap(tree);
  expect_refused(tree, "until they take more than");
}

TEST(Costs, ObjectsOfThousandsOfAttributesAreRefused) {
  PickleText pickle = dcp_classes();
  add_place(pickle, 1, [&] {
    for (int i = 0; i < 40000; ++i) pickle.text(std::to_string(i)).raw("N");
  });
  pickle.put(19).raw("0").object(13, [&] { pickle.text("fqn").text("k"); }).put(18).raw("0");
  const Tree tree = dcp_tree(
      pickle, [](PickleText&) {},
      [](PickleText& text) {
        for (int i = 0; i < 100000; ++i) text.get(18).get(19);
      });
  expect_cheap(tree);
  expect_refused(tree, "has more than 64 attributes");
}

// `count` values that all lie in the same bytes.
Tree values_tree(int count, ByteVector payload, const std::function<void(PickleText&)>& more = {}) {
  PickleText pickle = dcp_classes();
  pickle.object(12, [] {}).put(18).raw("0");
  const auto length = static_cast<std::int32_t>(payload.size());
  add_place(pickle, length, more ? std::function<void()>([&] { more(pickle); }) : nullptr);
  pickle.put(19).raw("0");
  return dcp_tree(
      pickle,
      [&](PickleText& text) {
        for (int i = 0; i < count; ++i) text.text(std::to_string(i)).get(18);
      },
      [&](PickleText& text) {
        for (int i = 0; i < count; ++i)
          text.object(13, [&] { text.text("fqn").text(std::to_string(i)); }).get(19);
      },
      {}, std::move(payload));
}

TEST(Costs, ValuesThatShareTheirBytesAreRefused) {
  const auto payload = formats::value_archive(Value::of_string(std::string(900000, 'x')));
  ASSERT_TRUE(payload.has_value());
  const Tree tree = values_tree(5000, *payload);
  expect_cheap(tree);
  expect_refused(tree, "overlap in the file");
}

ByteVector compressed_zeros(std::size_t count) {
  const std::string zeros(count, '\0');
  ByteVector room(ZSTD_compressBound(count));
  const std::size_t size = ZSTD_compress(room.data(), room.size(), zeros.data(), count, 1);
  return {room.begin(), room.begin() + static_cast<std::ptrdiff_t>(size)};
}

TEST(Costs, AValueThatDecompressesToMuchMoreIsRefused) {
  const Tree tree = values_tree(1, compressed_zeros(100000000), [](PickleText& text) {
    text.text("transform_descriptors").raw("]").text("stream.zstd/1").raw("a");
  });
  expect_refused(tree, "decompresses to more than");
  expect_cheap(tree);
}

TEST(Costs, ManyKeysOfManyRanksAreMergedQuickly) {
  const Tree one = values_tree(15000, ByteVector(8));
  auto tree = std::make_shared<MemoryTree>("t");
  for (int rank = 0; rank < 4; ++rank)
    tree->add("__" + std::to_string(rank) + ".metadata", one->bytes_of(".metadata"));
  expect_cheap(tree);
}

// --- DeepSpeed ---------------------------------------------------------------------------------

Tree deepspeed_tree(const std::string& model, const std::string& optimizer) {
  auto tree = std::make_shared<MemoryTree>("t");
  tree->add("latest", std::string_view("g"));
  tree->add("g/mp_rank_00_model_states.pt", archive_around(formats::view_of(model)));
  tree->add("g/zero_pp_rank_0_mp_rank_00_optim_states.pt",
            archive_around(formats::view_of(optimizer), {4000000}));
  return tree;
}

// Groups of parameters "0", "1", ... of one element; each group is the dict of all of them.
std::string ds_model(int params, int groups) {
  PickleText pickle;
  pickle.global("torch", "Size").raw("((").number(1).raw("ttR").put(0).raw("0}(");
  for (int i = 0; i < params; ++i) pickle.text(std::to_string(i)).get(0);
  pickle.raw("u").put(1).raw("0}(").text("module").raw("}").text("param_shapes").raw("](");
  for (int i = 0; i < groups; ++i) pickle.get(1);
  return pickle.raw("eu").done();
}

std::string ds_optimizer(int elems, int states, int buffers) {
  PickleText pickle;
  pickle.global("torch._utils", "_rebuild_tensor_v2").raw("((").text("storage");
  pickle.global("torch", "FloatStorage").text("0").text("cpu").number(1000000).raw("tQ");
  pickle.number(0).number(elems).raw("\x85").number(1).raw("\x85\x89}tR").put(0).raw("0}(");
  pickle.text("optimizer_state_dict").raw("}(").text("partition_count").number(1);
  pickle.text("zero_stage").number(1).text("single_partition_of_fp32_groups").raw("]").get(0);
  pickle.raw("a").text("base_optimizer_state").raw("}(").text("state").raw("}").number(0);
  pickle.raw("}(");
  for (int i = 0; i < states; ++i) pickle.text("s" + std::to_string(i)).get(0);
  pickle.raw("us").text("param_groups").raw("](}").text("params").raw("](");
  for (int i = 0; i < buffers; ++i) pickle.number(0);
  return pickle.raw("eseuuu").done();
}

TEST(Costs, ParametersInManyGroupsAreRefused) {
  const Tree tree = deepspeed_tree(ds_model(10000, 4000), ds_optimizer(10000, 2, 1));
  expect_cheap(tree);
  expect_refused(tree, "parameter \"0\" is listed twice");
}

TEST(Costs, ABufferInAGroupManyTimesIsRefused) {
  const Tree tree = deepspeed_tree(ds_model(10000, 1), ds_optimizer(10000, 2, 100000));
  expect_cheap(tree);
  expect_refused(tree, "flat buffer 0 is in two parameter groups");
}

TEST(Costs, ThousandsOfStatesAreRefused) {
  const Tree tree = deepspeed_tree(ds_model(10000, 1), ds_optimizer(10000, 50000, 1));
  expect_cheap(tree);
  expect_refused(tree, "50000 states; the limit is 16");
}

// --- the rest ----------------------------------------------------------------------------------

TEST(Costs, ATensorCutInManyDimensionsIsRefused) {
  Catalog catalog;
  TensorEntry tensor;
  tensor.name = "t";
  tensor.shape.assign(20, 2);
  for (std::uint64_t i = 0; i < 200; ++i)
    tensor.chunks.push_back({{Shape(20, i % 2), Shape(20, 1)}, 0, 0, 4});
  expect_cheap([&] { (void)prove_coverage(tensor, catalog); });
  EXPECT_FALSE(prove_coverage(tensor, catalog).has_value());
}

TEST(Costs, AFlatChunkOverMillionsOfBoxesIsRefused) {
  const std::uint64_t many = std::uint64_t{1} << 31;
  expect_cheap([&] {
    (void)formats::megatron::pieces_of_flat_boxes({many}, {many, 1}, {{0, 0}, {many, 1}}, "t");
  });
  EXPECT_FALSE(formats::megatron::pieces_of_flat_boxes({many}, {many, 1}, {{0, 0}, {many, 1}}, "t")
                   .has_value());
}

TEST(Costs, ManyMetadataKeysAreReadQuickly) {
  std::string keys;
  for (int i = 0; i < 80000; ++i) keys += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"\"";
  const Tree tree = test_support::safetensors_with(keys);
  expect_cheap(tree);
  EXPECT_EQ(refusal(tree), "");
}

TEST(Costs, ValuesInMetadataAreBounded) {
  const std::string ours = "\"ebb\":\"1 added:\",\"ebb.values\":\"";
  for (const std::string one : {"0,", "[],", "{},"}) {
    std::string items;
    while (items.size() < MiB) items += one;
    items.back() = ' ';
    const Tree tree = test_support::safetensors_with(ours + "[[\\\"k\\\", [], [" + items + "]]]\"");
    expect_cheap(tree);
    EXPECT_EQ(refusal(tree), "");
  }
}

}  // namespace

}  // namespace ebb
