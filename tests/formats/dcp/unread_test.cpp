// Tensor subclasses in DCP: the index tells what they stand for, and only the items tell that they
// are none of the elements it speaks of.
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/torch/file_writer.h"
#include "tests/support/archives.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/pickled_tensors.h"

namespace ebb {

namespace {

using test_support::MemoryTree;

// Zeros: a weight and two states of the parameter "w", an item each.
class Zeros : public Checkpoint {
 public:
  Zeros() {
    catalog_.format = "made";
    for (const char* state : {"param", "exp_avg", "exp_avg_sq"}) {
      TensorEntry& tensor = catalog_.tensors.emplace_back();
      tensor.name = "w";
      tensor.state = state;
      tensor.shape = {50, 40 + catalog_.tensors.size()};
      tensor.chunks.push_back({formats::whole(tensor.shape), 0, 0, 0, Rank{0}});
    }
  }
  void add(std::string key, Value value) {
    catalog_.values.push_back({std::move(key), {}, std::move(value)});
  }
  const Catalog& catalog() const override { return catalog_; }
  Result<> read_chunk(const TensorEntry&, const Chunk&, std::uint64_t,
                      std::span<std::byte> into) const override {
    std::ranges::fill(into, std::byte{0});
    return {};
  }

 private:
  Catalog catalog_;
};

std::shared_ptr<MemoryTree> written(std::optional<Value> value = std::nullopt) {
  Zeros content;
  if (value) content.add("v", *std::move(value));
  std::vector<Shape> shapes;
  for (const TensorEntry& tensor : content.catalog().tensors) shapes.push_back(tensor.shape);
  const auto layout = Layout::make({.policy = Policy::replicated}, shapes);
  EBB_CHECK(layout.has_value());
  const auto plan = formats::emit_dcp({.content = content.catalog(), .layout = *layout});
  EBB_CHECK(plan.has_value());
  auto tree = test_support::carry_out(*plan, content, "ck");
  EBB_CHECK(tree.has_value());
  return std::move(*tree);
}

// As the pickle of an index spells a length of two bytes.
std::string spelled(std::uint64_t length) {
  EBB_CHECK(length > 255 && length < 65536);
  return std::string("M") + static_cast<char>(length % 256) + static_cast<char>(length / 256);
}

// Puts `archive` where an item lay, and its length into the index.
void replace(MemoryTree& tree, const std::string& file, std::uint64_t offset, std::uint64_t length,
             const ByteVector& archive) {
  EBB_CHECK(archive.size() <= length);
  std::ranges::copy(archive, tree.bytes_of(file).begin() + static_cast<std::ptrdiff_t>(offset));
  ByteVector& index = tree.bytes_of(".metadata");
  std::string text(formats::text_of(index));
  const std::size_t at = text.find(spelled(length));
  EBB_CHECK(at != std::string::npos);
  text.replace(at, 3, spelled(archive.size()));
  std::ranges::transform(text, index.begin(), [](char c) { return static_cast<std::byte>(c); });
}

void replace_item(MemoryTree& tree, std::string_view state, const ByteVector& archive) {
  const auto checkpoint = formats::describe_dcp(std::make_shared<MemoryTree>(tree));
  EBB_CHECK(checkpoint.has_value());
  const Catalog& catalog = (*checkpoint)->catalog();
  for (const TensorEntry& tensor : catalog.tensors)
    if (const Chunk& chunk = tensor.chunks.front(); tensor.state == state)
      replace(tree, catalog.files[chunk.file].name, chunk.offset, chunk.length, archive);
}

// The item of the only value, which the writer lays in front of the tensors.
void replace_value(MemoryTree& tree, const Value& value, const ByteVector& archive) {
  const auto item = formats::value_archive(value);
  EBB_CHECK(item.has_value());
  replace(tree, "__0_0.distcp", 0, item->size(), archive);
}

ByteVector quantized(std::string_view module, std::string_view name, const Shape& shape) {
  formats::PickleWriter pickle;
  test_support::wrapper_subclass(pickle, module, name, shape, [&] { pickle.empty_dict(); });
  return test_support::archive_around(pickle.finish(), {2000});
}

struct Subclass {
  std::string_view module, name, what;
};

class DcpUnread : public testing::TestWithParam<Subclass> {};

TEST_P(DcpUnread, IsNamedAsWhatItIsAndHidesNothingElse) {
  const auto tree = written();
  replace_item(*tree, "exp_avg", quantized(GetParam().module, GetParam().name, {50, 42}));
  const auto checkpoint = formats::describe_dcp(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  ASSERT_EQ(catalog.unread.size(), 1u);
  EXPECT_EQ(catalog.unread[0].name, "w");
  EXPECT_EQ(catalog.unread[0].state, "exp_avg");
  EXPECT_NE(catalog.unread[0].what.find(GetParam().what), std::string::npos)
      << catalog.unread[0].what;
  ASSERT_EQ(catalog.tensors.size(), 2u);
  for (const TensorEntry& tensor : catalog.tensors) {
    EXPECT_NE(tensor.state, "exp_avg");
    EXPECT_TRUE(test_support::elements_of(**checkpoint, tensor).has_value());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DcpUnread,
    testing::Values(
        Subclass{"torchao.optim.subclass_8bit", "OptimState8bit", "torchao's 8-bit state"},
        Subclass{"torchao.prototype.low_bit_optim.subclass_4bit", "OptimState4bit", "4-bit state"},
        Subclass{"torchao.float8.float8_tensor", "Float8Tensor", "Float8Tensor (torchao)"},
        Subclass{"acme.tensors", "Folded", "class Folded (acme)"}));

// What DCP keeps as bytes is an object of any kind, and may hold such tensors.
TEST(DcpUnreadValue, IsLeftOutOfItsValueAndNamed) {
  const auto folded = [](formats::PickleWriter& pickle) {
    test_support::wrapper_subclass(pickle, "acme.tensors", "Folded", {4, 3},
                                   [&] { pickle.empty_dict(); });
  };
  const std::vector<std::pair<std::function<void(formats::PickleWriter&)>, std::string>> cases = {
      {[&](auto& pickle) { folded(pickle); }, "v"},
      {[&](auto& pickle) {
         pickle.dict([&] {
           pickle.entry("kept", 7);
           pickle.string("ema");
           folded(pickle);
         });
       },
       "v.ema"},
      {[&](auto& pickle) {
         pickle.tuple([&] {
           pickle.integer(7);
           folded(pickle);
         });
       },
       "v.1"}};
  for (const auto& [write, key] : cases) {
    const Value value = Value::of_string(std::string(1500, ' '));
    const auto tree = written(value);
    formats::PickleWriter pickle;
    write(pickle);
    replace_value(*tree, value, test_support::archive_around(pickle.finish(), {}));
    const auto checkpoint = formats::describe_dcp(tree);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    const Catalog& catalog = (*checkpoint)->catalog();
    EXPECT_EQ(catalog.tensors.size(), 3u);
    ASSERT_EQ(catalog.unread.size(), 1u) << key;
    EXPECT_EQ(catalog.unread[0].key, key);
    EXPECT_EQ(catalog.unread[0].what, "a tensor of class Folded (acme)");
    const auto rest = std::ranges::find(catalog.values, "v", &ValueEntry::key);
    ASSERT_EQ(rest != catalog.values.end(), key != "v");
    if (key == "v.ema") {
      EXPECT_EQ(to_json(rest->value), R"({"kept": 7})");
    } else if (key == "v.1") {
      EXPECT_EQ(to_json(rest->value), R"({"$tuple": [7, null]})");
    }
  }
}

// Whatever its length: only reading tells, and says the same.
TEST(DcpUnreadItem, OfAnyLengthIsUnsupportedAndNotCorrupt) {
  const auto tree = written();
  const auto plain = formats::describe_dcp(std::make_shared<MemoryTree>(*tree));
  ASSERT_TRUE(plain.has_value());
  for (const TensorEntry& tensor : (*plain)->catalog().tensors) {
    if (tensor.state != "exp_avg") continue;
    const Chunk& chunk = tensor.chunks.front();
    ByteVector& file = tree->bytes_of((*plain)->catalog().files[chunk.file].name);
    const ByteVector item = quantized("acme.tensors", "Folded", tensor.shape);
    std::ranges::copy(item, file.begin() + static_cast<std::ptrdiff_t>(chunk.offset));
    // A zip is read from its end: the rest of the item becomes the comment of the archive.
    const std::size_t comment = chunk.length - item.size();
    std::fill_n(file.begin() + static_cast<std::ptrdiff_t>(chunk.offset + item.size()), comment,
                std::byte{0});
    ASSERT_LT(comment, 65536u);
    const std::size_t size_at = chunk.offset + item.size() - 2;
    file[size_at] = static_cast<std::byte>(comment % 256);
    file[size_at + 1] = static_cast<std::byte>(comment / 256);
    const auto checkpoint = formats::describe_dcp(tree);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    for (const TensorEntry& again : (*checkpoint)->catalog().tensors) {
      const auto elements = test_support::elements_of(**checkpoint, again);
      EXPECT_EQ(elements.has_value(), again.state != "exp_avg");
      if (elements) continue;
      EXPECT_EQ(elements.error().code, Code::unsupported) << elements.error().message;
      EXPECT_NE(elements.error().message.find("class Folded (acme)"), std::string::npos);
    }
  }
}

}  // namespace

}  // namespace ebb
