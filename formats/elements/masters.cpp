#include "ebb/formats/elements/masters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/elements/box_reader.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kAtOnce = 1 << 20;  // elements compared at once

bool same_numbers(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b) {
  if (std::ranges::equal(a, b)) return true;
  const std::size_t count = a.size() / bytes_of(dtype);
  ByteVector left(count * sizeof(double));
  ByteVector right(count * sizeof(double));
  cast_floats(dtype, a, DType::f64, left);
  cast_floats(dtype, b, DType::f64, right);
  for (std::size_t i = 0; i < left.size(); i += sizeof(double)) {
    const auto x = load_le<double>(std::span(left).subspan(i, sizeof(double)));
    const auto y = load_le<double>(std::span(right).subspan(i, sizeof(double)));
    if (x != y && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

}  // namespace

Result<bool> is_rounded(const Checkpoint& checkpoint, const TensorEntry& weight,
                        const TensorEntry& master) {
  EBB_TRY_ASSIGN(const BoxReader rounded, BoxReader::open(checkpoint, weight));
  EBB_TRY_ASSIGN(const BoxReader exact, BoxReader::open(checkpoint, master));
  const std::uint64_t elems = volume(weight.shape);
  for (std::uint64_t first = 0; first < elems; first += kAtOnce) {
    for (const Box& box : boxes_of(weight.shape, {first, std::min(kAtOnce, elems - first)})) {
      const std::uint64_t count = volume(box.extent);
      ByteVector stored(count * bytes_of(weight.dtype));
      ByteVector wide(count * bytes_of(master.dtype));
      EBB_TRY(rounded.read(box, stored));
      EBB_TRY(exact.read(box, wide));
      if (master.dtype != weight.dtype) {
        ByteVector made(stored.size());
        cast_floats(master.dtype, wide, weight.dtype, made);
        wide = std::move(made);
      }
      if (!same_numbers(weight.dtype, stored, wide)) return false;
    }
  }
  return true;
}

std::optional<Error> weights_apart_from_masters(
    const Checkpoint& checkpoint, std::string_view where, std::string_view goes_on,
    const std::function<bool(const TensorEntry& master)>& counts) {
  const Catalog& catalog = checkpoint.catalog();
  std::map<std::string_view, const TensorEntry*> masters;
  for (const TensorEntry& tensor : catalog.tensors)
    if (tensor.state == "master" && is_floating(tensor.dtype) && counts(tensor))
      masters.emplace(tensor.name, &tensor);
  const TensorEntry* first = nullptr;
  std::size_t count = 0;
  for (const TensorEntry& tensor : catalog.tensors) {
    const auto master = masters.find(tensor.name);
    if (tensor.state != "param" || master == masters.end() || tensor.chunks.empty()) continue;
    if (tensor.shape != master->second->shape || !is_floating(tensor.dtype)) continue;
    const auto rounded = is_rounded(checkpoint, tensor, *master->second);
    if (!rounded || *rounded) continue;
    if (first == nullptr) first = &tensor;
    ++count;
  }
  if (first == nullptr) return std::nullopt;
  const std::string& file = catalog.files[first->chunks.front().file].name;
  Error error{Code::corrupt,
              compose("{}/{}: the weights of {}{} are not the master weights of the optimizer, "
                      "rounded to {}: files of two saves, or edited weights",
                      where, file, json_string(first->name),
                      (count == 1 ? "" : " and " + plural(count - 1, "other parameter")),
                      name_of(first->dtype)),
              std::string(goes_on)};
  error.place.file = file;
  error.place.tensor = first->name;
  return error;
}

}  // namespace ebb::formats
