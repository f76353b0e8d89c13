#include "ebb/formats/elements/writer_faults.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/formats/elements/statistics.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kLookedAt = 4096;  // elements at each end of a tensor

// At most kLookedAt elements at the beginning of a tensor, or at its end.
enum class End : std::uint8_t { first, last };

Box sample_at(const Shape& shape, End end) {
  Box box{Shape(shape.size(), 0), Shape(shape.size(), 1)};
  std::uint64_t room = kLookedAt;
  for (std::size_t d = shape.size(); d > 0; --d) {
    box.extent[d - 1] = std::min(shape[d - 1], room);
    room /= std::max<std::uint64_t>(1, box.extent[d - 1]);
    if (end == End::last) box.offset[d - 1] = shape[d - 1] - box.extent[d - 1];
  }
  return box;
}

Result<std::vector<float>> floats_at(const Checkpoint& checkpoint, const TensorEntry& tensor,
                                     const Box& box) {
  ByteVector bytes(volume(box.extent) * bytes_of(tensor.dtype));
  EBB_TRY(read_box(checkpoint, tensor, box, bytes));
  std::vector<float> out(volume(box.extent));
  if (!out.empty())
    cast_floats(tensor.dtype, bytes, DType::f32, std::as_writable_bytes(std::span(out)));
  return out;
}

struct Compared {
  std::uint64_t elements = 0;
  std::uint64_t differ = 0;      // by more than rounding to 16 bits can
  std::uint64_t zeros_last = 0;  // masters at the end that are zero where the model's are not
};

void compare(std::span<const float> masters, std::span<const float> weights, Compared& seen) {
  constexpr float kRounding = 1.0F / 64;  // twice and more what bf16 rounds
  constexpr float kTiny = 1e-6F;          // where fp16 has no more digits
  seen.elements += masters.size();
  seen.zeros_last = 0;
  for (std::size_t i = 0; i < masters.size(); ++i) {
    const float off = std::abs(masters[i] - weights[i]);
    if (!(off <= kRounding * std::abs(masters[i]) + kTiny)) ++seen.differ;
    seen.zeros_last = masters[i] == 0 ? seen.zeros_last + (weights[i] != 0 ? 1 : 0) : 0;
  }
}

Result<Compared> compare(const Checkpoint& checkpoint, const TensorEntry& master,
                         const TensorEntry& weights) {
  Compared seen;
  for (const End end : {End::first, End::last}) {
    const Box box = sample_at(master.shape, end);
    if (end == End::last && box == sample_at(master.shape, End::first)) break;
    EBB_TRY_ASSIGN(const auto wide, floats_at(checkpoint, master, box));
    EBB_TRY_ASSIGN(const auto narrow, floats_at(checkpoint, weights, box));
    compare(wide, narrow, seen);
  }
  return seen;
}

bool can_compare(const TensorEntry& tensor) {
  return is_floating(tensor.dtype) && bits_of(tensor.dtype) >= 16;
}

Result<std::optional<std::string>> normalised_momentum(const Checkpoint& checkpoint) {
  constexpr double kNear = 0.01;  // bf16 rounds each element by 0.002 at most
  std::size_t matrices = 0;
  bool narrow = true;
  double lowest = 2, highest = 0;
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) {
    const bool momentum = tensor.state == "momentum_buffer" && tensor.shape.size() == 2;
    if (!momentum || !is_floating(tensor.dtype)) continue;
    EBB_TRY_ASSIGN(const auto statistics, statistics_of(checkpoint, tensor, {}));
    if (!statistics || std::abs(statistics->norm - 1) > kNear) return std::optional<std::string>();
    ++matrices;
    narrow = narrow && tensor.dtype == DType::bf16;
    lowest = std::min(lowest, statistics->norm);
    highest = std::max(highest, statistics->norm);
  }
  if (matrices == 0 || (matrices == 1 && !narrow)) return std::optional<std::string>();
  std::array<char, 64> range{};
  std::snprintf(range.data(), range.size(), "%.4f to %.4f", lowest, highest);
  return std::optional(
      compose("the momentum of all {} matrices has norm 1 ({}): torch.optim.Muon with bf16 "
              "gradients and nesterov=False normalises what it stores (pytorch issue 194664), so a "
              "step's gradient outweighs the past",
              matrices, range.data()));
}

}  // namespace

// Of a distributed optimizer whose state is in the model's own space.
bool in_model_space(const TensorEntry& master) {
  return master.state == "master" && master.key &&
         master.key->find("optimizer.state.param.") != std::string::npos;
}

Result<std::optional<std::string>> shifted_masters(const Checkpoint& checkpoint) {
  const Catalog& catalog = checkpoint.catalog();
  if (catalog.format != "megatron") return std::optional<std::string>();
  std::map<std::string_view, const TensorEntry*> weights;
  for (const TensorEntry& tensor : catalog.tensors)
    if (tensor.state == "param" && can_compare(tensor)) weights[tensor.name] = &tensor;
  std::size_t pairs = 0, wrong = 0, zero_tails = 0;
  std::string first;
  for (const TensorEntry& master : catalog.tensors) {
    const auto model = weights.find(master.name);
    if (!in_model_space(master) || !can_compare(master) || model == weights.end() ||
        model->second->shape != master.shape)
      continue;
    EBB_TRY_ASSIGN(const Compared seen, compare(checkpoint, master, *model->second));
    ++pairs;
    if (2 * seen.differ <= seen.elements) continue;
    ++wrong;
    if (seen.zeros_last != 0) ++zero_tails;
    if (first.empty())
      first = compose("{}, {} of {} elements looked at", printable(master.name), seen.differ,
                      seen.elements);
  }
  if (wrong == 0 || wrong == pairs) return std::optional<std::string>();
  return std::optional(
      compose("master weights of {} of {} parameters are not the model's weights (the first: {}), "
              "{} end in zeros: fully_reshardable of megatron-core 0.14 to 0.19 takes the state "
              "behind the first of several buckets from shifted places (Megatron-LM pull 5077). "
              "The model's weights are right; masters and moments of these parameters are lost",
              wrong, pairs, first, zero_tails));
}

Result<std::vector<std::string>> known_writer_faults(const Checkpoint& checkpoint) {
  std::vector<std::string> faults;
  for (const auto look : {shifted_masters, normalised_momentum}) {
    EBB_TRY_ASSIGN(auto fault, look(checkpoint));
    if (fault) faults.push_back(std::move(*fault));
  }
  return faults;
}

}  // namespace ebb::formats
