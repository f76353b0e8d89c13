// torch.save files as checkpoints: what torch said they hold, in whole and in parts, and what is
// refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ebb/formats/beside.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/pickle/pickle_writer.h"
#include "ebb/formats/torch_save/torch_save.h"
#include "tests/formats/torch/torch_fixtures.h"
#include "tests/support/expected.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using formats::describe_torch;

class TorchFile : public testing::TestWithParam<std::string_view> {};

TEST_P(TorchFile, HoldsWhatTorchSaidItHolds) {
  const fs::path folder = kFixtures / GetParam();
  const auto tree = test_support::load_tree(folder / "data");
  ASSERT_TRUE(formats::detect_torch(*tree));
  const auto checkpoint = describe_torch(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  using test_support::Compare;
  // Of the layouts only names and bits were written down.
  const bool layout = GetParam().starts_with("layout_");
  EXPECT_EQ(test_support::differences(**checkpoint, folder / "expected.json",
                                      layout ? Compare::tensors : Compare::tensors_and_values),
            "");
}

TEST_P(TorchFile, ReadsTheSameInPartsAndBackwards) {
  const auto checkpoint = describe_torch(test_support::load_tree(kFixtures / GetParam() / "data"));
  ASSERT_TRUE(checkpoint.has_value());
  expect_the_same_in_parts(**checkpoint);
}

TEST_P(TorchFile, EveryPrefixIsRefused) {
  const auto tree = test_support::load_tree(kFixtures / GetParam() / "data");
  ByteVector& bytes = tree->bytes_of(tree->entries().front().name);
  const ByteVector whole = bytes;
  for (std::size_t size = 0; size < whole.size(); size += whole.size() < 9000 ? 1 : 211) {
    bytes.assign(whole.begin(), whole.begin() + std::ptrdiff_t(size));
    EXPECT_FALSE(describe_torch(tree).has_value()) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TorchFile,
                         testing::Values("deflated", "dtypes_views", "file_object_ordered_dict",
                                         "layout_int_steps", "layout_net_opt", "layout_numbers",
                                         "layout_offloaded", "layout_soap", "layout_state_model",
                                         "legacy_stream", "memo_past_256", "muon_adamw_state",
                                         "odd_keys", "pickle_protocol4"));

TEST(TorchDescribe, KnowsTheGroupsTheStepAndWhatRepeatsThem) {
  const auto checkpoint =
      describe_torch(test_support::load_tree(kFixtures / "muon_adamw_state" / "data"));
  ASSERT_TRUE(checkpoint.has_value());
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_EQ(catalog.step, 3);
  ASSERT_EQ(catalog.groups.size(), 2u);
  EXPECT_EQ(catalog.groups[0].optimizer, "muon");
  EXPECT_EQ(catalog.groups[1].optimizer, "adamw");
  for (const ValueEntry& value : catalog.values) EXPECT_TRUE(value.echoed) << value.key;
  const auto numbered =
      std::ranges::count(catalog.containers, Value::Kind::dict, &formats::ContainerEntry::kind);
  EXPECT_EQ(numbered, 2);  // the two dicts called state; param_groups are lists
}

std::shared_ptr<test_support::MemoryTree> tree_of(std::string name, ByteVector bytes) {
  auto tree = std::make_shared<test_support::MemoryTree>("ckpt");
  tree->add(std::move(name), std::move(bytes));
  return tree;
}

// Describes, then reads everything; the first error.
Error refusal_of(std::shared_ptr<const formats::SourceTree> tree) {
  const auto checkpoint = describe_torch(std::move(tree));
  if (!checkpoint) return checkpoint.error();
  for (const TensorEntry& tensor : (*checkpoint)->catalog().tensors)
    if (const auto digest = test_support::sha256_of(**checkpoint, tensor); !digest)
      return digest.error();
  return {};
}

TEST(TorchDescribe, NoticesEveryFlippedBitOfADeflatedRecord) {
  const auto tree = test_support::load_tree(kFixtures / "deflated" / "data");
  const fs::path expected = kFixtures / "deflated" / "expected.json";
  ByteVector& bytes = tree->bytes_of("deflated.pt");
  std::size_t noticed = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= std::byte{16};
    if (refusal_of(tree).message.empty()) {
      const auto checkpoint = describe_torch(tree);
      EXPECT_EQ(test_support::differences(**checkpoint, expected, test_support::Compare::tensors),
                "")
          << at;
    } else {
      ++noticed;
    }
    bytes[at] ^= std::byte{16};
  }
  EXPECT_GT(noticed, bytes.size() / 2);
}

TEST(TorchDescribe, RefusesWhatIsNoCheckpointByName) {
  ByteVector tar(512, std::byte{0});
  const ByteView magic = formats::view_of("ustar");
  std::copy(magic.begin(), magic.end(), tar.begin() + 257);
  const Error old = refusal_of(tree_of("old.pth", std::move(tar)));
  EXPECT_EQ(old.code, Code::unsupported);
  EXPECT_NE(old.message.find("a tar archive of torch 0.1"), std::string::npos) << old.message;
  const Error empty = refusal_of(tree_of("empty.pt", {}));
  EXPECT_EQ(empty.code, Code::incomplete);
  EXPECT_EQ(empty.message, "ckpt/empty.pt:0: the file is empty");
}

TEST(TorchDescribe, AsksWhichOneOfSeveralFilesIsMeant) {
  const auto one = test_support::load_tree(kFixtures / "pickle_protocol4" / "data");
  const auto several = tree_of("a.pt", one->bytes_of("ckpt.pt"));
  several->add("b.pt", one->bytes_of("ckpt.pt"));
  ASSERT_TRUE(formats::detect_torch(*several));
  EXPECT_EQ(refusal_of(several).message,
            "ckpt: 2 torch.save files, a.pt and b.pt among them: which one is meant?");
  several->add("notes.txt", "PK\x03\x04 is how zip files begin");
  EXPECT_TRUE(formats::detect_torch(*several));
}

// The old stream around one pickled object with no storages.
std::shared_ptr<test_support::MemoryTree> file_of_object(
    const std::function<void(formats::PickleWriter&)>& write) {
  const auto legacy = test_support::load_tree(kFixtures / "legacy_stream" / "data");
  const ByteVector& model = legacy->bytes_of("ckpt.pt");
  ByteVector bytes(model.begin(), model.begin() + 15);
  const auto append = [&](const std::function<void(formats::PickleWriter&)>& part) {
    formats::PickleWriter pickle;
    part(pickle);
    formats::append_bytes(bytes, pickle.finish());
  };
  append([](auto& pickle) { pickle.integer(1001); });
  append([](auto& pickle) { pickle.empty_dict(); });
  append(write);
  append([](auto& pickle) { pickle.empty_list(); });
  return tree_of("m.pt", std::move(bytes));
}

TEST(TorchDescribe, P31QuantisedTensorsAreUnreadByName) {
  const auto described = describe_torch(file_of_object(
      [](formats::PickleWriter& pickle) { pickle.call("torch._utils", "_rebuild_qtensor"); }));
  ASSERT_TRUE(described.has_value()) << described.error().message;
  ASSERT_EQ((*described)->catalog().unread.size(), 1u);
  EXPECT_EQ((*described)->catalog().unread[0].what, "a quantized tensor");
}

TEST(TorchDescribe, MarksOverTheElementsAreNotIgnored) {
  const Error error = refusal_of(test_support::load_tree(kFixtures / "conjugated" / "data"));
  EXPECT_EQ(error.code, Code::unsupported);
  EXPECT_NE(error.message.find("stored conjugated or negated"), std::string::npos) << error.message;
}

// Whatever is named and no framework writes; what a framework writes is not told.
TEST(TorchDescribe, P32CallsThatNoFrameworkWritesAreToldByNameAndStayInert) {
  const auto names_in = [](const char* module, const char* name) {
    const auto described = describe_torch(file_of_object([=](formats::PickleWriter& pickle) {
      pickle.dict([&] { pickle.entry("x", [&] { pickle.call(module, name); }); });
    }));
    std::vector<std::string> names;
    EXPECT_TRUE(described.has_value()) << described.error().message;
    if (!described) return names;
    for (const auto& value : formats::unsafe_values((*described)->catalog()))
      names.push_back(value.name);
    EXPECT_EQ((*described)->catalog().values.size(), 1u);
    return names;
  };
  EXPECT_EQ(names_in("argparse", "Namespace"), std::vector<std::string>{});
  EXPECT_EQ(names_in("datetime", "timedelta"), std::vector<std::string>{});
  for (const auto& [module, name] :
       std::vector<std::pair<const char*, const char*>>{{"os", "system"},
                                                        {"subprocess", "Popen"},
                                                        {"__builtin__", "eval"},
                                                        {"torch", "float_power"},
                                                        {"torch.storage", "_load_from_bytes"},
                                                        {"somebody.config", "Arguments"}})
    EXPECT_EQ(names_in(module, name), std::vector<std::string>{std::string(module) + "." + name});
}

// The key of a value, of a dict with a tensor, and of what is nothing.
TEST(TorchDescribe, KeysThatAreNoTextAreReadAsPythonPrintsThem) {
  const auto checkpoint = describe_torch(test_support::load_tree(kFixtures / "odd_keys" / "data"));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const auto& notes = (*checkpoint)->catalog().notes;
  EXPECT_NE(
      std::ranges::find(notes,
                        "6 keys of dicts are neither text nor whole numbers: they are read as "
                        "text, \"(1, 2)\" and others"),
      notes.end());
}

std::shared_ptr<test_support::MemoryTree> cut_model(const char* second, std::string_view index) {
  auto tree = std::make_shared<test_support::MemoryTree>("ckpt");
  for (const auto& [file, fixture] :
       {std::pair("pytorch_model-00001-of-00002.bin", "legacy_stream"),
        {"pytorch_model-00002-of-00002.bin", second}}) {
    const auto whole = test_support::load_tree(kFixtures / fixture / "data");
    tree->add(file, whole->bytes_of("ckpt.pt"));
  }
  tree->add("pytorch_model.bin.index.json", index);
  tree->add("training_args.bin", "PK\x03\x04");
  return tree;
}

// Tensors of two files, one an old stream and one an archive.
TEST(TorchDescribe, ReadsAModelThatWasCutIntoSeveralFiles) {
  const auto tree = cut_model("dtypes_views", R"({"metadata": {"total_size": 1}, "weight_map": {
      "v": "pytorch_model-00001-of-00002.bin", "mask": "pytorch_model-00002-of-00002.bin"}})");
  ASSERT_TRUE(formats::detect_torch(*tree));
  const auto checkpoint = describe_torch(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_EQ(catalog.partition, "whole tensors in 2 files");
  const auto beside = formats::what_lies_beside(tree, catalog);
  ASSERT_EQ(beside.size(), 1u) << "what the index does not list is no part of the model";
  EXPECT_EQ(beside[0].path, "training_args.bin");
  std::size_t held = 0;
  for (const char* fixture : {"legacy_stream", "dtypes_views"}) {
    const auto whole = describe_torch(test_support::load_tree(kFixtures / fixture / "data"));
    ASSERT_TRUE(whole.has_value());
    for (const TensorEntry& tensor : (*whole)->catalog().tensors) {
      const auto found = std::ranges::find(catalog.tensors, tensor.key, &TensorEntry::key);
      ASSERT_NE(found, catalog.tensors.end()) << *tensor.key;
      EXPECT_EQ(*test_support::sha256_of(**checkpoint, *found),
                *test_support::sha256_of(**whole, tensor))
          << *tensor.key;
      ++held;
    }
  }
  EXPECT_EQ(catalog.tensors.size(), held);
}

TEST(TorchDescribe, SaysWhatAnIndexPromisesAndNoFileHolds) {
  const auto says = [](std::string_view index) {
    return refusal_of(cut_model("bad_crc", index)).message;
  };
  EXPECT_EQ(says(R"({"weight_map": {"w": "a.bin", "v": "b.bin"}})"),
            "ckpt: missing, though pytorch_model.bin.index.json says tensors are there: a.bin, "
            "b.bin");
  EXPECT_EQ(says(R"({"weight_map": {"lost": "pytorch_model-00001-of-00002.bin"}})"),
            "ckpt/pytorch_model.bin.index.json: tensor \"lost\" should lie in "
            "pytorch_model-00001-of-00002.bin, but that file does not hold it");
  EXPECT_EQ(says(R"({"weight_map": {"v": "pytorch_model-00001-of-00002.bin",
                                    "w": "pytorch_model-00002-of-00002.bin"}})"),
            "ckpt/pytorch_model-00002-of-00002.bin: \"w\": is already in "
            "pytorch_model-00001-of-00002.bin");
}

}  // namespace

}  // namespace ebb
