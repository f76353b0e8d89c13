#include <algorithm>
#include <map>
#include <optional>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/deepspeed/config.h"
#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/partition.h"
#include "ebb/formats/elements/masters.h"

namespace ebb::formats {
namespace deepspeed {
namespace {

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
  std::vector<Error> problems =
      copies_that_differ(static_cast<const ZeroCheckpoint&>(**checkpoint));
  auto apart = weights_apart_from_masters(
      **checkpoint, tree->root(),
      "DeepSpeed goes on from the master weights; use the checkpoint before this one if those are "
      "the wrong ones",
      [](const TensorEntry&) { return true; });
  if (apart) problems.push_back(*std::move(apart));
  return problems;
}

}  // namespace
}  // namespace deepspeed

std::vector<Error> deepspeed_problems(const std::shared_ptr<const SourceTree>& tree,
                                      const Catalog& catalog) {
  return deepspeed::problems_of(tree, catalog);
}

}  // namespace ebb::formats
