// Source: torch 2.13's DTensor and FSDP2, and what torch_checkpointing 0.1.1 writes of them.
#include <algorithm>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/state_dict/nesting.h"
#include "ebb/formats/state_dict/state_dict.h"
#include "ebb/formats/torch/file_writer.h"
#include "ebb/formats/torch/tensor.h"
#include "ebb/formats/torch_checkpointing/metadata.h"
#include "ebb/formats/torch_checkpointing/rank_writer.h"
#include "ebb/formats/torch_checkpointing/torch_checkpointing.h"
#include "ebb/formats/torch_save/nested.h"

namespace ebb::formats {
namespace torch_checkpointing {
namespace {

bool counts_steps_on_device(const Catalog& content) {
  const auto is_set = [](const auto& setting) {
    const bool named = setting.first == "fused" || setting.first == "capturable";
    return named && setting.second.kind == Value::Kind::boolean && setting.second.integer != 0;
  };
  return std::ranges::any_of(content.groups, [&](const GroupEntry& group) {
    return std::ranges::any_of(group.settings, is_set);
  });
}

bool is_item_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_';
  });
}

const PathItem kModel(std::in_place_type<std::string>, "model");

// And no tensor that is known by its key alone, which stays an item.
bool is_of_a_model(const TensorEntry& tensor) {
  return is_weight(tensor.state) && tensor.state != "tensor";
}

// A weight at the top goes into the item "model". Whether it was one.
bool into_model(const TensorEntry& tensor, std::vector<PathItem>& path) {
  if (path.size() != 1 || !is_of_a_model(tensor)) return false;
  path.insert(path.begin(), 1, kModel);
  return true;
}

StateDict placed(const Catalog& content) {
  StateDict dict = state_dict_of(content);
  for (std::size_t i = 0; i < content.tensors.size(); ++i) {
    StatePlace& place = dict.tensors[i];
    if (into_model(content.tensors[i], place.path)) place.key = joined(place.path);
  }
  return dict;
}

class Emitter {
 public:
  explicit Emitter(const EmitRequest& request)
      : content_(request.content),
        spec_(request.layout.spec()),
        ranks_(request),
        dict_(placed(content_)),
        steps_on_device_(counts_steps_on_device(content_)) {}

  Result<EmitPlan> run() {
    EBB_TRY(check_layout());
    EBB_TRY(check_reads_back(content_, dict_));
    for (std::uint32_t i = 0; i < dict_.tensors.size(); ++i) EBB_TRY(place_tensor(i));
    for (const PlacedValue& value : dict_.values) EBB_TRY(place_value(value));
    for (const ContainerEntry& container : content_.containers) EBB_TRY(place_container(container));
    for (const auto& [item, child] : nesting_.root().children)
      for (std::uint32_t rank = 0; rank < ranks_.world(); ++rank)
        write(std::get<std::string>(item), nesting_.at(child), rank);
    plan_.commit_files.push_back(metadata());
    return std::move(plan_);
  }

 private:
  Result<> check_layout() const {
    const bool cut = spec_.policy == Policy::rows && spec_.split == 1;
    if ((cut || spec_.policy == Policy::replicated) && spec_.mesh.within.world == 0) return {};
    return Error{
        Code::unsupported,
        compose("torch-checkpointing holds tensors cut by rows over all ranks, or whole at "
                "each; {} is asked for",
                name_of(spec_.policy)),
        "--partition rows"};
  }

  // Every entry at the top is an item, whose name is that of its files.
  static Result<> check_item(const std::vector<PathItem>& path) {
    const auto* item = path.empty() ? nullptr : std::get_if<std::string>(&path.front());
    if (item != nullptr && is_item_name(*item)) return {};
    return Error{Code::unsupported,
                 compose("torch_checkpointing keeps each entry at the top in files called by its "
                         "name, of letters, digits, - and _: {} is none",
                         json_string(joined(path))),
                 "--to dcp holds it"};
  }

  Result<> place_tensor(std::uint32_t number) {
    const StatePlace& place = dict_.tensors[number];
    EBB_TRY(check_item(place.path));
    if (content_.tensors[number].part_of != nullptr) return place_part(number);
    const DType dtype = content_.tensors[number].dtype;
    if (!torch_name_of(dtype).empty()) {
      tensors_.push_back(number);
      return nesting_.add(place.path, Nesting::Leaf{number});
    }
    plan_.dropped.push_back(
        compose("tensor {}: torch has no dtype {}", json_string(place.key), name_of(dtype)));
    plan_.omitted.push_back(number);
    return {};
  }

