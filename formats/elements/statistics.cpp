#include "ebb/formats/elements/statistics.h"

#include <algorithm>
#include <cmath>

#include "ebb/formats/core/element_values.h"
#include "ebb/formats/elements/box_reader.h"

namespace ebb::formats {

namespace {

constexpr std::size_t kDecodedAtOnce = 4096;  // elements: stays in the cache

// long double: 64 bits of mantissa keep the error of a sum over billions of elements below what
// is printed, and no square of a double overflows.
class Gathering {
 public:
  void add(std::span<const double> values) {
    for (const double value : values) {
      if (std::isnan(value)) {
        ++out_.nans;
      } else if (std::isinf(value)) {
        ++out_.infinities;
      } else {
        if (value == 0) ++out_.zeros;
        smallest_ = std::min(smallest_, value);
        largest_ = std::max(largest_, value);
        sum_ += value;
        squares_ += static_cast<long double>(value) * value;
      }
    }
    out_.numbers += values.size();
  }

  Statistics done() {
    if (const std::uint64_t finite = out_.finite(); finite != 0) {
      out_.smallest = smallest_;
      out_.largest = largest_;
      out_.mean = static_cast<double>(sum_ / static_cast<long double>(finite));
      out_.norm = static_cast<double>(std::sqrt(squares_));
    }
    return out_;
  }

 private:
  Statistics out_;
  double smallest_ = HUGE_VAL;
  double largest_ = -HUGE_VAL;
  long double sum_ = 0;
  long double squares_ = 0;
};

// Of the box's own elements, in row-major order, the first that lies in the rows and the one behind
// the last.
std::pair<std::uint64_t, std::uint64_t> range_in(const Box& box,
                                                 const std::optional<FlatRange>& rows) {
  const std::uint64_t all = volume(box.extent);
  if (!rows || all == 0) return {0, all};
  const FlatRange common = overlap({box.offset[0], box.extent[0]}, *rows);
  const std::uint64_t in_a_row = all / box.extent[0];
  const std::uint64_t first = common.count == 0 ? 0 : common.first - box.offset[0];
  return {first * in_a_row, (first + common.count) * in_a_row};
}

}  // namespace

Result<std::optional<Statistics>> statistics_of(const Checkpoint& checkpoint,
                                                const TensorEntry& tensor, const StatisticsOf& of) {
  const std::size_t per_element = values_per_element(tensor.dtype);
  if (per_element == 0) return std::optional<Statistics>();
  const std::size_t elem_bytes = bytes_of(tensor.dtype);
  Gathering gathering;
  ByteVector bytes(BoxReader::kMaxRun);
  std::vector<double> values(kDecodedAtOnce * per_element);
  for (const Chunk& chunk : tensor.chunks) {
    if (of.holder && chunk.holder != *of.holder) continue;
    auto [at, end] = range_in(chunk.box, of.rows);
    at *= elem_bytes;
    end *= elem_bytes;
    while (at < end) {
      const auto run = std::span(bytes).first(std::min<std::uint64_t>(bytes.size(), end - at));
      EBB_TRY(checkpoint.read(tensor, chunk, at, run));
      at += run.size();
      for (std::size_t first = 0; first < run.size(); first += kDecodedAtOnce * elem_bytes) {
        const auto block =
            run.subspan(first, std::min(kDecodedAtOnce * elem_bytes, run.size() - first));
        const auto into = std::span(values).first(block.size() / elem_bytes * per_element);
        element_values(tensor.dtype, block, into);
        gathering.add(into);
      }
    }
  }
  return std::optional<Statistics>(gathering.done());
}

}  // namespace ebb::formats
