// Every small fixture, cut off and with flipped bits, file by file: read as before, or refused;
// never something else. Short files are cut at every length; long ones at every length near a place
// where a piece begins or ends, and at evenly spread ones, the same each time.
// With sanitizers each file of a fixture with many is cut at a share of them, its neighbour at
// another.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <locale>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/sha256.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/hdf5/superblock.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test_support::MemoryTree;

constexpr std::uint64_t kSmall = 150000;  // bytes of a fixture
constexpr std::size_t kAllCuts = 400;     // files up to here are cut at every length
constexpr std::size_t kSpreadCuts = 48;   // of one longer file, beside those near its pieces
constexpr std::size_t kPieces = 64;       // of one file
constexpr std::size_t kFlips = 24;        // of one file
constexpr std::uint64_t kMaxRead = 1 << 20;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kCuts = 1000;  // of one fixture
#else
constexpr std::size_t kCuts = std::numeric_limits<std::size_t>::max();
#endif

// A tree with one file replaced. Fails the test when a file is asked for that it does not list.
class ChangedTree : public test_support::RememberingTree {
 public:
  ChangedTree(const SourceTree& tree, std::string_view name, ByteVector bytes)
      : tree_(tree), entries_(tree.entries()), name_(name), bytes_(std::move(bytes)) {
    for (Entry& entry : entries_)
      if (entry.name == name_) entry.size = bytes_.size();
  }
  std::string_view root() const override { return tree_.root(); }
  const std::vector<Entry>& entries() const override { return entries_; }
  Result<std::shared_ptr<const formats::ByteSource>> open(std::string_view name) const override {
    EXPECT_NE(tree_.find(name), nullptr) << "not in the checkpoint: " << name;
    if (name != name_) return tree_.open(name);
    return std::shared_ptr<const formats::ByteSource>(
        std::make_shared<formats::MemorySource>("t/" + name_, bytes_));
  }

 private:
  const SourceTree& tree_;  // outlives this one
  std::vector<Entry> entries_;
  std::string name_;
  ByteVector bytes_;
};

// The first bytes of a file.
class Beginning : public formats::ByteSource {
 public:
  Beginning(const ByteSource& file, std::uint64_t size) : file_(file), size_(size) {}
  std::uint64_t size() const override { return size_; }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override {
    if (offset > size_ || into.size() > size_ - offset)
      return Error{Code::corrupt, "a read past the end"};
    return file_.read(offset, into);
  }
  std::string_view name() const override { return file_.name(); }

 private:
  const ByteSource& file_;  // outlives this one
  std::uint64_t size_;
};

// Everything that can be read as one text; an error where something is refused.
Result<std::string> content_of(std::shared_ptr<const formats::SourceTree> tree) {
  EBB_TRY_ASSIGN(const auto checkpoint, formats::describe(std::move(tree)));
  const Catalog& catalog = checkpoint->catalog();
  EBB_TRY(prove_coverage(catalog));
  std::string text;
  for (const TensorEntry& tensor : catalog.tensors) {
    text +=
        label_of(tensor) + formats::to_string(tensor.shape) + std::string(name_of(tensor.dtype));
    for (const Chunk& chunk : tensor.chunks) {
      const auto elems = formats::checked_volume(chunk.box.extent).value_or(kMaxRead);
      const auto bytes = std::min(elems, kMaxRead) * formats::bytes_of(tensor.dtype);
      if (bytes > kMaxRead) return Error{Code::limit, "larger than any fixture"};
      ByteVector into(bytes);
      EBB_TRY(checkpoint->read(tensor, chunk, 0, into));
      text += to_string(chunk.box) + formats::sha256_hex(into);
    }
  }
  for (const ValueEntry& entry : catalog.values) text += entry.key + to_json(entry.value);
  return text;
}

std::vector<std::string> fixtures_of(std::initializer_list<const char*> families) {
  std::vector<std::string> names;
  for (const char* family : families)
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

// Where the pieces of a file begin and end, as far as its bytes show it: the records and directory
// entries of zips, the lines of text.
std::vector<std::size_t> pieces_of(ByteView file) {
  constexpr std::array<std::string_view, 5> kMarks = {"PK\1\2", "PK\3\4", "PK\5\6", "PK\6\6", "\n"};
  const std::string_view text = formats::text_of(file);
  std::vector<std::size_t> places;
  for (const std::string_view mark : kMarks)
    for (auto at = text.find(mark); at != text.npos && places.size() < kPieces;
         at = text.find(mark, at + 1))
      places.push_back(at);
  return places;
}

std::set<std::size_t> cuts_of(ByteView file, const Catalog* catalog, std::string_view name) {
  std::set<std::size_t> cuts;
  const auto add_spread = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) cuts.insert(i * file.size() / count);
  };
  if (file.size() <= kAllCuts) {
    add_spread(file.size());
    return cuts;
  }
  std::vector<std::size_t> places = pieces_of(file);
  places.insert(places.end(), {8, file.size() - 1});
  if (catalog != nullptr)
    for (const TensorEntry& tensor : catalog->tensors)
      for (const Chunk& chunk : tensor.chunks)
        if (catalog->files[chunk.file].name == name && places.size() < 2 * kPieces) {
          places.push_back(static_cast<std::size_t>(chunk.offset));
          places.push_back(static_cast<std::size_t>(chunk.offset + chunk.length));
        }
  for (const std::size_t place : places)
    for (const std::size_t near : {place - 1, place, place + 1})
      if (near < file.size()) cuts.insert(near);
  add_spread(kSpreadCuts);
  return cuts;
}

