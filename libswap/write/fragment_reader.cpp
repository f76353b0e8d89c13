#include "ebb/libswap/write/fragment_reader.h"

#include <algorithm>
#include <array>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/elements/fingerprint.h"

namespace ebb::libswap {

std::span<const Fragment> fragments_in(const OutputFile& file, std::uint64_t offset,
                                       std::uint64_t size) {
  const std::span<const Fragment> all = file.fragments;
  auto first = std::ranges::upper_bound(all, offset, {}, &Fragment::offset);
  if (first != all.begin()) --first;
  const auto last = std::ranges::lower_bound(all, offset + size, {}, &Fragment::offset);
  if (last <= first) return {};
  return {first, last};
}

void copy_overlap(ByteView part, std::uint64_t offset, std::span<std::byte> into,
                  std::uint64_t first) {
  const std::uint64_t from = std::max(offset, first);
  const std::uint64_t until = std::min(offset + part.size(), first + into.size());
  std::ranges::copy(part.subspan(from - offset, until - from), into.subspan(from - first).begin());
}

// The elements that one TensorData writes, as they are in the file.
class FragmentReader::Elements {
 public:
  Elements(const FragmentReader& owner, const TensorData& data, const formats::BoxReader& reader,
           formats::BoxStream elements)
      : owner_(owner),
        data_(data),
        reader_(reader),
        elements_(std::move(elements)),
        from_(reader.tensor().dtype),
        to_(written_dtype(data, owner.content_.catalog())),
        from_bytes_(reader.elem_bytes()),
        to_bytes_(reader.packed() ? 1 : bytes_of(to_)),
        counts_(owner.checked_.stores.contains(&data)) {}

  // From byte `first` on.
  Result<> read(std::uint64_t first, std::span<std::byte> into, Shares& shares) {
    std::uint64_t element = first / to_bytes_;
    elements_.seek(element * from_bytes_);
    const std::uint64_t begun = first % to_bytes_;
    if (begun != 0) {
      const std::size_t rest = std::min<std::size_t>(into.size(), to_bytes_ - begun);
      EBB_TRY(one(into.first(rest), begun));
      into = into.subspan(rest);
      ++element;
    }
    const std::uint64_t before = elements_.fingerprint();
    const std::size_t whole = into.size() - into.size() % to_bytes_;
    EBB_TRY(several(element, into.first(whole), shares));
    if (whole < into.size()) {
      element += whole / to_bytes_;
      EBB_TRY(one(into.subspan(whole), 0));
      derive(element, ByteView(element_).first(from_bytes_), shares);
    }
    if (counts_) shares.stored.push_back({data_.tensor, elements_.fingerprint() - before});
    return {};
  }

 private:
  // Part of one element.
  Result<> one(std::span<std::byte> into, std::uint64_t begun) {
    const auto read = std::span(element_).first(from_bytes_);
    EBB_TRY(elements_.read(read));
    std::array<std::byte, 16> cast{};
    const auto written = std::span(cast).first(to_bytes_);
    if (from_ == to_)
      std::ranges::copy(read, written.begin());
    else
      formats::cast_floats(from_, read, to_, written);
    std::ranges::copy(written.subspan(begun, into.size()), into.begin());
    return {};
  }

  Result<> several(std::uint64_t element, std::span<std::byte> into, Shares& shares) {
    if (from_ == to_) {
      EBB_TRY(elements_.read(into));
      derive(element, into, shares);
      return {};
    }
    const std::uint64_t at_once = kCastBytes / std::max(from_bytes_, to_bytes_);
    ByteVector in;
    while (!into.empty()) {
      const std::uint64_t count = std::min<std::uint64_t>(at_once, into.size() / to_bytes_);
      in.resize(count * from_bytes_);
      EBB_TRY(elements_.read(in));
      formats::cast_floats(from_, in, to_, into.first(count * to_bytes_));
      derive(element, in, shares);
      element += count;
      into = into.subspan(count * to_bytes_);
    }
    return {};
  }

