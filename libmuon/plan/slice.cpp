#include "ebb/libmuon/plan/slice.h"

#include <span>

#include "ebb/formats/core/check.h"

namespace ebb::libmuon {

Slice Slice::part(const Shape& shape, std::size_t dimension, std::uint32_t index,
                  std::uint32_t parts) {
  EBB_CHECK(dimension < shape.size() && index < parts && shape[dimension] % parts == 0);
  const std::uint64_t pitch = formats::volume(std::span(shape).subspan(dimension));
  const std::uint64_t elems = formats::volume(shape) / parts;
  if (pitch == 0) return {};
  const std::uint64_t width = pitch / parts;
  if (width == elems) return run({index * width, width});  // nothing is slower
  return {index * width, width, pitch, elems};
}

}  // namespace ebb::libmuon
