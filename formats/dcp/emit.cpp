#include <set>
#include <tuple>

#include "formats/dcp/dcp.h"
#include "formats/dcp/item_writer.h"
#include "formats/dcp/meaning.h"
#include "formats/dcp/state_dict.h"

namespace formats {
namespace {

// Numbers in a path are positions in a list to a reader of DCP; keys of a dict are words.
class Paths {
 public:
  explicit Paths(const Catalog& content) {
    for (const ContainerEntry& container : content.containers)
      if (container.kind == Value::Kind::dict) dicts_.insert(container.path);
  }
  std::vector<PathItem> worded(std::vector<PathItem> path) const {
    if (dicts_.empty()) return path;
    std::vector<PathItem> above;
    for (PathItem& item : path) {
      const bool in_dict = dicts_.contains(above);
      above.push_back(item);
      if (const auto* number = std::get_if<std::int64_t>(&item); number != nullptr && in_dict)
        item = std::to_string(*number);
    }
    return path;
  }

 private:
  std::set<std::vector<PathItem>> dicts_;
};

}  // namespace

void respell_for_dcp(Catalog& content) {
  StateDict dict = state_dict_of(content);
  for (std::size_t i = 0; i < content.tensors.size(); ++i) {
    TensorEntry& tensor = content.tensors[i];
    tensor.key = std::move(dict.tensors[i].key);
    tensor.path = std::move(dict.tensors[i].path);
    std::tie(tensor.name, tensor.state) = torch_identity(*tensor.key, tensor.path);
  }
}

Result<EmitPlan> emit_dcp(const EmitRequest& request) {
  TRY_ASSIGN(DcpItemWriter items, DcpItemWriter::make(request, ""));
  StateDict dict = state_dict_of(request.content);
  const Paths paths(request.content);
  for (PlacedValue& value : dict.values)
    TRY(items.add_value(std::move(value.place.key), paths.worded(std::move(value.place.path)),
                        value.value));
  for (std::uint32_t i = 0; i < dict.tensors.size(); ++i)
    TRY(items.add_tensor(std::move(dict.tensors[i].key),
                         paths.worded(std::move(dict.tensors[i].path)), i));
  return items.finish();
}

}  // namespace formats
