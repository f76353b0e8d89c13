// Every small fixture, cut off and with flipped bits, file by file: read as before, or refused;
// never something else. Places are sampled evenly, the same ones each time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>

#include "formats/catalog/catalog.h"
#include "formats/core/sha256.h"
#include "formats/registry.h"
#include "tests/support/source_tree.h"

namespace {

namespace fs = std::filesystem;
using formats::ByteVector;
using test_support::MemoryTree;

constexpr std::size_t kCuts = 16;   // of one file
constexpr std::size_t kFlips = 24;  // of one file
constexpr std::uint64_t kMaxRead = 1 << 20;

// Passes a tree on and fails the test when a file is asked for that it did not list.
class WatchedTree : public formats::SourceTree {
 public:
  explicit WatchedTree(std::shared_ptr<const SourceTree> tree) : tree_(std::move(tree)) {}
  std::string_view root() const override { return tree_->root(); }
  const std::vector<Entry>& entries() const override { return tree_->entries(); }
  formats::Result<std::shared_ptr<const formats::ByteSource>> open(
      std::string_view name) const override {
    EXPECT_NE(tree_->find(name), nullptr) << "not in the checkpoint: " << name;
    return tree_->open(name);
  }

 private:
  std::shared_ptr<const SourceTree> tree_;
};

// Everything that can be read as one text; an error where something is refused.
formats::Result<std::string> content_of(std::shared_ptr<const formats::SourceTree> tree) {
  TRY_ASSIGN(const auto checkpoint,
             formats::describe(std::make_shared<WatchedTree>(std::move(tree))));
  const formats::Catalog& catalog = checkpoint->catalog();
  TRY(prove_coverage(catalog));
  std::string text;
  for (const formats::TensorEntry& tensor : catalog.tensors) {
    text +=
        label_of(tensor) + formats::to_string(tensor.shape) + std::string(name_of(tensor.dtype));
    for (const formats::Chunk& chunk : tensor.chunks) {
      const auto elems = formats::checked_volume(chunk.box.extent).value_or(kMaxRead);
      const auto bytes = std::min(elems, kMaxRead) * formats::bytes_of(tensor.dtype);
      if (bytes > kMaxRead)
        return formats::Error{formats::Code::limit, "larger than any fixture", {}};
      ByteVector into(bytes);
      TRY(checkpoint->read(tensor, chunk, 0, into));
      text += to_string(chunk.box) + formats::sha256_hex(into);
    }
  }
  for (const formats::ValueEntry& entry : catalog.values) text += entry.key + to_json(entry.value);
  return text;
}

// Not HDF5, which needs the confined reader, and not Ebb's store, which falls back to the
// generation before; both have tests of their own that damage them.
std::vector<std::string> small_fixtures() {
  std::vector<std::string> names;
  for (const char* family : {"dcp", "deepspeed", "megatron", "safetensors", "torch"})
    for (const auto& entry : fs::directory_iterator(fs::path(EBB_FIXTURES) / family))
      if (entry.is_directory() && fs::exists(entry.path() / "data"))
        names.push_back(std::string(family) + "/" + entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::shared_ptr<MemoryTree> fixture(const std::string& name) {
  return test_support::load_tree(fs::path(EBB_FIXTURES) / name / "data");
}

std::uint64_t bytes_of(const MemoryTree& tree) {
  std::uint64_t bytes = 0;
  for (const auto& entry : tree.entries()) bytes += entry.size;
  return bytes;
}

// Whether a flipped bit of this file must be noticed: of DCP the payloads have checksums, where
// they are torch.save archives; safetensors, text files and torch's old stream have none.
bool is_checked(const std::string& fixture, std::string_view file) {
  if (fixture == "dcp/safetensors_w2" || fixture == "torch/legacy_stream") return false;
  return file.ends_with(".distcp") || file.ends_with(".pt");
}

std::string test_name(std::string fixture) {
  for (char& c : fixture)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return fixture;
}

class Damage : public testing::TestWithParam<std::string> {};

TEST_P(Damage, CutOffFilesAreReadAsBeforeOrRefused) {
  const auto whole = fixture(GetParam());
  const auto before = content_of(whole);
  if (!before || bytes_of(*whole) > 100000) GTEST_SKIP() << "refused as it is, or large";
  for (const auto& entry : whole->entries()) {
    const std::size_t step = std::max<std::size_t>(1, entry.size / kCuts);
    for (std::size_t length = 0; length < entry.size; length += step) {
      const auto cut = fixture(GetParam());
      const ByteVector bytes = cut->bytes_of(entry.name);
      auto tree = std::make_shared<MemoryTree>("t");
      for (const auto& other : cut->entries())
        tree->add(other.name, other.name == entry.name
                                  ? ByteVector(bytes.begin(),
                                               bytes.begin() + static_cast<std::ptrdiff_t>(length))
                                  : cut->bytes_of(other.name));
      const auto after = content_of(tree);
      EXPECT_TRUE(!after || *after == *before) << entry.name << " cut at " << length;
      if (!after) {
        EXPECT_EQ(after.error().message.find('\n'), std::string::npos);
      }
    }
  }
}

TEST_P(Damage, FlippedBitsAreNoticedWhereThereAreChecksums) {
  const auto tree = fixture(GetParam());
  const auto before = content_of(tree);
  if (!before || bytes_of(*tree) > 100000) GTEST_SKIP() << "refused as it is, or large";
  for (const auto& entry : std::vector(tree->entries())) {
    ByteVector& bytes = tree->bytes_of(entry.name);
    const std::size_t step = std::max<std::size_t>(1, bytes.size() / kFlips);
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      const auto bit = std::byte{1} << (at / step % 8);
      bytes[at] ^= bit;
      const auto after = content_of(tree);
      if (is_checked(GetParam(), entry.name)) {
        EXPECT_TRUE(!after || *after == *before) << entry.name << ": bit of byte " << at;
      }
      bytes[at] ^= bit;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Damage, testing::ValuesIn(small_fixtures()),
                         [](const auto& param) { return test_name(param.param); });

}  // namespace
