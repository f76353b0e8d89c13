#include "tests/fuzz/inputs.h"

#include <algorithm>
#include <optional>
#include <set>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/torch/tensor.h"
#include "tests/support/archives.h"

namespace ebb::fuzz {
namespace {

constexpr std::size_t kMaxFiles = 64;
constexpr std::uint64_t kMaxRead = 1 << 20;  // of all chunks of one input
constexpr std::string_view kRaw = "\n==> ";
constexpr std::string_view kPickled = "\n=P> ";
constexpr std::string_view kZeros = "\n=0> ";
constexpr std::uint64_t kMaxZeros = 1 << 20;  // of one file
constexpr std::uint64_t kMaxStorages = 1 << 16;

// Aborts when a decoder asks for a file that the tree did not list.
class WatchedTree : public test_support::ForwardingTree {
 public:
  using ForwardingTree::ForwardingTree;
  Result<std::shared_ptr<const formats::ByteSource>> open(std::string_view name) const override {
    EBB_CHECK(find(name) != nullptr);
    return ForwardingTree::open(name);
  }
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
      EBB_CHECK(chunk.file < catalog.files.size());
      const auto end = formats::checked_add(chunk.offset, chunk.length);
      EBB_CHECK(chunk.length == 0 || (end && *end <= catalog.files[chunk.file].size));
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
  if (read && in_parts) EBB_CHECK(whole == parts);
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

bool is_plain(std::string_view key) {
  return !key.empty() && key.size() < 32 &&
         std::ranges::all_of(key, [](char c) { return c >= '0' && c <= 'z'; });
}

// The archive that torch.save would have made: a record for each storage that the pickle names, of
// the size it says, so that what reads tensors is reached.
ByteVector archive_fitting(ByteView pickle) {
  const std::string text(formats::text_of(pickle));
  std::vector<test_support::ArchiveRecord> records = {
      {"a/data.pkl", text}, {"a/byteorder", "little"}, {"a/version", "3\n"}};
  const auto graph = formats::PickleGraph::parse(ByteVector(pickle.begin(), pickle.end()), "m");
  std::set<std::string> keys;
  std::uint64_t left = kMaxStorages;
  for (formats::PickleId id = 0; graph && id < graph->size(); ++id) {
    if (!graph->is(id, formats::PickleKind::persistent) || !is_torch_storage(*graph, id)) continue;
    const auto storage = torch_storage(*graph, id);
    if (!storage || storage->bytes > left || !is_plain(storage->key)) continue;
    if (!keys.insert(storage->key).second) continue;
    left -= storage->bytes;
    records.push_back({"a/data/" + storage->key, std::string(storage->bytes, '\x01')});
  }
  return test_support::archive_of(records);
}

ByteVector zeros(ByteView digits) {
  std::uint64_t size = 0;
  for (const char c : formats::text_of(digits))
    if (c >= '0' && c <= '9' && size < kMaxZeros)
      size = size * 10 + static_cast<std::uint64_t>(c - '0');
  return ByteVector(static_cast<std::size_t>(std::min(size, kMaxZeros)));
}

}  // namespace

std::shared_ptr<test_support::MemoryTree> tree_of(ByteView input, std::string first) {
  auto tree = std::make_shared<test_support::MemoryTree>("t");
  std::string_view rest = formats::text_of(input);
  std::string name = std::move(first);
  std::string_view mark = kRaw;
  for (std::size_t files = 0; files < kMaxFiles; ++files) {
    const std::size_t end = std::min({rest.find(kRaw), rest.find(kPickled), rest.find(kZeros)});
    const ByteView bytes = formats::view_of(rest.substr(0, end));
    if (!name.empty() && tree->find(name) == nullptr)
      tree->add(name, mark == kPickled ? archive_fitting(bytes)
                      : mark == kZeros ? zeros(bytes)
                                       : ByteVector(bytes.begin(), bytes.end()));
    if (end == std::string_view::npos) break;
    mark = rest.substr(end, kRaw.size());
    rest.remove_prefix(end + mark.size());
    const std::size_t line = std::min(rest.find('\n'), rest.size());
    name = rest.substr(0, line);
    rest.remove_prefix(std::min(line + 1, rest.size()));
  }
  return tree;
}

bool look_at(std::shared_ptr<const formats::SourceTree> tree) {
  const auto checkpoint = formats::describe(std::make_shared<WatchedTree>(std::move(tree)));
  if (!checkpoint) {
    EBB_CHECK(!checkpoint.error().message.empty());
    return false;
  }
  const Catalog& catalog = (*checkpoint)->catalog();
  check_places(catalog);
  for (const TensorEntry& tensor : catalog.tensors) EBB_CHECK(label_of(tensor).size() < (1u << 20));
  for (const ValueEntry& value : catalog.values) to_json(value.value);
  if (prove_coverage(catalog)) read_chunks(**checkpoint);
  return true;
}

}  // namespace ebb::fuzz
