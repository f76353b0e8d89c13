#include "tools/ckpt_inspect/gaps.h"

namespace ebb::tools::inspect {
namespace {

constexpr std::size_t kMostHoles = 2048;
constexpr std::size_t kMostTwice = 512;  // each is looked for among all chunks before it

// Appends what is left of `box` without `common`, which lies in it: slabs along each dimension.
void append_rest(Box box, const Box& common, std::vector<Box>& out) {
  for (std::size_t d = 0; d < box.extent.size(); ++d) {
    const std::uint64_t end = box.offset[d] + box.extent[d];
    const std::uint64_t common_end = common.offset[d] + common.extent[d];
    const auto add = [&](std::uint64_t from, std::uint64_t to) {
      if (from == to) return;
      Box slab = box;
      slab.offset[d] = from;
      slab.extent[d] = to - from;
      out.push_back(std::move(slab));
    };
    add(box.offset[d], common.offset[d]);
    add(common_end, end);
    box.offset[d] = common.offset[d];
    box.extent[d] = common.extent[d];
  }
}

// Takes the box out of the free ones; answers how many of its elements were free.
std::uint64_t take(const Box& box, std::vector<Box>& free) {
  std::vector<Box> left;
  std::uint64_t taken = 0;
  for (Box& one : free) {
    const auto common = formats::intersect(one, box);
    if (!common) {
      left.push_back(std::move(one));
      continue;
    }
    taken += formats::volume(common->extent);
    append_rest(std::move(one), *common, left);
  }
  free = std::move(left);
  return taken;
}

}  // namespace

Gaps gaps_of(const TensorEntry& tensor) {
  Gaps gaps;
  gaps.holes.push_back(formats::whole(tensor.shape));
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    const Box& box = tensor.chunks[i].box;
    if (!formats::inside(box, tensor.shape) || formats::volume(box.extent) == 0) continue;
    const std::uint64_t taken = take(box, gaps.holes);
    if (gaps.holes.size() > kMostHoles || gaps.twice.size() >= kMostTwice) {
      gaps.holes.clear();
      gaps.found = Found::some;
      return gaps;
    }
    if (taken == formats::volume(box.extent)) continue;
    for (std::size_t before = 0; before < i; ++before) {
      const auto common = formats::intersect(tensor.chunks[before].box, box);
      if (!common) continue;
      gaps.twice.push_back({i, before, *common});
      break;
    }
  }
  return gaps;
}

}  // namespace ebb::tools::inspect
