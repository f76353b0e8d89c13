#include "ebb/formats/conversion/content_view.h"

#include <algorithm>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/sha256.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {

namespace {

constexpr std::uint64_t kElemsAtOnce = 128 * KiB;

}  // namespace

ContentView::ContentView(const Checkpoint& source, Catalog content, std::vector<MadeOf> made_of)
    : source_(source), content_(std::move(content)), made_of_(std::move(made_of)) {
  EBB_CHECK(made_of_.size() == content_.tensors.size());
  for (std::size_t i = 0; i < made_of_.size(); ++i) {
    if (made_of_[i].constant) {
      content_.tensors[i].chunks = {Chunk{.box = whole(content_.tensors[i].shape)}};
      continue;
    }
    const TensorEntry& from = source.catalog().tensors[made_of_[i].source_tensor];
    TensorEntry& to = content_.tensors[i];
    EBB_CHECK(from.shape == to.shape);
    const bool same = from.dtype == to.dtype && made_of_[i].scale == 1;
    EBB_CHECK(same || (is_floating(from.dtype) && is_floating(to.dtype)));
    to.chunks = from.chunks;
  }
  content_.files = source.catalog().files;
}

std::string ContentView::identity() const {
  ByteVector all;
  for (const MadeOf& made_of : made_of_) {
    append_le(all, made_of.source_tensor);
    append_le(all, made_of.scale);
    append_le(all, made_of.constant ? made_of.constant->size() + 1 : std::size_t{0});
    if (made_of.constant) append_bytes(all, *made_of.constant);
  }
  return sha256_hex(all);
}

Result<> ContentView::read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                                 std::span<std::byte> into) const {
  const auto number = static_cast<std::size_t>(&tensor - content_.tensors.data());
  EBB_CHECK(number < made_of_.size());
  const MadeOf& made_of = made_of_[number];
  if (made_of.constant) {
    EBB_CHECK(first <= made_of.constant->size() && into.size() <= made_of.constant->size() - first);
    std::copy_n(made_of.constant->begin() + static_cast<std::ptrdiff_t>(first), into.size(),
                into.begin());
    return {};
  }
  const TensorEntry& from = source_.catalog().tensors[made_of.source_tensor];
  if (from.dtype == tensor.dtype && made_of.scale == 1)
    return source_.read(from, chunk, first, into);
  return read_cast(made_of, tensor, chunk, first, into);
}

Result<> ContentView::read_cast(const MadeOf& made_of, const TensorEntry& tensor,
                                const Chunk& chunk, std::uint64_t first,
                                std::span<std::byte> into) const {
  const TensorEntry& from = source_.catalog().tensors[made_of.source_tensor];
  const std::uint64_t in = bytes_of(from.dtype);
  const std::uint64_t out = bytes_of(tensor.dtype);
  EBB_CHECK(first % out == 0 && into.size() % out == 0);
  ByteVector elements;
  for (std::uint64_t done = 0; done < into.size();) {
    const std::uint64_t run = std::min(kElemsAtOnce, (into.size() - done) / out);
    elements.resize(run * in);
    EBB_TRY(source_.read(from, chunk, (first + done) / out * in, elements));
    cast_floats(from.dtype, elements, tensor.dtype, into.subspan(done, run * out), made_of.scale);
    done += run * out;
  }
  return {};
}

}  // namespace ebb::formats
