// A described checkpoint in memory whose tensors are cut any way a test likes.
#pragma once

#include <algorithm>
#include <atomic>
#include <random>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/check.h"
#include "ebb/formats/layout/layout.h"

namespace ebb::libswap::testing {

using Random = std::mt19937_64;

class MemoryCheckpoint : public Checkpoint {
 public:
  // The tensor's row-major bytes, random. Returns its index.
  std::uint32_t add(std::string name, DType dtype, Shape shape, Random& random) {
    TensorEntry entry;
    entry.name = std::move(name);
    entry.state = "master";
    entry.dtype = dtype;
    entry.shape = std::move(shape);
    ByteVector bytes(*formats::packed_bytes(dtype, formats::volume(entry.shape)));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    catalog_.tensors.push_back(std::move(entry));
    content_.push_back(std::move(bytes));
    return static_cast<std::uint32_t>(content_.size() - 1);
  }
  void add_chunk(std::uint32_t tensor, Box box, std::uint32_t rank) {
    Chunk chunk;
    chunk.box = std::move(box);
    chunk.holder = Rank{rank};
    chunk.offset = tensor;
    catalog_.tensors[tensor].chunks.push_back(std::move(chunk));
  }
  // Cuts all tensors the way the layout's first copy holds them, in a random order of chunks.
  void cut(const Layout& layout, Random& random) {
    for (std::uint32_t t = 0; t < catalog_.tensors.size(); ++t) {
      catalog_.tensors[t].chunks.clear();
      for (std::uint32_t r = 0; r < layout.spec().mesh.shard_world; ++r)
        for (const formats::Piece& piece : layout.pieces(t, Rank{r})) add_chunk(t, piece.box, r);
      std::ranges::shuffle(catalog_.tensors[t].chunks, random);
    }
  }

  Catalog& catalog() { return catalog_; }
  const Catalog& catalog() const override { return catalog_; }
  const TensorEntry& tensor(std::uint32_t index) const { return catalog_.tensors[index]; }
  ByteVector& bytes(std::uint32_t tensor) { return content_[tensor]; }

  // Row-major elements of a box, gathered the slow way: element by element.
  ByteVector elements(std::uint32_t tensor, const Box& box) const {
    const TensorEntry& entry = catalog_.tensors[tensor];
    if (formats::bits_of(entry.dtype) % 8 != 0) {  // only whole tensors in these tests
      EBB_CHECK(box == formats::whole(entry.shape));
      return content_[tensor];
    }
    const std::uint64_t elem = formats::bytes_of(entry.dtype);
    ByteVector out;
    for (std::uint64_t i = 0; i < formats::volume(box.extent); ++i) {
      std::uint64_t rest = i;
      std::uint64_t flat = 0;
      std::uint64_t stride = 1;
      for (std::size_t d = entry.shape.size(); d-- > 0;) {
        flat += (box.offset[d] + rest % box.extent[d]) * stride;
        rest /= box.extent[d];
        stride *= entry.shape[d];
      }
      const auto first = content_[tensor].begin() + static_cast<std::ptrdiff_t>(flat * elem);
      out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(elem));
    }
    return out;
  }

  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override {
    if (fail_after_ > 0 && --fail_after_ == 0)
      return Error{Code::corrupt, "shard.bin:77: checksum does not match"};
    const auto index = static_cast<std::uint32_t>(&tensor - catalog_.tensors.data());
    std::uint64_t largest = largest_read_;
    while (largest < into.size() && !largest_read_.compare_exchange_weak(largest, into.size())) {
    }
    bytes_read_ += into.size();
    ++reads_;
    // Whole-tensor chunks need no gathering, however large.
    const ByteVector gathered =
        chunk.box == formats::whole(tensor.shape) ? ByteVector() : elements(index, chunk.box);
    const ByteView stored = gathered.empty() ? ByteView(content_[index]) : gathered;
    EBB_CHECK(first + into.size() <= stored.size());
    std::ranges::copy(stored.subspan(first, into.size()), into.begin());
    return {};
  }

  void fail_on_read(int count) { fail_after_ = count; }
  std::uint64_t largest_read() const { return largest_read_; }
  std::uint64_t bytes_read() const { return bytes_read_; }
  std::uint64_t reads() const { return reads_; }

 private:
  Catalog catalog_;
  std::vector<ByteVector> content_;
  mutable std::atomic<int> fail_after_ = 0;
  mutable std::atomic<std::uint64_t> largest_read_ = 0;
  mutable std::atomic<std::uint64_t> bytes_read_ = 0;
  mutable std::atomic<std::uint64_t> reads_ = 0;
};

inline Layout layout_of(Policy policy, std::uint32_t world, const Catalog& catalog) {
  std::vector<Shape> shapes;
  for (const TensorEntry& tensor : catalog.tensors) shapes.push_back(tensor.shape);
  auto layout = Layout::make({.policy = policy, .mesh = {world, 1}}, std::move(shapes));
  EBB_CHECK(layout.has_value());
  return *std::move(layout);
}

// A source that changes what it gave out before.
class Fickle : public MemoryCheckpoint {
 public:
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override {
    EBB_TRY(MemoryCheckpoint::read_chunk(tensor, chunk, first, into));
    if (!before_.empty()) before_[0] ^= std::byte{1};
    before_ = into;
    return {};
  }

 private:
  mutable std::span<std::byte> before_;
};

}  // namespace ebb::libswap::testing