  Result<> place_part(std::uint32_t number) {
    const auto path = wholes_.add(content_.tensors[number], number, dict_.tensors[number].path);
    if (!path) return {};
    tensors_.push_back(number);
    return nesting_.add(*path, Nesting::Leaf{number});
  }

  Result<> place_value(const PlacedValue& value) {
    EBB_TRY(check_item(value.place.path));
    const std::string_view part = unwritable_part(value.value);
    if (part.empty()) return nesting_.add(value.place.path, Nesting::Leaf{&value.value});
    plan_.dropped.push_back(
        compose("value {}: holds an object of class {}", json_string(value.place.key), part));
    return {};
  }

  Result<> place_container(const ContainerEntry& container) {
    if (!container.path.empty()) EBB_TRY(check_item(container.path));
    return nesting_.add(container);
  }

  // FSDP2 cuts parameters and what the optimizer keeps like them; counters, the numbers of
  // generators and what is made of parts are whole at every rank.
  bool is_cut(std::uint32_t number) const {
    const TensorEntry& tensor = content_.tensors[number];
    return tensor.part_of == nullptr && spec_.policy == Policy::rows && !tensor.shape.empty() &&
           is_floating(tensor.dtype);
  }

  void write(const std::string& item, const Nesting::Place& place, std::uint32_t rank) {
    const std::string stem = compose("{}_{}", item, rank);
    TorchFileWriter file(content_, stem);
    torch_save::write_nested(file, nesting_, place, [&](const Nesting::Leaf& leaf) {
      if (const auto* value = std::get_if<const Value*>(&leaf)) return file.value(**value);
      const auto number = std::get<std::uint32_t>(leaf);
      if (const TensorEntry& tensor = content_.tensors[number]; tensor.part_of != nullptr)
        return file.composite(wholes_.parts_of(tensor));
      is_cut(number) ? ranks_.part(file, number, rank) : file.tensor(number);
    });
    plan_.files.push_back(file.finish(stem + ".pt", Rank{rank}));
  }

  OutputFile metadata() const {
    PickleWriter pickle;
    pickle.dict([&] {
      pickle.dict("metadata", [&] { write_items(pickle); });
      pickle.entry("world_size", ranks_.world());
      pickle.entry("version", "2.0");
    });
    return literal_file(std::string(kMetadataFile), pickle.finish());
  }

  // A counter of steps lies beside the processor, unless the optimizer counts on the device.
  Held held(std::uint32_t number) const {
    if (is_cut(number)) return Held::in_rows;
    const TensorEntry& tensor = content_.tensors[number];
    const bool counter =
        !is_weight(tensor.state) && shape_of_whole(tensor).empty() && !steps_on_device_;
    return counter ? Held::whole_on_cpu : Held::whole_on_device;
  }

  std::vector<PathItem> path_of(std::uint32_t number) const {
    TensorEntry tensor = content_.tensors[number];
    tensor.path = dict_.tensors[number].path;
    return tensor.part_of == nullptr ? tensor.path : whole_of(tensor).path;
  }

  // Those that hold tensors.
  void write_items(PickleWriter& pickle) const {
    std::map<std::string, std::vector<std::uint32_t>> items;
    for (const std::uint32_t number : tensors_)
      items[std::get<std::string>(dict_.tensors[number].path.front())].push_back(number);
    for (const auto& [item, numbers] : items) {
      pickle.dict(item, [&] {
        pickle.dict("nested_path_to_metadata", [&] {
          for (const std::uint32_t number : numbers) {
            const std::vector<PathItem> path = path_of(number);
            pickle.string(path_text(std::span(path).subspan(1)));
            ranks_.metadata_of(pickle, number, held(number));
          }
        });
        pickle.entry("rank_to_layout_info", [&] { ranks_.files(pickle); });
      });
    }
  }

  const Catalog& content_;
  const Layout::Spec& spec_;
  RankWriter ranks_;
  StateDict dict_;
  bool steps_on_device_ = false;
  Nesting nesting_;
  torch_save::PlacedWholes wholes_;
  std::vector<std::uint32_t> tensors_;  // that are stored; of one made of parts, the first
  EmitPlan plan_;
};

}  // namespace
}  // namespace torch_checkpointing

void respell_for_torch_checkpointing(Catalog& content) {
  using torch_checkpointing::kModel;
  respell_as_state_dict(content);
  for (TensorEntry& tensor : content.tensors)
    if (torch_checkpointing::into_model(tensor, tensor.path)) tensor.key = joined(tensor.path);
  for (StateDictPlace& model : content.parts.models)
    if (model.path.empty()) model.path.push_back(kModel);
}

Result<EmitPlan> emit_torch_checkpointing(const EmitRequest& request) {
  return torch_checkpointing::Emitter(request).run();
}

}  // namespace ebb::formats
