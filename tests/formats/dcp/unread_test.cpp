// Tensor subclasses in DCP: the index tells what they stand for, and only the items tell that they
// are none of the elements it speaks of.
#include <gtest/gtest.h>

#include "ebb/formats/dcp/dcp.h"
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
  const Catalog& catalog() const override { return catalog_; }
  Result<> read_chunk(const TensorEntry&, const Chunk&, std::uint64_t,
                      std::span<std::byte> into) const override {
    std::ranges::fill(into, std::byte{0});
    return {};
  }

 private:
  Catalog catalog_;
};

std::shared_ptr<MemoryTree> written() {
  const Zeros content;
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

// Puts `archive` where the item of a state lay, and its length into the index.
void replace_item(MemoryTree& tree, std::string_view state, const ByteVector& archive) {
  const auto checkpoint = formats::describe_dcp(std::make_shared<MemoryTree>(tree));
  EBB_CHECK(checkpoint.has_value());
  for (const TensorEntry& tensor : (*checkpoint)->catalog().tensors) {
    if (tensor.state != state) continue;
    const Chunk& chunk = tensor.chunks.front();
    EBB_CHECK(archive.size() <= chunk.length);
    ByteVector& file = tree.bytes_of((*checkpoint)->catalog().files[chunk.file].name);
    std::ranges::copy(archive, file.begin() + static_cast<std::ptrdiff_t>(chunk.offset));
    ByteVector& index = tree.bytes_of(".metadata");
    std::string text(formats::text_of(index));
    const std::size_t at = text.find(spelled(chunk.length));
    EBB_CHECK(at != std::string::npos);
    text.replace(at, 3, spelled(archive.size()));
    std::ranges::transform(text, index.begin(), [](char c) { return static_cast<std::byte>(c); });
  }
}

ByteVector quantized(std::string_view module, std::string_view name, const Shape& shape) {
  formats::PickleWriter pickle;
  test_support::wrapper_subclass(pickle, module, name, shape, [&] {
    pickle.dict([&] {
      pickle.string("codes");
      test_support::plain_tensor(pickle, "0", {500});
    });
  });
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
