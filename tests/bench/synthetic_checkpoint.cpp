#include "tests/bench/synthetic_checkpoint.h"

#include <array>
#include <cstring>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/float_cast.h"

namespace ebb::bench {

namespace {

constexpr std::uint64_t kWidth = 1024;
constexpr std::array kStates = {"param", "master", "exp_avg", "exp_avg_sq"};
constexpr std::uint64_t kBytesPerParameter = 2 + 3 * 4;

// Between 0.5 and 1, different for each tensor and element.
void generate(std::uint64_t seed, std::uint64_t first, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t bits = ((first + i) ^ (seed << 40)) * 0x9e3779b97f4a7c15u;
    const std::uint32_t word = 0x3f000000u | static_cast<std::uint32_t>(bits >> 41);
    std::memcpy(&out[i], &word, sizeof(word));
  }
}

}  // namespace

SyntheticCheckpoint::SyntheticCheckpoint(std::uint64_t bytes) {
  catalog_.format = "synthetic";
  catalog_.step = 1000;
  GroupEntry group;
  group.optimizer = "adamw";
  group.settings = {{"lr", Value::of_real(3e-4)},
                    {"betas", Value::of_list({Value::of_real(0.9), Value::of_real(0.95)})},
                    {"eps", Value::of_real(1e-8)},
                    {"weight_decay", Value::of_real(0.1)}};
  catalog_.groups.push_back(std::move(group));
  std::uint64_t made = 0;
  for (int layer = 0; made < bytes; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer);
    made += add(name + ".attention.weight", {4 * kWidth, kWidth});
    made += add(name + ".mlp.weight", {8 * kWidth, kWidth});
    made += add(name + ".norm.weight", {kWidth});
  }
}

std::uint64_t SyntheticCheckpoint::add(const std::string& name, const Shape& shape) {
  for (const char* state : kStates) {
    TensorEntry tensor;
    tensor.name = name;
    tensor.state = state;
    tensor.dtype = tensor.state == "param" ? DType::bf16 : DType::f32;
    tensor.shape = shape;
    tensor.chunks = {Chunk{.box = formats::whole(shape)}};
    catalog_.tensors.push_back(std::move(tensor));
  }
  catalog_.groups.front().params.push_back(name);
  catalog_.param_steps[name] = 1000;
  return formats::volume(shape) * kBytesPerParameter;
}

Result<> SyntheticCheckpoint::read_chunk(const TensorEntry& tensor, const Chunk&,
                                         std::uint64_t first, std::span<std::byte> into) const {
  auto number = static_cast<std::uint64_t>(&tensor - catalog_.tensors.data());
  EBB_CHECK(number < catalog_.tensors.size());
  if (tensor.state == "param") ++number;  // the master's, rounded
  const std::uint64_t elem = bytes_of(tensor.dtype);
  EBB_CHECK(first % elem == 0 && into.size() % elem == 0);
  std::array<float, 4096> block{};
  std::uint64_t at = first / elem;
  while (!into.empty()) {
    const std::size_t count = std::min<std::size_t>(block.size(), into.size() / elem);
    const auto values = std::span(block).first(count);
    generate(number, at, values);
    formats::cast_floats(DType::f32, std::as_bytes(values), tensor.dtype, into.first(count * elem));
    at += count;
    into = into.subspan(count * elem);
  }
  return {};
}

}  // namespace ebb::bench
