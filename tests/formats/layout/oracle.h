// The slow truth: every layout materialised element by element. Shared by the layout tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "ebb/formats/layout/layout.h"

namespace ebb::formats::oracle {

// Where each element of a rank's flat partition comes from; kPadding where it is padding.
struct Slot {
  std::int64_t tensor = -1;
  std::uint64_t element = 0;
  bool operator==(const Slot&) const = default;
};
using Buffer = std::vector<Slot>;

inline std::uint64_t elems(const Shape& shape) {
  std::uint64_t product = 1;
  for (const std::uint64_t size : shape) product *= size;
  return product;
}

inline std::vector<Slot> all_elements(std::size_t tensor, const Shape& shape) {
  std::vector<Slot> out;
  for (std::uint64_t e = 0; e < elems(shape); ++e)
    out.push_back({static_cast<std::int64_t>(tensor), e});
  return out;
}

inline void append_padded(Buffer& buffer, const std::vector<Slot>& flat, std::uint64_t first,
                          std::uint64_t count) {
  for (std::uint64_t i = first; i < first + count; ++i)
    buffer.push_back(i < flat.size() ? flat[i] : Slot{});
}

inline Buffer zero12(const Layout::Spec& spec, const std::vector<Shape>& tensors,
                     std::uint64_t shard) {
  std::vector<Slot> flat;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    for (const Slot slot : all_elements(t, tensors[t])) flat.push_back(slot);
  while (flat.size() % (spec.mesh.shard_world * spec.align_elems) != 0) flat.emplace_back();
  const std::uint64_t part = flat.size() / spec.mesh.shard_world;
  return Buffer(flat.begin() + static_cast<std::ptrdiff_t>(shard * part),
                flat.begin() + static_cast<std::ptrdiff_t>((shard + 1) * part));
}

// Tries every capacity from 0 upwards.
inline std::vector<Buffer> boundary(const Layout::Spec& spec, const std::vector<Shape>& tensors) {
  for (std::uint64_t capacity = 0;; ++capacity) {
    std::vector<Buffer> parts(1);
    bool fits = true;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (parts.back().size() + elems(tensors[t]) > capacity) parts.emplace_back();
      for (const Slot slot : all_elements(t, tensors[t])) parts.back().push_back(slot);
      fits = fits && elems(tensors[t]) <= capacity;
    }
    if (!fits || parts.size() > spec.mesh.shard_world) continue;
    parts.resize(spec.mesh.shard_world);
    std::uint64_t largest = capacity;
    while (largest % spec.align_elems != 0) ++largest;
    for (Buffer& part : parts) part.resize(largest);
    return parts;
  }
}

inline Buffer buffer_of(const Layout::Spec& spec, const std::vector<Shape>& tensors,
                        std::uint32_t rank) {
  const std::uint32_t world = spec.mesh.shard_world;
  const std::uint32_t shard = rank % world;
  if (spec.policy == Policy::zero12) return zero12(spec, tensors, shard);
  if (spec.policy == Policy::zero12_boundary) return boundary(spec, tensors)[shard];
  Buffer buffer;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::vector<Slot> flat = all_elements(t, tensors[t]);
    std::uint64_t part = flat.size();
    std::uint64_t first = 0;
    if (spec.policy == Policy::zero3) {
      part = (flat.size() + world - 1) / world;
      first = shard * part;
    } else if (spec.policy == Policy::rows && !flat.empty()) {
      const std::uint64_t rows = tensors[t].empty() ? 1 : tensors[t][0];
      part = (rows + world - 1) / world * (flat.size() / rows);
      first = shard * part;
    } else if (spec.policy == Policy::layer_wise && spec.owners[t] != shard) {
      continue;
    } else if (spec.policy == Policy::uneven_rows) {
      const std::uint64_t row =
          tensors[t].empty() ? 1 : elems({tensors[t].begin() + 1, tensors[t].end()});
      for (std::uint64_t s = 0; s < shard; ++s) first += spec.rows[t][s] * row;
      part = spec.rows[t][shard] * row;
    }
    append_padded(buffer, flat, first, part);
  }
  return buffer;
}

