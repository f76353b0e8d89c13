// Hopper's shared memory, copies and products. Copies come when they are asked for or when they are
// waited for, products read when they are begun or when they are waited for: whichever it is, the
// result must be the same.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "ebb/formats/core/check.h"
#include "plugins/cuda/hopper.cuh"
#include "plugins/cuda/launch.h"
#include "tests/libmuon/cuda/emulated/block.h"
#include "tests/libmuon/cuda/emulated/keywords.h"
#include "tests/libmuon/cuda/stub_control.h"
#include "tests/libmuon/cuda/stub_stream.h"

namespace ebb::emulated {
namespace {

// Where shared memory begins: a multiple of 16 alone, though it often is one of more.
constexpr std::uint32_t kFirst = 16;

struct Copy {
  std::uint32_t to;
  const std::byte* from;
  unsigned bytes;
};
struct Product {
  float* sums;
  std::uint64_t left, right;
  float (*widen)(std::uint16_t);
};
// Asked for by a thread, in groups; the last is still open.
template <typename T>
struct Pending {
  std::vector<std::vector<T>> groups{1};
  void end() { groups.emplace_back(); }
  // All groups that are ended but the last ones.
  template <typename Do>
  void settle(unsigned last, const Do& act) {
    while (groups.size() > last + 1) {
      for (const T& one : groups.front()) act(one);
      groups.erase(groups.begin());
    }
  }
};

alignas(1024) std::array<std::byte, 1024 + kFirst + kSharedBytes> memory;
std::vector<Pending<Copy>> copies;
std::vector<Pending<Product>> products;
bool copies_early = false, products_early = false;

// Addresses 1,024 and `memory` agree in what they are multiples of.
std::byte* at(std::uint32_t address) {
  EBB_CHECK(address >= kFirst && address < kFirst + kSharedBytes + 1024);
  return memory.data() + address;
}

void copy(const Copy& one) {
  EBB_CHECK(one.to % 16 == 0 && reinterpret_cast<std::uintptr_t>(one.from) % 16 == 0);
  EBB_CHECK(one.bytes <= 16);
  std::memset(at(one.to), 0, 16);
  std::memcpy(at(one.to), one.from, one.bytes);
}

// A number of a row, as the matrix descriptor finds it (PTX ISA, "Matrix Descriptor Format"): rows
// of 128 bytes, strides of eight rows; bits 4 to 6 of an address exclusive or its bits 7 to 9.
std::uint16_t number(std::uint64_t descriptor, unsigned row, unsigned k) {
  EBB_CHECK(descriptor >> 62 == 1 && (descriptor >> 49 & 7) == 0);
  const auto first = static_cast<std::uint32_t>((descriptor & 0x3fff) * 16);
  const auto stride = static_cast<std::uint32_t>((descriptor >> 32 & 0x3fff) * 16);
  const std::uint32_t plain = first + row / 8 * stride + row % 8 * 128 + k * 2;
  std::uint16_t bits = 0;
  std::memcpy(&bits, at(plain ^ (plain >> 7 & 7) << 4), sizeof(bits));
  return bits;
}

using Row = std::array<float, cuda::kProductDepth>;
Row row_of(const Product& of, std::uint64_t descriptor, unsigned row) {
  Row numbers;
  for (unsigned k = 0; k < numbers.size(); ++k) numbers[k] = of.widen(number(descriptor, row, k));
  return numbers;
}

// The share of the thread that asked (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16").
void multiply(const Product& of, std::size_t thread) {
  const auto warp = static_cast<unsigned>(thread % 128 / 32);
  const auto lane = static_cast<unsigned>(thread % 32);
  const unsigned row = warp * 16 + lane / 4;
  const std::array rows = {row_of(of, of.left, row), row_of(of, of.left, row + 8)};
  for (unsigned i = 0; i < 32; ++i) {
    const Row col = row_of(of, of.right, i / 2 * 8 + lane % 4 * 2 + i % 2);
    for (unsigned low = 0; low < 2; ++low)
      of.sums[i / 2 * 4 + low * 2 + i % 2] +=
          std::inner_product(col.begin(), col.end(), rows[low].begin(), 0.0f);
  }
}

}  // namespace

void begin_block(std::uint64_t seed, std::size_t threads) {
  copies_early = seed / 3 % 2 == 0;
  products_early = seed / 5 % 2 == 0;
  memory.fill(std::byte{0xff});  // NaN
  copies.assign(threads, {});
  products.assign(threads, {});
}

void wait_for_copies(unsigned last) { copies[running()].settle(last, copy); }
void wait_for_products(unsigned last) {
  products[running()].settle(last, [](const Product& one) { multiply(one, running()); });
}
void multiply(float* sums, std::uint64_t left, std::uint64_t right, float (*widen)(std::uint16_t)) {
  const Product one{sums, left, right, widen};
  if (products_early)
    multiply(one, running());
  else
    products[running()].groups.back().push_back(one);
}

}  // namespace ebb::emulated

namespace ebb::cuda {

std::byte* shared_room() { return emulated::memory.data() + emulated::kFirst; }
std::uint32_t shared_address(const std::byte* room) {
  EBB_CHECK(room == shared_room());
  return emulated::kFirst;
}
void copy_piece(std::uint32_t to, const void* from, unsigned bytes) {
  const emulated::Copy one{to, static_cast<const std::byte*>(from), bytes};
  if (emulated::copies_early)
    emulated::copy(one);
  else
    emulated::copies[emulated::running()].groups.back().push_back(one);
}
void end_copies() { emulated::copies[emulated::running()].end(); }
void show_copies() {}
void begin_products() {}
void end_products() { emulated::products[emulated::running()].end(); }

}  // namespace ebb::cuda

extern "C" void ebb_emulated_symmetric(const ebb::cuda::Symmetric* product, unsigned processors) {
  CUstream_st stream;
  EBB_CHECK(launch_symmetric(*product, processors, &stream) == cudaSuccess);
}
