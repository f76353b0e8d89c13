#include "ebb/formats/torch/elements.h"

#include <algorithm>
#include <cstring>

#include "ebb/formats/core/units.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kWindow = 1 * MiB;  // of storage, read at once
constexpr std::uint64_t kGap = 16 * KiB;    // bytes worth reading over rather than asking twice

void swap_bytes(std::span<std::byte> bytes, std::size_t unit) {
  for (std::size_t at = 0; at + unit <= bytes.size(); at += unit)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at + unit));
}

// One box of a strided tensor, window by window of the storage, in the storage's order.
class BoxGather {
 public:
  BoxGather(const ByteSource& source, std::uint64_t at, const TorchTensor& tensor)
      : source_(source), at_(at), tensor_(tensor), width_(bytes_of(tensor.dtype)) {}

  Result<> run(const Box& box, std::span<std::byte> into) {
    into_ = into;
    std::uint64_t from = tensor_.first;
    dims_.clear();
    std::uint64_t out = 1;
    for (std::size_t d = box.extent.size(); d-- > 0;) {
      from += box.offset[d] * tensor_.strides[d];
      if (box.extent[d] > 1) dims_.push_back({box.extent[d], tensor_.strides[d], out});
      out *= box.extent[d];
    }
    std::stable_sort(dims_.begin(), dims_.end(),
                     [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
    choose_window();
    return walk(dims_.size(), from, 0);
  }

 private:
  struct Dim {  // in elements
    std::uint64_t extent, stride, out;
  };

  // The innermost dimensions, and a part of the next, whose elements lie close together.
  void choose_window() {
    std::uint64_t span = 1;
    inner_ = 0;
    block_ = 1;
    const std::uint64_t most = kWindow / width_;
    while (inner_ < dims_.size()) {
      const Dim& dim = dims_[inner_];
      const std::uint64_t gap = dim.stride > span ? dim.stride - span : 0;
      if (gap * width_ > kGap || span > most) return;
      const std::uint64_t fits = dim.stride == 0 ? dim.extent : (most - span) / dim.stride + 1;
      if (fits < dim.extent) {
        block_ = fits;
        return;
      }
      span += dim.stride * (dim.extent - 1);
      ++inner_;
    }
  }

  // `dim` dimensions are still to be placed; those below inner_ are one window.
  Result<> walk(std::size_t dim, std::uint64_t from, std::uint64_t to) {
    if (dim == inner_) return window(from, to, 1);
    const Dim& outer = dims_[dim - 1];
    const std::uint64_t step = dim - 1 == inner_ ? block_ : 1;
    for (std::uint64_t i = 0; i < outer.extent; i += step) {
      const std::uint64_t count = std::min(step, outer.extent - i);
      const std::uint64_t source = from + i * outer.stride;
      const std::uint64_t target = to + i * outer.out;
      if (dim - 1 == inner_) {
        EBB_TRY(window(source, target, count));
      } else {
        EBB_TRY(walk(dim - 1, source, target));
      }
    }
    return {};
  }

  // The inner dimensions at `count` places of the next one.
  Result<> window(std::uint64_t from, std::uint64_t to, std::uint64_t count) {
    std::uint64_t span = 1;
    for (std::size_t d = 0; d < inner_; ++d) span += dims_[d].stride * (dims_[d].extent - 1);
    if (count > 1) span += dims_[inner_].stride * (count - 1);
    buffer_.resize(static_cast<std::size_t>(span * width_));
    EBB_TRY(source_.read(at_ + from * width_, buffer_));
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t stride = count > 1 ? dims_[inner_].stride : 0;
      const std::uint64_t out = count > 1 ? dims_[inner_].out : 0;
      scatter(inner_, i * stride, to + i * out);
    }
    return {};
  }

  void scatter(std::size_t dim, std::uint64_t from, std::uint64_t to) {
    if (dim == 0) return copy(from, to, {1, 0, 0});
    const Dim& outer = dims_[dim - 1];
    if (dim == 1) return copy(from, to, outer);
    for (std::uint64_t i = 0; i < outer.extent; ++i)
      scatter(dim - 1, from + i * outer.stride, to + i * outer.out);
  }

  void copy(std::uint64_t from, std::uint64_t to, const Dim& dim) {
    const std::byte* source = buffer_.data() + from * width_;
    std::byte* target = into_.data() + to * width_;
    if (dim.stride == 1 && dim.out == 1) {
      std::memcpy(target, source, dim.extent * width_);
      return;
    }
    switch (width_) {
      case 2:
        return copy_each<2>(source, target, dim);
      case 4:
        return copy_each<4>(source, target, dim);
      case 8:
        return copy_each<8>(source, target, dim);
      default:
        for (std::uint64_t i = 0; i < dim.extent; ++i)
          std::memcpy(target + i * dim.out * width_, source + i * dim.stride * width_, width_);
    }
  }

  template <std::size_t Width>
  static void copy_each(const std::byte* source, std::byte* target, const Dim& dim) {
    for (std::uint64_t i = 0; i < dim.extent; ++i)
      std::memcpy(target + i * dim.out * Width, source + i * dim.stride * Width, Width);
  }

  const ByteSource& source_;
  std::uint64_t at_;
  const TorchTensor& tensor_;
  std::uint64_t width_;
  std::span<std::byte> into_;
  std::vector<Dim> dims_;  // longer than 1, by ascending stride
  std::size_t inner_ = 0;
  std::uint64_t block_ = 1;
  ByteVector buffer_;
};

// Whole elements [first, first + count).
Result<> read_whole_elements(const ByteSource& source, std::uint64_t at, const TorchTensor& tensor,
                             FlatRange range, std::span<std::byte> into) {
  const std::uint64_t width = bytes_of(tensor.dtype);
  if (tensor.row_major()) return source.read(at + (tensor.first + range.first) * width, into);
  BoxGather gather(source, at, tensor);
  for (const Box& box : boxes_of(tensor.shape, range)) {
    const std::span<std::byte> part = into.first(volume(box.extent) * width);
    EBB_TRY(gather.run(box, part));
    into = into.subspan(part.size());
  }
  return {};
}

}  // namespace

std::size_t swap_unit(DType dtype) {
  const std::uint32_t bytes = bytes_of(dtype);
  return dtype == DType::c64 || dtype == DType::c128 ? bytes / 2 : bytes;
}

Result<> read_elements(const ByteSource& source, std::uint64_t at, const TorchTensor& tensor,
                       ByteOrder order, std::uint64_t first, std::span<std::byte> into) {
  if (into.empty()) return {};
  const std::uint64_t width = bytes_of(tensor.dtype);
  const std::uint64_t begin = first / width;
  const std::uint64_t end = div_ceil(first + into.size(), width);
  const bool whole = begin * width == first && end * width == first + into.size();
  const bool swapped = order == ByteOrder::big && swap_unit(tensor.dtype) > 1;
  if (!whole && !swapped && tensor.row_major())
    return source.read(at + tensor.first * width + first, into);
  ByteVector padded(whole ? 0 : (end - begin) * width);
  const std::span<std::byte> elements = whole ? into : std::span<std::byte>(padded);
  EBB_TRY(read_whole_elements(source, at, tensor, {begin, end - begin}, elements));
  if (swapped) swap_bytes(elements, swap_unit(tensor.dtype));
  if (!whole) std::memcpy(into.data(), padded.data() + (first - begin * width), into.size());
  return {};
}

}  // namespace ebb::formats