// Each file of the tree and where it is cut.
std::vector<std::pair<std::string, std::vector<std::size_t>>> cuts_of(MemoryTree& tree,
                                                                      const Catalog* catalog) {
  std::vector<std::pair<std::string, std::vector<std::size_t>>> files;
  std::size_t count = 0;
  for (const auto& entry : tree.entries()) {
    const auto cuts = cuts_of(tree.bytes_of(entry.name), catalog, entry.name);
    files.emplace_back(entry.name, std::vector<std::size_t>(cuts.begin(), cuts.end()));
    count += cuts.size();
  }
  const std::size_t share = formats::div_ceil(count, kCuts);
  std::size_t place = 0;  // of the first file, whose neighbours begin one further
  for (auto& [name, cuts] : files) {
    std::size_t at = place++;
    std::erase_if(cuts, [&](std::size_t) { return at++ % share != 0; });
  }
  return files;
}

TEST_P(Damage, CutOffFilesAreReadAsBeforeOrRefused) {
  const auto whole = fixture(GetParam());
  if (bytes_of(*whole) > kSmall) GTEST_SKIP() << "large";
  const auto before = content_of(whole);  // an error: a fixture that is damaged as it is
  const auto checkpoint = formats::describe(whole);
  const Catalog* catalog = checkpoint ? &(*checkpoint)->catalog() : nullptr;
  for (const auto& [name, cuts] : cuts_of(*whole, catalog)) {
    const ByteVector& bytes = whole->bytes_of(name);
    for (const std::size_t length : cuts) {
      const auto after = content_of(std::make_shared<ChangedTree>(
          *whole, name, ByteVector(bytes.begin(), bytes.begin() + std::ptrdiff_t(length))));
      ASSERT_TRUE(!after || (before && *after == *before)) << name << " cut at " << length;
      if (!after) {
        ASSERT_EQ(after.error().message.find('\n'), std::string::npos);
      }
    }
  }
}

TEST_P(Damage, FlippedBitsAreNoticedWhereThereAreChecksums) {
  const auto tree = fixture(GetParam());
  if (bytes_of(*tree) > kSmall) GTEST_SKIP() << "large";
  const auto before = content_of(tree);
  for (const auto& entry : tree->entries()) {
    ByteVector bytes = tree->bytes_of(entry.name);
    const std::size_t step = std::max<std::size_t>(1, bytes.size() / kFlips);
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      const auto bit = std::byte{1} << (at / step % 8);
      bytes[at] ^= bit;
      const auto after = content_of(std::make_shared<ChangedTree>(*tree, entry.name, bytes));
      if (before && is_checked(GetParam(), entry.name)) {
        EXPECT_TRUE(!after || *after == *before) << entry.name << ": bit of byte " << at;
      }
      bytes[at] ^= bit;
    }
  }
}

// libhdf5 sees no file that is not whole: its superblock says where it ends.
TEST(DamageHdf5, EveryPrefixOfEveryFixtureIsRefused) {
  for (const std::string& name : fixtures_of({"hdf5"})) {
    const auto tree = fixture(name);
    for (const auto& entry : tree->entries()) {
      const auto source = tree->open(entry.name);
      for (std::size_t length = 0; length < entry.size; ++length) {
        ASSERT_FALSE(formats::hdf5::read_superblock(Beginning(**source, length)))
            << name << "/" << entry.name << " cut at " << length;
      }
    }
  }
}

class DecimalCommas : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST_P(Damage, C07ALocaleWithDecimalCommasIsNone) {
  const auto before = content_of(fixture(GetParam()));
  const std::locale usual =
      std::locale::global(std::locale(std::locale::classic(), new DecimalCommas));
  const auto after = content_of(fixture(GetParam()));
  std::locale::global(usual);
  ASSERT_EQ(after.has_value(), before.has_value());
  EXPECT_EQ(after ? *after : after.error().message, before ? *before : before.error().message);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Damage,
                         testing::ValuesIn(fixtures_of({"dcp", "deepspeed", "ebb", "folders",
                                                        "quantized", "megatron", "safetensors",
                                                        "torch"})),
                         [](const auto& param) { return test_name(param.param); });

}  // namespace

}  // namespace ebb
