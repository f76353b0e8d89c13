#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/deepspeed/config.h"
#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/partition.h"
#include "ebb/formats/elements/box_reader.h"

namespace ebb::formats {
namespace deepspeed {
namespace {

constexpr std::uint64_t kBlock = 1 << 20;  // elements compared at once

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

// Whether the model's own copy is the master weights, rounded; of one dtype, whether it is a copy.
Result<bool> is_rounded(const Checkpoint& checkpoint, const TensorEntry& param,
                        const TensorEntry& master) {
  EBB_TRY_ASSIGN(const BoxReader rounded, BoxReader::open(checkpoint, param));
  EBB_TRY_ASSIGN(const BoxReader exact, BoxReader::open(checkpoint, master));
  const std::uint64_t elems = volume(param.shape);
  for (std::uint64_t first = 0; first < elems; first += kBlock) {
    for (const Box& box : boxes_of(param.shape, {first, std::min(kBlock, elems - first)})) {
      const std::uint64_t count = volume(box.extent);
      ByteVector stored(count * bytes_of(param.dtype));
      ByteVector wide(count * bytes_of(master.dtype));
      EBB_TRY(rounded.read(box, stored));
      EBB_TRY(exact.read(box, wide));
      if (master.dtype != param.dtype) {
        ByteVector made(stored.size());
        cast_floats(master.dtype, wide, param.dtype, made);
        wide = std::move(made);
      }
      if (!same_numbers(param.dtype, stored, wide)) return false;
    }
  }
  return true;
}

// What several ranks of tensor or pipeline parallelism have, whole, they have alike.
std::vector<Error> copies_that_differ(const ZeroCheckpoint& checkpoint) {
  std::map<std::pair<std::string_view, std::string_view>, const TensorEntry*> tensors;
  for (const TensorEntry& tensor : checkpoint.catalog().tensors)
    tensors.emplace(std::pair<std::string_view, std::string_view>(tensor.name, tensor.state),
                    &tensor);
  const TensorEntry* first = nullptr;
  std::size_t count = 0;
  for (const TensorEntry& copy : checkpoint.copies) {
    const auto tensor = tensors.find({copy.name, copy.state});
    if (tensor == tensors.end() || tensor->second->shape != copy.shape ||
        tensor->second->dtype != copy.dtype)
      continue;
    const auto same = is_rounded(checkpoint, copy, *tensor->second);
    if (!same || *same) continue;
    if (first == nullptr) first = &copy;
    ++count;
  }
  if (first == nullptr) return {};
  const std::string file = first->chunks.empty()
                               ? std::string()
                               : checkpoint.catalog().files[first->chunks.front().file].name;
  Error error{
      Code::corrupt,
      compose("{}: {} of {}{} is not what the ranks of tensor or pipeline parallelism before "
              "have of it: files of two saves, or ranks that have drifted apart",
              file, first->state, json_string(first->name),
              (count == 1 ? "" : compose(" and {} other tensors", count - 1))),
      "what the first rank has is read; a job that goes on would go on with each rank's own"};
  error.place.file = file;
  error.place.tensor = first->name;
  return {std::move(error)};
}

std::vector<Error> problems_of(const std::shared_ptr<const SourceTree>& tree,
                               const Catalog& catalog) {
  // ZenFlow's optimizer steps behind the model's back: its masters are ahead of the weights.
  const Value* zenflow = value_at(catalog, {"ds_config", "zero_optimization", "zenflow"});
  const auto checkpoint =
      catalog.format == "deepspeed" ? describe_deepspeed(tree) : describe_deepspeed_universal(tree);
  if (!checkpoint || (zenflow != nullptr && zenflow->kind == Value::Kind::dict)) return {};
  std::map<std::string_view, const TensorEntry*> masters;
  const std::vector<TensorEntry>& tensors = (*checkpoint)->catalog().tensors;
  for (const TensorEntry& tensor : tensors)
    if (tensor.state == "master") masters.emplace(tensor.name, &tensor);
  const TensorEntry* first = nullptr;
  std::size_t count = 0;
  for (const TensorEntry& tensor : tensors) {
    const auto master = masters.find(tensor.name);
    if (tensor.state != "param" || master == masters.end() || tensor.chunks.empty()) continue;
    if (tensor.shape != master->second->shape || !is_floating(tensor.dtype)) continue;
    const auto rounded = is_rounded(**checkpoint, tensor, *master->second);
    if (!rounded || *rounded) continue;  // what cannot be read is told by whoever reads everything
    if (first == nullptr) first = &tensor;
    ++count;
  }
  std::vector<Error> problems =
      copies_that_differ(static_cast<const ZeroCheckpoint&>(**checkpoint));
  if (first == nullptr) return problems;
  const std::string& file = (*checkpoint)->catalog().files[first->chunks.front().file].name;
  Error error{Code::corrupt,
              compose("{}/{}: the weights of {}{} are not the master weights of the optimizer "
                      "files, rounded to {}: files of two saves, or edited weights",
                      tree->root(), file, json_string(first->name),
                      (count == 1 ? "" : compose(" and {} other parameters", count - 1)),
                      name_of(first->dtype)),
              "DeepSpeed goes on from the master weights; use the checkpoint before this one if "
              "those are the wrong ones"};
  error.place.file = file;
  error.place.tensor = first->name;
  problems.push_back(std::move(error));
  return problems;
}

}  // namespace
}  // namespace deepspeed

std::vector<Error> deepspeed_problems(const std::shared_ptr<const SourceTree>& tree,
                                      const Catalog& catalog) {
  return deepspeed::problems_of(tree, catalog);
}

}  // namespace ebb::formats
