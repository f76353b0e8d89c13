// The coverage proof. The indicator of a box is the signed sum of the orthants at its 2^d corners,
// and that writing is unique; so the chunks tile the tensor if and only if their signed corners
// cancel to the tensor's own. Sorting corners finds that out in O(n log n) for any arrangement. The
// smallest corner left over, in row-major order, is itself an element stored too seldom or too
// often: no other leftover corner precedes it in every coordinate.
#include <algorithm>
#include <bit>
#include <string>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/check.h"
#include "ebb/formats/core/json_text.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kMaxCorners = std::uint64_t{1} << 28;
constexpr std::size_t kMaxCut = 8;  // each doubles the corners; a mesh has five axes at most

std::string place_of(const Chunk& chunk, const Catalog& catalog) {
  if (chunk.file >= catalog.files.size()) return compose("file {}", chunk.file);
  return compose("{}:{}", printable(catalog.files[chunk.file].name), chunk.offset);
}

// "rows 3-4 are", and the columns too when the box is narrower than the tensor.
std::string rows_are(const Box& box, const Shape& shape) {
  if (shape.empty()) return "its only element is";
  const std::uint64_t first = box.offset[0];
  const std::uint64_t count = box.extent[0];
  std::string text =
      count == 1 ? compose("row {}", first) : compose("rows {}-{}", first, first + count - 1);
  if (!std::ranges::equal(std::span(box.extent).subspan(1), std::span(shape).subspan(1)))
    text += " (elements " + to_string(box) + ")";
  return text + (count == 1 ? " is" : " are");
}

class Proof {
 public:
  Proof(const TensorEntry& tensor, const Catalog& catalog) : tensor_(tensor), catalog_(catalog) {}

  Result<> run() {
    EBB_TRY(check_boxes());
    if (volume(tensor_.shape) == 0) return {};
    find_cut_dimensions();
    EBB_TRY(gather_corners());
    return report(first_leftover());
  }

 private:
  struct Leftover {
    std::uint64_t corner = 0;
    std::int64_t surplus = 0;  // how many times too often the element is stored; -1: never stored
  };

  Error failure(Code code, const std::string& what) const {
    return {code, label_of(tensor_) + ": " + what, {}, {.tensor = label_of(tensor_)}};
  }

  Result<> check_boxes() {
    if (!checked_volume(tensor_.shape))
      return failure(Code::limit,
                     "shape " + to_string(tensor_.shape) + " has more than 2^64 elements");
    for (const Chunk& chunk : tensor_.chunks) {
      if (!inside(chunk.box, tensor_.shape))
        return failure(Code::corrupt,
                       compose("shard {} of rank {} ({}) lies outside the tensor's shape {}",
                               to_string(chunk.box), index_of(chunk.holder),
                               place_of(chunk, catalog_), to_string(tensor_.shape)));
      if (volume(chunk.box.extent) != 0) boxes_.push_back(&chunk);
    }
    return {};
  }

  // Dimensions in which every chunk is whole take no part in the proof.
  void find_cut_dimensions() {
    for (std::size_t d = 0; d < tensor_.shape.size(); ++d)
      if (std::ranges::any_of(
              boxes_, [&](const Chunk* chunk) { return chunk->box.extent[d] != tensor_.shape[d]; }))
        cut_.push_back(d);
  }

  Result<> gather_corners() {
    // Corners become their row-major position in the (shape + 1) grid of the cut dimensions, times
    // two, plus one if they count as -1.
    std::uint64_t grid = 2;
    for (const std::size_t d : cut_) {
      const auto wider = checked_mul(grid, tensor_.shape[d] + 1);
      if (!wider)
        return failure(
            Code::limit,
            compose("shape {} is cut in {} dimensions that span more than 2^63 positions",
                    to_string(tensor_.shape), cut_.size()));
      grid = *wider;
    }
    if (cut_.size() > kMaxCut || ((boxes_.size() + 1) << cut_.size()) > kMaxCorners)
      return failure(
          Code::limit,
          compose("{} shards cut in {} dimensions; the limits are 8 dimensions and 2^28 corners",
                  boxes_.size(), cut_.size()));
    corners_.reserve((boxes_.size() + 1) << cut_.size());
    for (const Chunk* chunk : boxes_) append_corners(chunk->box, 0);
    append_corners(whole(tensor_.shape), 1);
    std::ranges::sort(corners_);
    return {};
  }

