#include <algorithm>
#include <set>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/nesting.h"
#include "ebb/formats/state_dict/numbers.h"
#include "ebb/formats/state_dict/state_dict.h"
#include "ebb/formats/torch/file_writer.h"
#include "ebb/formats/torch/numpy_array.h"
#include "ebb/formats/torch/tensor.h"
#include "ebb/formats/torch/torch_file.h"
#include "ebb/formats/torch_save/nested.h"
#include "ebb/formats/torch_save/torch_save.h"

namespace ebb::formats {
namespace torch_save {
namespace {

constexpr std::string_view kStem = "checkpoint";

// weights_only loads no objects of classes, data classes included.
std::string_view unloadable_part(const Value& value, Loader loader) {
  const bool array = loader == Loader::with_arrays && is_numpy_array(value);
  if (value.kind == Value::Kind::object && !array) return value.text;
  for (const Value& item : value.items)
    if (const auto part = unloadable_part(item, loader); !part.empty()) return part;
  for (const auto& [key, item] : value.entries) {
    if (const auto part = unloadable_part(key, loader); !part.empty()) return part;
    if (const auto part = unloadable_part(item, loader); !part.empty()) return part;
  }
  return unwritable_part(value);
}

class Emitter {
 public:
  Emitter(const Catalog& content, Loader loader)
      : content_(content),
        loader_(loader),
        dict_(state_dict_of(content)),
        file_(content, std::string(kStem)) {}

  Result<EmitPlan> run() {
    EBB_TRY(check_reads_back(content_, dict_));
    find_words_for_numbers();
    for (const std::vector<PathItem>& states : counted_) EBB_TRY(nesting_.add({.path = states}));
    for (std::uint32_t i = 0; i < dict_.tensors.size(); ++i) EBB_TRY(place_tensor(i));
    for (PlacedValue& value : dict_.values) EBB_TRY(place_value(value));
    for (const ContainerEntry& container : content_.containers)
      EBB_TRY(nesting_.add({counted(container.path), container.kind}));
    write_nested(file_, nesting_, nesting_.root(), [&](const Nesting::Leaf& leaf) { write(leaf); });
    // Else whoever reads it would take the numbers for places in the model.
    const bool other_order = content_.listed == ListOrder::unknown || !counted_.empty();
    if (other_order && !mere_numbers(content_).empty())
      file_.add_record(kOtherOrderRecord, "of the checkpoint that this was converted from\n");
    plan_.files.push_back(file_.finish(compose("{}.pt", kStem), Rank{0}));
    return std::move(plan_);
  }

 private:
  // Keys of a DCP are words, and torch.optim finds no states under words for numbers.
  void find_words_for_numbers() {
    for (const TensorEntry& tensor : content_.tensors) {
      const auto place = place_of_number(tensor);
      if (place && std::holds_alternative<std::string>(tensor.path[*place]))
        counted_.emplace(tensor.path.begin(),
                         tensor.path.begin() + static_cast<std::ptrdiff_t>(*place));
    }
  }

  // With numbers for them.
  std::vector<PathItem> counted(std::vector<PathItem> path) const {
    for (const std::vector<PathItem>& states : counted_) {
      const bool below =
          path.size() > states.size() && std::equal(states.begin(), states.end(), path.begin());
      const auto number = below ? number_of(path[states.size()]) : std::nullopt;
      if (number) path[states.size()] = PathItem(static_cast<std::int64_t>(*number));
    }
    return path;
  }

  Result<> place_tensor(std::uint32_t number) {
    const StatePlace& place = dict_.tensors[number];
    if (content_.tensors[number].part_of != nullptr) {
      const auto path = wholes_.add(content_.tensors[number], number, counted(place.path));
      return path ? nesting_.add(*path, Nesting::Leaf{number}) : Result<>();
    }
    const DType dtype = content_.tensors[number].dtype;
    if (!torch_name_of(dtype).empty())
      return nesting_.add(counted(place.path), Nesting::Leaf{number});
    plan_.dropped.push_back(
        compose("tensor {}: torch has no dtype {}", json_string(place.key), name_of(dtype)));
    plan_.omitted.push_back(number);
    return {};
  }

  Result<> place_value(PlacedValue& value) {
    if (loader_ == Loader::weights_only && holds_numpy_array(value.value))
      if (auto tensors = with_tensors(value.value)) {
        value.value = *std::move(tensors);
        plan_.notes.push_back(
            compose("value {}: numpy's array becomes a tensor, as weights_only "
                    "wants it",
                    json_string(value.place.key)));
        plan_.rewritten.push_back(value.place.key);
      }
    const std::string_view part = unloadable_part(value.value, loader_);
    if (part.empty()) return nesting_.add(counted(value.place.path), Nesting::Leaf{&value.value});
    plan_.dropped.push_back(
        compose("value {}: holds an object of class {}", json_string(value.place.key), part));
    return {};
  }

  void write(const Nesting::Leaf& leaf) {
    if (const auto* number = std::get_if<std::uint32_t>(&leaf)) {
      const TensorEntry& tensor = content_.tensors[*number];
      return tensor.part_of ? file_.composite(wholes_.parts_of(tensor)) : file_.tensor(*number);
    }
    file_.value(*std::get<const Value*>(leaf));
  }

  const Catalog& content_;
  Loader loader_;
  StateDict dict_;
  std::set<std::vector<PathItem>> counted_;  // places of states with words for numbers
  Nesting nesting_;
  PlacedWholes wholes_;
  TorchFileWriter file_;
  EmitPlan plan_;
};

}  // namespace
}  // namespace torch_save

Result<EmitPlan> emit_torch(const EmitRequest& request, Loader loader) {
  return torch_save::Emitter(request.content, loader).run();
}

}  // namespace ebb::formats