// Row-major element numbers a box covers, in the box's own row-major order.
inline std::vector<std::uint64_t> elements_of(const Shape& shape, const Box& box) {
  std::vector<std::uint64_t> out = {0};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::uint64_t> wider;
    for (const std::uint64_t prefix : out)
      for (std::uint64_t i = 0; i < box.extent[d]; ++i)
        wider.push_back(prefix * shape[d] + box.offset[d] + i);
    out = std::move(wider);
  }
  return out;
}

// What the layout says the rank's buffer is, by way of pieces() and buffer_first().
inline Buffer buffer_by_layout(const Layout& layout, Rank rank) {
  Buffer buffer(layout.buffer_elems(rank));
  for (std::size_t t = 0; t < layout.tensors().size(); ++t)
    for (const Piece& piece : layout.pieces(t, rank)) {
      std::uint64_t at = layout.buffer_first(t, rank) + piece.local_first;
      for (const std::uint64_t element : elements_of(layout.tensors()[t], piece.box))
        buffer.at(at++) = {static_cast<std::int64_t>(t), element};
    }
  return buffer;
}

using Random = std::mt19937_64;

inline std::uint64_t up_to(Random& random, std::uint64_t most) { return random() % (most + 1); }

// Shapes that have broken partition code before: 0 rows, fewer rows than ranks, one element,
// primes, scalars, five dimensions.
inline Shape awkward_shape(Random& random) {
  switch (up_to(random, 6)) {
    case 0:
      return {};
    case 1:
      return {0, 1 + up_to(random, 5)};
    case 2:
      return {1};
    case 3:
      return {13, 7};
    case 4:
      return {1 + up_to(random, 2), 2, 1, 3, 1 + up_to(random, 2)};
    case 5:
      return {1 + up_to(random, 30)};
    default:
      return {1 + up_to(random, 11), up_to(random, 9)};
  }
}

inline std::vector<Shape> awkward_tensors(Random& random) {
  std::vector<Shape> tensors(up_to(random, 6));
  for (Shape& shape : tensors) shape = awkward_shape(random);
  return tensors;
}

// What each tensor's list of a policy is, on this many shards: owners, or rows, many of them none.
inline void add_lists(Random& random, const std::vector<Shape>& tensors, Layout::Spec& spec) {
  for (const Shape& shape : tensors) {
    const std::uint32_t last = spec.mesh.shard_world - 1;
    if (spec.policy == Policy::layer_wise)
      spec.owners.push_back(static_cast<std::uint32_t>(up_to(random, last)));
    if (spec.policy != Policy::uneven_rows) continue;
    auto& rows = spec.rows.emplace_back(spec.mesh.shard_world, 0);
    for (std::uint64_t left = shape.empty() ? 1 : shape[0]; left > 0;) {
      const std::uint64_t some = 1 + up_to(random, left - 1);
      rows[up_to(random, last)] += some;
      left -= some;
    }
  }
}

inline Layout::Spec awkward_spec(Random& random, Policy policy, const std::vector<Shape>& tensors) {
  Layout::Spec spec;
  spec.policy = policy;
  spec.mesh.shard_world = static_cast<std::uint32_t>(1 + up_to(random, 8));
  spec.mesh.replicas = static_cast<std::uint32_t>(1 + up_to(random, 2));
  spec.align_elems = 1 + up_to(random, 4);
  add_lists(random, tensors, spec);
  return spec;
}

inline constexpr Policy kEveryPolicy[] = {
    Policy::replicated, Policy::zero12,     Policy::zero12_boundary, Policy::zero3,
    Policy::rows,       Policy::layer_wise, Policy::uneven_rows};

}  // namespace ebb::formats::oracle