  void append_corners(const Box& box, std::uint64_t negative) {
    for (std::uint64_t corner = 0; corner < std::uint64_t{1} << cut_.size(); ++corner) {
      std::uint64_t position = 0;
      for (std::size_t i = 0; i < cut_.size(); ++i) {
        const std::size_t d = cut_[i];
        const std::uint64_t at = box.offset[d] + ((corner >> i & 1) != 0 ? box.extent[d] : 0);
        position = position * (tensor_.shape[d] + 1) + at;
      }
      const auto odd = static_cast<std::uint64_t>(std::popcount(corner)) & 1;
      corners_.push_back(position * 2 + (odd ^ negative));
    }
  }

  Leftover first_leftover() const {
    for (std::size_t i = 0; i < corners_.size();) {
      const std::uint64_t position = corners_[i] / 2;
      std::int64_t sum = 0;
      for (; i < corners_.size() && corners_[i] / 2 == position; ++i)
        sum += (corners_[i] & 1) != 0 ? -1 : 1;
      if (sum != 0) return {position, sum};
    }
    return {};
  }

  Result<> report(const Leftover& leftover) const {
    if (leftover.surplus == 0) return {};
    Box element{Shape(tensor_.shape.size(), 0), Shape(tensor_.shape.size(), 1)};
    std::uint64_t position = leftover.corner;
    for (std::size_t i = cut_.size(); i-- > 0;) {
      element.offset[cut_[i]] = position % (tensor_.shape[cut_[i]] + 1);
      position /= tensor_.shape[cut_[i]] + 1;
    }
    return leftover.surplus < 0 ? report_hole(element) : report_overlap(element);
  }

  // Grows the uncovered element to the largest uncovered box that begins with it, columns first.
  Error report_hole(Box hole) const {
    for (std::size_t d = tensor_.shape.size(); d-- > 0;) {
      hole.extent[d] = tensor_.shape[d] - hole.offset[d];
      for (const Chunk* chunk : boxes_)
        if (const auto common = intersect(hole, chunk->box))
          hole.extent[d] = common->offset[d] - hole.offset[d];
    }
    return failure(Code::incomplete, rows_are(hole, tensor_.shape) + " in no shard");
  }

  Error report_overlap(const Box& element) const {
    const Chunk* first = nullptr;
    for (const Chunk* chunk : boxes_) {
      if (!intersect(element, chunk->box)) continue;
      if (first == nullptr) {
        first = chunk;
        continue;
      }
      const Box common = *intersect(first->box, chunk->box);
      return failure(
          Code::corrupt,
          compose("{} in shards of ranks {} and {} ({} and {})", rows_are(common, tensor_.shape),
                  index_of(first->holder), index_of(chunk->holder), place_of(*first, catalog_),
                  place_of(*chunk, catalog_)));
    }
    check_failed("an element stored twice is in two chunks", __FILE__, __LINE__);
  }

  const TensorEntry& tensor_;
  const Catalog& catalog_;
  std::vector<const Chunk*> boxes_;  // the non-empty ones
  std::vector<std::size_t> cut_;
  std::vector<std::uint64_t> corners_;
};

}  // namespace

Result<> prove_coverage(const TensorEntry& tensor, const Catalog& catalog) {
  if (tensor.chunks.size() == 1 && tensor.chunks[0].box.extent == tensor.shape &&
      inside(tensor.chunks[0].box, tensor.shape) && checked_volume(tensor.shape))
    return {};
  return Proof(tensor, catalog).run();
}

Result<> prove_coverage(const Catalog& catalog) {
  for (const TensorEntry& tensor : catalog.tensors) EBB_TRY(prove_coverage(tensor, catalog));
  return {};
}

}  // namespace ebb::formats