  // What readers will make of these elements for the tensors that are not stored.
  void derive(std::uint64_t element, ByteView bytes, Shares& shares) const {
    if (!counts_ || bytes.empty()) return;
    ByteVector out;
    for (const std::uint32_t number : owner_.derived_from_[data_.tensor]) {
      const auto& tensors = owner_.content_.catalog().tensors;
      const TensorEntry& target = tensors[owner_.plan_.derived[number].tensor];
      const std::uint32_t size = reader_.packed() ? 1 : bytes_of(target.dtype);
      const std::uint64_t at_once = kCastBytes / std::max(from_bytes_, to_bytes_) * from_bytes_;
      std::uint64_t sum = 0;
      for (std::uint64_t at = 0; at < bytes.size(); at += at_once) {
        ByteView block = bytes.subspan(at, std::min(at_once, bytes.size() - at));
        if (target.dtype != from_) {
          out.resize(block.size() / from_bytes_ * size);
          formats::cast_floats(from_, block, target.dtype, out);
          block = out;
        }
        const std::uint64_t first = element + at / from_bytes_;
        sum += reader_.packed() ? formats::fingerprint(first, block, 1)
                                : formats::fingerprint(target.shape, data_.box, first, block, size);
      }
      shares.derived.push_back({number, sum});
    }
  }

  const FragmentReader& owner_;
  const TensorData& data_;
  const formats::BoxReader& reader_;
  formats::BoxStream elements_;
  DType from_;
  DType to_;
  std::uint32_t from_bytes_;
  std::uint32_t to_bytes_;
  bool counts_;
  std::array<std::byte, 16> element_{};
};

FragmentReader::FragmentReader(const Checkpoint& content, const EmitPlan& plan,
                               const CheckedPlan& checked)
    : content_(content),
      plan_(plan),
      checked_(checked),
      derived_from_(content.catalog().tensors.size()),
      readers_(content.catalog().tensors.size()) {
  for (std::uint32_t i = 0; i < plan.derived.size(); ++i)
    derived_from_[plan.derived[i].from].push_back(i);
}

Result<const formats::BoxReader*> FragmentReader::reader_of(std::uint32_t tensor) const {
  const MutexLock lock(mutex_);
  std::unique_ptr<formats::BoxReader>& reader = readers_[tensor];
  if (reader == nullptr) {
    EBB_TRY_ASSIGN(formats::BoxReader made,
                   formats::BoxReader::open(content_, content_.catalog().tensors[tensor]));
    reader = std::make_unique<formats::BoxReader>(std::move(made));
  }
  return reader.get();
}

Result<Shares> FragmentReader::read(const OutputFile& file, std::uint64_t offset,
                                    std::span<std::byte> into) const {
  Shares shares;
  const std::uint64_t end = offset + into.size();
  std::uint64_t filled = offset;
  const auto zeros_until = [&](std::uint64_t next) {
    std::ranges::fill(into.subspan(filled - offset, next - filled), std::byte{0});
    filled = next;
  };
  for (const Fragment& fragment : fragments_in(file, offset, into.size())) {
    const std::uint64_t first = std::max(fragment.offset, offset);
    const std::uint64_t last =
        std::min(fragment.offset + size_of(fragment, content_.catalog()), end);
    if (last <= first) continue;
    zeros_until(first);
    if (const auto* bytes = std::get_if<ByteVector>(&fragment.data)) {
      copy_overlap(*bytes, fragment.offset, into, offset);
    } else if (const auto* data = std::get_if<TensorData>(&fragment.data)) {
      EBB_TRY_ASSIGN(const formats::BoxReader* reader, reader_of(data->tensor));
      EBB_TRY_ASSIGN(
          formats::BoxStream elements,
          formats::BoxStream::open(*reader, data->box, formats::BoxStream::Fingerprint::checked));
      EBB_TRY(
          Elements(*this, *data, *reader, std::move(elements))
              .read(first - fragment.offset, into.subspan(first - offset, last - first), shares));
    }
    filled = last;
  }
  zeros_until(end);
  return shares;
}

}  // namespace ebb::libswap
