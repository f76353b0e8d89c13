// A trainer's buffer: a rank's pieces of all parameters, with NaN between them, on the host or on a
// device. What is not a piece stays as it is.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "ebb/formats/core/bf16.h"
#include "ebb/formats/core/units.h"
#include "ebb/libswap/device/device.h"

namespace ebb::test {

class Bucket {
 public:
  void add(std::uint64_t elems, DType dtype) {
    places_.push_back({bytes_.size() + kGap, elems, dtype});
    bytes_.resize(formats::align_up(bytes_.size() + kGap + elems * bytes_of(dtype), kGap), kPoison);
  }
  // Behind the last add(). Null: the host's.
  Result<> lay_on(libswap::Device* device) {
    device_ = device;
    if (device == nullptr) return {};
    EBB_TRY_ASSIGN(memory_, device->allocate(bytes_.size()));
    libswap::copy(libswap::buffer_of(std::span(bytes_)), memory_.buffer(), {}).wait();
    return {};
  }

  // Where an engine finds it.
  libswap::Buffer piece(std::size_t param) {
    const Place& place = places_[param];
    const libswap::Buffer all = device_ == nullptr ? here() : memory_.buffer();
    return all.sub(place.first, place.elems * bytes_of(place.dtype)).as(place.dtype);
  }
  float at(std::size_t param, std::uint64_t i) {
    const libswap::Buffer buffer = on_host(param);
    return buffer.dtype == DType::bf16 ? formats::bf16_to_f32(buffer.bf16s()[i])
                                       : buffer.floats()[i];
  }
  void set(std::size_t param, std::uint64_t i, float value) {
    const libswap::Buffer buffer = on_host(param);
    if (buffer.dtype == DType::bf16)
      buffer.bf16s()[i] = formats::f32_to_bf16(value);
    else
      buffer.floats()[i] = value;
  }
  void spoil(std::size_t param) { std::ranges::fill(on_host(param).bytes(), kPoison); }
  // What was set is in the piece behind the event.
  libswap::Event send(std::size_t param) {
    return device_ == nullptr ? libswap::Event() : libswap::copy(on_host(param), piece(param), {});
  }
  // What is in the pieces is what at() answers.
  void fetch() {
    if (device_ != nullptr) libswap::copy(memory_.buffer(), here(), {}).wait();
  }
  bool padding_is_poison() {
    fetch();
    std::uint64_t end = 0;
    for (const Place& place : places_) {
      const auto gap = std::span(bytes_).subspan(end, place.first - end);
      if (std::ranges::any_of(gap, [](std::byte byte) { return byte != kPoison; })) return false;
      end = place.first + place.elems * bytes_of(place.dtype);
    }
    return true;
  }

 private:
  static constexpr std::uint64_t kGap = 64;
  static constexpr std::byte kPoison{0xff};  // four of them are a NaN in fp32, two in bf16
  struct Place {
    std::uint64_t first = 0;  // in bytes
    std::uint64_t elems = 0;
    DType dtype = DType::f32;
  };
  libswap::Buffer here() { return libswap::buffer_of(std::span(bytes_)); }
  libswap::Buffer on_host(std::size_t param) {
    const Place& place = places_[param];
    return here().sub(place.first, place.elems * bytes_of(place.dtype)).as(place.dtype);
  }

  std::vector<Place> places_;
  std::vector<std::byte> bytes_;
  libswap::Device* device_ = nullptr;
  libswap::DeviceMemory memory_;
};

}  // namespace ebb::test
