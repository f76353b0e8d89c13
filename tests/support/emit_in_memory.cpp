#include "tests/support/emit_in_memory.h"

#include <algorithm>

#include "formats/core/crc32c.h"

namespace test_support {
namespace {

using formats::ByteVector;
using formats::Result;

class Writer {
 public:
  explicit Writer(const formats::Checkpoint& content) : content_(content) {}

  Result<ByteVector> file(const formats::OutputFile& file) {
    ByteVector bytes(file.size);
    std::uint32_t crc = 0;
    for (const formats::Fragment& fragment : file.fragments) {
      TRY_ASSIGN(const ByteVector data, fragment_bytes(fragment, crc));
      crc = formats::crc32_zip(0, data);
      CHECK(fragment.offset + data.size() <= bytes.size());
      std::copy(data.begin(), data.end(),
                bytes.begin() + static_cast<std::ptrdiff_t>(fragment.offset));
    }
    return bytes;
  }

 private:
  Result<ByteVector> fragment_bytes(const formats::Fragment& fragment, std::uint32_t crc) {
    if (const auto* literal = std::get_if<ByteVector>(&fragment.data)) return *literal;
    if (const auto* sealed = std::get_if<formats::Sealed>(&fragment.data)) {
      ByteVector bytes = sealed->bytes(crc);
      CHECK(bytes.size() == sealed->size);
      return bytes;
    }
    const auto& wanted = std::get<formats::TensorData>(fragment.data);
    const formats::TensorEntry& tensor = content_.catalog().tensors[wanted.tensor];
    TRY_ASSIGN(const ByteVector all, elements_of(content_, tensor));
    const std::uint32_t width = formats::bytes_of(tensor.dtype);
    ByteVector part(formats::volume(wanted.box.extent) * width);
    formats::copy_region(wanted.box, {formats::whole(tensor.shape), all}, {wanted.box, part},
                         width);
    return part;
  }

  const formats::Checkpoint& content_;
};

}  // namespace

Result<std::shared_ptr<MemoryTree>> carry_out(const formats::EmitPlan& plan,
                                              const formats::Checkpoint& content,
                                              std::string root) {
  auto tree = std::make_shared<MemoryTree>(std::move(root));
  for (const auto* files : {&plan.files, &plan.commit_files}) {
    for (const formats::OutputFile& file : *files) {
      TRY_ASSIGN(ByteVector bytes, Writer(content).file(file));
      tree->add(file.name, std::move(bytes));
    }
  }
  return tree;
}

Result<ByteVector> elements_of(const formats::Checkpoint& checkpoint,
                               const formats::TensorEntry& tensor) {
  const std::uint32_t width = formats::bytes_of(tensor.dtype);
  const formats::Box all = formats::whole(tensor.shape);
  ByteVector whole(formats::volume(tensor.shape) * width);
  for (const formats::Chunk& chunk : tensor.chunks) {
    ByteVector part(formats::volume(chunk.box.extent) * width);
    TRY(checkpoint.read(tensor, chunk, 0, part));
    formats::copy_region(chunk.box, {chunk.box, part}, {all, whole}, width);
  }
  return whole;
}

}  // namespace test_support
