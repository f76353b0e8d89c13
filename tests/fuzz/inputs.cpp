#include "tests/fuzz/inputs.h"

#include <algorithm>
#include <optional>

#include "formats/catalog/catalog.h"
#include "formats/core/units.h"
#include "formats/registry.h"
#include "tests/support/archives.h"

namespace fuzz {
namespace {

using formats::ByteVector;
using formats::ByteView;
using formats::Catalog;
using formats::Checkpoint;
using formats::Chunk;
using formats::Result;
using formats::TensorEntry;

constexpr std::size_t kMaxFiles = 16;
constexpr std::uint64_t kMaxRead = 1 << 20;  // of all chunks of one input
constexpr std::string_view kRaw = "\n==> ";
constexpr std::string_view kPickled = "\n=P> ";

// Passes on to a tree and aborts when a decoder asks for a file that the tree did not list.
class WatchedTree : public formats::SourceTree {
 public:
  explicit WatchedTree(std::shared_ptr<const formats::SourceTree> tree) : tree_(std::move(tree)) {}
  std::string_view root() const override { return tree_->root(); }
  const std::vector<Entry>& entries() const override { return tree_->entries(); }
  Result<std::shared_ptr<const formats::ByteSource>> open(std::string_view name) const override {
    CHECK(tree_->find(name) != nullptr);
    return tree_->open(name);
  }

 private:
  std::shared_ptr<const formats::SourceTree> tree_;
};

std::uint64_t decoded_bytes(const TensorEntry& tensor, const Chunk& chunk) {
  const auto elems = formats::checked_volume(chunk.box.extent);
  const auto bits =
      elems ? formats::checked_mul(*elems, formats::bits_of(tensor.dtype)) : std::nullopt;
  return bits ? formats::div_ceil(*bits, std::uint64_t{8}) : kMaxRead + 1;
}

void check_places(const Catalog& catalog) {
  for (const TensorEntry& tensor : catalog.tensors)
    for (const Chunk& chunk : tensor.chunks) {
      CHECK(chunk.file < catalog.files.size());
      const auto end = formats::checked_add(chunk.offset, chunk.length);
      CHECK(chunk.length == 0 || (end && *end <= catalog.files[chunk.file].size));
    }
}

void read_chunk(const Checkpoint& checkpoint, const TensorEntry& tensor, const Chunk& chunk,
                std::uint64_t bytes) {
  ByteVector whole(static_cast<std::size_t>(bytes));
  ByteVector parts(whole.size());
  const bool read = checkpoint.read(tensor, chunk, 0, whole).has_value();
  const std::size_t cut = whole.size() / 3;
  const std::span<std::byte> into(parts);
  const bool in_parts = checkpoint.read(tensor, chunk, 0, into.first(cut)).has_value() &&
                        checkpoint.read(tensor, chunk, cut, into.subspan(cut)).has_value();
  if (read && in_parts) CHECK(whole == parts);
}

void read_chunks(const Checkpoint& checkpoint) {
  std::uint64_t left = kMaxRead;
  for (const TensorEntry& tensor : checkpoint.catalog().tensors)
    for (const Chunk& chunk : tensor.chunks) {
      const std::uint64_t bytes = decoded_bytes(tensor, chunk);
      if (bytes > left) return;
      left -= bytes;
      read_chunk(checkpoint, tensor, chunk, bytes);
    }
}

}  // namespace

std::shared_ptr<test_support::MemoryTree> tree_of(ByteView input, std::string first) {
  auto tree = std::make_shared<test_support::MemoryTree>("t");
  std::string_view rest = formats::text_of(input);
  std::string name = std::move(first);
  bool pickled = false;
  for (std::size_t files = 0; files < kMaxFiles; ++files) {
    const std::size_t end = std::min(rest.find(kRaw), rest.find(kPickled));
    const ByteView bytes = formats::view_of(rest.substr(0, end));
    if (!name.empty() && tree->find(name) == nullptr)
      tree->add(name, pickled ? test_support::archive_around(bytes)
                              : ByteVector(bytes.begin(), bytes.end()));
    if (end == std::string_view::npos) break;
    pickled = rest.substr(end, kPickled.size()) == kPickled;
    rest.remove_prefix(end + kRaw.size());
    const std::size_t line = std::min(rest.find('\n'), rest.size());
    name = rest.substr(0, line);
    rest.remove_prefix(std::min(line + 1, rest.size()));
  }
  return tree;
}

void look_at(std::shared_ptr<const formats::SourceTree> tree) {
  const auto checkpoint = formats::describe(std::make_shared<WatchedTree>(std::move(tree)));
  if (!checkpoint) {
    CHECK(!checkpoint.error().message.empty());
    return;
  }
  const Catalog& catalog = (*checkpoint)->catalog();
  check_places(catalog);
  for (const TensorEntry& tensor : catalog.tensors) CHECK(label_of(tensor).size() < (1u << 20));
  for (const formats::ValueEntry& value : catalog.values) to_json(value.value);
  if (prove_coverage(catalog)) read_chunks(**checkpoint);
}

}  // namespace fuzz
