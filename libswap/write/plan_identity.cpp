#include "ebb/formats/core/sha256.h"
#include "ebb/libswap/write/plan_check.h"

namespace ebb::libswap {

namespace {

// Everything with its length in front, so that no two plans have the same bytes.
class Hash {
 public:
  void number(std::uint64_t value) {
    formats::append_le(pending_, value);
    if (pending_.size() >= kFlush) flush();
  }
  void text(std::string_view text) { bytes(formats::view_of(text)); }
  void bytes(ByteView bytes) {
    number(bytes.size());
    flush();
    sha_.update(bytes);
  }
  void box(const Box& box) {
    number(box.offset.size());
    for (const std::uint64_t offset : box.offset) number(offset);
    for (const std::uint64_t extent : box.extent) number(extent);
  }
  std::string hex() {
    flush();
    return sha_.hex();
  }

 private:
  static constexpr std::size_t kFlush = 64 << 10;
  void flush() {
    sha_.update(pending_);
    pending_.clear();
  }
  formats::Sha256 sha_;
  ByteVector pending_;
};

void add(Hash& hash, const FileRange& range) {
  hash.number(range.offset);
  hash.number(range.size);
}

void add(Hash& hash, const Fragment& fragment) {
  hash.number(fragment.offset);
  hash.number(fragment.data.index());
  if (const auto* bytes = std::get_if<ByteVector>(&fragment.data)) {
    hash.bytes(*bytes);
  } else if (const auto* data = std::get_if<TensorData>(&fragment.data)) {
    hash.number(data->tensor);
    hash.box(data->box);
    hash.number(data->as ? 1 + static_cast<std::uint64_t>(*data->as) : 0);
  } else {
    const auto& sealed = std::get<formats::Sealed>(fragment.data);
    hash.number(sealed.size);
    hash.number(sealed.over.size());
    for (const FileRange& range : sealed.over) add(hash, range);
    hash.number(sealed.blocks_of ? 1 + std::uint64_t{*sealed.blocks_of} : 0);
  }
}

void add(Hash& hash, const TensorEntry& tensor) {
  hash.text(tensor.name);
  hash.text(tensor.state);
  hash.number(static_cast<std::uint64_t>(tensor.dtype));
  hash.number(tensor.chunks.size());
  for (const Chunk& chunk : tensor.chunks) {
    hash.box(chunk.box);
    hash.number(chunk.file);
    hash.number(chunk.offset);
    hash.number(chunk.length);
    hash.number(chunk.tag);
  }
}

}  // namespace

std::string identity_of(const EmitPlan& plan, const Catalog& content, std::uint64_t segment_bytes) {
  Hash hash;
  hash.number(segment_bytes);
  for (const auto* files : {&plan.files, &plan.commit_files}) {
    hash.number(files->size());
    for (const OutputFile& file : *files) {
      hash.text(file.name);
      hash.number(file.size);
      const formats::CheckedBlocks blocks = file.blocks.value_or(formats::CheckedBlocks{0, 0, 0});
      for (const std::uint64_t number : {blocks.first, blocks.bytes, blocks.count})
        hash.number(number);
      hash.number(file.fragments.size());
      for (const Fragment& fragment : file.fragments) add(hash, fragment);
      hash.number(file.items.size());
      std::vector<FileRange> places;
      for (const formats::PackedItem& item : file.items) {
        add(hash, places.emplace_back(item.place));
        hash.number(static_cast<std::uint64_t>(item.pack));
      }
      hash.number(file.head ? 1 : 0);
      if (file.head) hash.bytes(file.head->bytes(places));
    }
  }
  hash.number(plan.packing ? 1 + static_cast<std::uint64_t>(plan.packing->compression.codec) : 0);
  if (plan.packing) hash.number(static_cast<std::uint64_t>(plan.packing->compression.level));
  hash.number(plan.derived.size());
  for (const formats::Derived& derived : plan.derived) {
    hash.number(derived.tensor);
    hash.number(derived.from);
  }
  hash.number(content.tensors.size());
  for (const TensorEntry& tensor : content.tensors) add(hash, tensor);
  return hash.hex();
}

}  // namespace ebb::libswap
