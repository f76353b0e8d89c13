// Strided and big-endian elements against a plain walk over every index.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ebb/formats/torch/elements.h"

namespace ebb {

namespace {

using formats::ByteOrder;
using formats::MemorySource;
using formats::TorchTensor;

// Counts how much is asked for at once.
class Watched : public formats::ByteSource {
 public:
  explicit Watched(ByteVector bytes) : inner_("m", std::move(bytes)) {}
  std::uint64_t size() const override { return inner_.size(); }
  std::string_view name() const override { return inner_.name(); }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override {
    largest = std::max<std::uint64_t>(largest, into.size());
    total += into.size();
    return inner_.read(offset, into);
  }
  mutable std::uint64_t largest = 0;
  mutable std::uint64_t total = 0;

 private:
  MemorySource inner_;
};

ByteVector numbered(std::size_t bytes) {
  ByteVector out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 256);
  return out;
}

// What torch's contiguous() would give.
ByteVector walked(const ByteVector& storage, const TorchTensor& tensor) {
  const std::size_t width = bytes_of(tensor.dtype);
  ByteVector out;
  std::vector<std::uint64_t> index(tensor.shape.size(), 0);
  for (std::uint64_t i = 0; i < tensor.elems(); ++i) {
    std::uint64_t from = tensor.first;
    std::uint64_t rest = i;
    for (std::size_t d = tensor.shape.size(); d-- > 0; rest /= tensor.shape[d])
      from += rest % tensor.shape[d] * tensor.strides[d];
    formats::append_bytes(out, ByteView(storage).subspan(from * width, width));
  }
  return out;
}

TorchTensor tensor_of(DType dtype, Shape shape, Shape strides, std::uint64_t first) {
  return {.dtype = dtype,
          .shape = std::move(shape),
          .strides = std::move(strides),
          .first = first,
          .storage = {}};
}

const std::vector<TorchTensor> kViews = {
    tensor_of(DType::f32, {30, 40}, {1, 30}, 0),                   // transposed
    tensor_of(DType::f32, {6}, {40}, 3),                           // a column
    tensor_of(DType::bf16, {5, 7, 3}, {1, 5, 35}, 2),              // all reversed
    tensor_of(DType::f64, {4, 6}, {0, 2}, 1),                      // expanded
    tensor_of(DType::u8, {2, 3, 4, 5}, {60, 1, 15, 3}, 4),         // channels last
    tensor_of(DType::c128, {3, 4}, {2, 9}, 1),                     // 16 bytes an element
    tensor_of(DType::f32, {3, 1, 4}, {8, 999, 2}, 0),              // a stride nobody follows
    tensor_of(DType::f32, {9, 300, 300}, {90000, 1, 300}, 0),      // more than one window
    tensor_of(DType::f32, {3, 2, 40000}, {200000, 100000, 2}, 5),  // far apart
};

TEST(Elements, OfAnyViewComeInRowMajorOrderInAnyParts) {
  const ByteVector storage = numbered(4u << 20);
  for (const TorchTensor& tensor : kViews) {
    const MemorySource source("m", storage);
    const ByteVector expected = walked(storage, tensor);
    for (const std::size_t step : {expected.size(), expected.size() / 3 + 1, std::size_t{4097}}) {
      ByteVector got(expected.size());
      for (std::size_t at = 0; at < got.size(); at += step) {
        const auto part = std::span(got).subspan(at, std::min(step, got.size() - at));
        ASSERT_TRUE(read_elements(source, 0, tensor, ByteOrder::little, at, part).has_value());
      }
      EXPECT_EQ(got, expected) << formats::to_string(tensor.shape) << " by " << step;
    }
  }
}

TEST(Elements, OfABigEndianStorageAreTurnedAround) {
  const ByteVector storage = numbered(4096);
  const MemorySource source("m", storage);
  for (const TorchTensor& tensor :
       {tensor_of(DType::f32, {3, 5}, {5, 1}, 2), tensor_of(DType::c64, {3, 5}, {1, 3}, 0),
        tensor_of(DType::u8, {9}, {1}, 0)}) {
    ByteVector expected = walked(storage, tensor);
    const std::size_t unit = tensor.dtype == DType::u8 ? 1 : 4;
    for (std::size_t at = 0; at < expected.size(); at += unit)
      std::reverse(expected.begin() + std::ptrdiff_t(at),
                   expected.begin() + std::ptrdiff_t(at + unit));
    ByteVector got(expected.size());
    ASSERT_TRUE(read_elements(source, 0, tensor, ByteOrder::big, 0, got).has_value());
    EXPECT_EQ(got, expected);
    ByteVector odd(5);
    ASSERT_TRUE(read_elements(source, 0, tensor, ByteOrder::big, 3, odd).has_value());
    EXPECT_TRUE(std::equal(odd.begin(), odd.end(), expected.begin() + 3));
  }
}

TEST(Elements, NeverAskForMoreThanAWindowOrTenTimesWhatIsWanted) {
  const Watched source(numbered(32u << 20));
  const TorchTensor transposed = tensor_of(DType::f32, {2048, 4096}, {1, 2048}, 0);
  ByteVector part(4u << 20);
  ASSERT_TRUE(read_elements(source, 0, transposed, ByteOrder::little, 8u << 20, part).has_value());
  EXPECT_LE(source.largest, 1u << 20);
  EXPECT_LE(source.total, 10 * part.size());
}

}  // namespace

}  // namespace ebb
