#include "tests/support/emit_in_memory.h"

#include <algorithm>

#include "ebb/formats/catalog/range_crcs.h"
#include "ebb/formats/core/compress.h"
#include "ebb/formats/core/float_cast.h"

namespace ebb::test_support {
namespace {

class Writer {
 public:
  Writer(const EmitPlan& plan, const Checkpoint& content) : content_(content), blocks_(plan) {}

  Result<ByteVector> file(const OutputFile& file) {
    ByteVector bytes(file.size);
    formats::RangeCrcs crcs(file);
    std::uint64_t end = 0;
    for (const Fragment& fragment : file.fragments) {
      EBB_CHECK(fragment.offset >= end);
      crcs.feed_zeros(fragment.offset - end);
      EBB_TRY_ASSIGN(const ByteVector data, fragment_bytes(fragment, crcs));
      crcs.feed(data);
      blocks_.add(file, blocks_.shares(file, fragment.offset, data));
      end = fragment.offset + data.size();
      EBB_CHECK(end <= bytes.size());
      std::copy(data.begin(), data.end(),
                bytes.begin() + static_cast<std::ptrdiff_t>(fragment.offset));
    }
    return bytes;
  }

 private:
  Result<ByteVector> fragment_bytes(const Fragment& fragment, const formats::RangeCrcs& crcs) {
    if (const auto* literal = std::get_if<ByteVector>(&fragment.data)) return *literal;
    if (const auto* sealed = std::get_if<formats::Sealed>(&fragment.data)) {
      ByteVector bytes = sealed->blocks_of ? sealed->bytes(blocks_.of(*sealed->blocks_of))
                                           : sealed->bytes(crcs.of(sealed->over));
      EBB_CHECK(bytes.size() == sealed->size);
      return bytes;
    }
    const auto& wanted = std::get<TensorData>(fragment.data);
    const TensorEntry& tensor = content_.catalog().tensors[wanted.tensor];
    EBB_TRY_ASSIGN(const ByteVector all, elements_of(content_, tensor));
    const std::uint32_t width = formats::bytes_of(tensor.dtype);
    ByteVector part(formats::volume(wanted.box.extent) * width);
    formats::copy_region(wanted.box, {formats::whole(tensor.shape), all}, {wanted.box, part},
                         width);
    const DType dtype = written_dtype(wanted, content_.catalog());
    if (dtype == tensor.dtype) return part;
    ByteVector cast(part.size() / width * formats::bytes_of(dtype));
    formats::cast_floats(tensor.dtype, part, dtype, cast);
    return cast;
  }

  const Checkpoint& content_;
  formats::BlockCrcs blocks_;
};

}  // namespace

namespace {

// Each item packed, the last one first: nothing lies where it was planned.
Result<ByteVector> packed(const OutputFile& file, ByteView plain,
                          const formats::Compression& compression, std::vector<FileRange>& places) {
  EBB_TRY_ASSIGN(auto writer, formats::ZstdWriter::make(compression.level));
  places.resize(file.items.size());
  ByteVector bytes(file.head ? file.head->size : 0);
  for (std::size_t i = file.items.size(); i-- > 0;) {
    const ByteView item = plain.subspan(file.items[i].place.offset, file.items[i].place.size);
    const std::size_t before = bytes.size();
    std::uint64_t size = item.size();
    if (file.items[i].pack == formats::Pack::as_it_is) {
      formats::append_bytes(bytes, item);
    } else {
      bytes.resize(before + formats::ZstdWriter::bound(item.size()));
      EBB_TRY(writer.begin(item.size(), std::span(bytes).subspan(before)));
      EBB_TRY(writer.feed(item));
      EBB_TRY_ASSIGN(size, writer.end());
      bytes.resize(before + size);
    }
    places[i] = {before, size};
  }
  if (file.head) std::ranges::copy(file.head->bytes(places), bytes.begin());
  return bytes;
}

}  // namespace

Result<std::shared_ptr<MemoryTree>> carry_out(const EmitPlan& plan, const Checkpoint& content,
                                              std::string root) {
  auto tree = std::make_shared<MemoryTree>(std::move(root));
  Writer writer(plan, content);
  formats::ItemPlaces places(plan.files.size());
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    const OutputFile& file = plan.files[i];
    EBB_TRY_ASSIGN(ByteVector bytes, writer.file(file));
    if (plan.packing) {
      EBB_TRY_ASSIGN(bytes, packed(file, bytes, plan.packing->compression, places[i]));
    }
    tree->add(file.name, std::move(bytes));
  }
  const auto commit_files = plan.packing ? plan.packing->commit_files(places) : plan.commit_files;
  for (const OutputFile& file : commit_files) {
    EBB_TRY_ASSIGN(ByteVector bytes, writer.file(file));
    tree->add(file.name, std::move(bytes));
  }
  return tree;
}

Result<ByteVector> elements_of(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  const std::uint32_t width = formats::bytes_of(tensor.dtype);
  const Box all = formats::whole(tensor.shape);
  ByteVector whole(formats::volume(tensor.shape) * width);
  for (const Chunk& chunk : tensor.chunks) {
    ByteVector part(formats::volume(chunk.box.extent) * width);
    EBB_TRY(checkpoint.read(tensor, chunk, 0, part));
    formats::copy_region(chunk.box, {chunk.box, part}, {all, whole}, width);
  }
  return whole;
}

}  // namespace ebb::test_support
