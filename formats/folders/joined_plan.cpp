#include "ebb/formats/folders/joined_plan.h"

#include <algorithm>
#include <iterator>

namespace ebb::formats::folders {

Result<Layout> JoinedPlan::layout_of(const PartContent& part) const {
  Layout::Spec spec = whole_.layout.spec();
  std::vector<Shape> shapes;
  std::vector<std::uint32_t> owners;
  for (const std::uint32_t number : part.tensors) {
    shapes.push_back(whole_.content.tensors[number].shape);
    if (!spec.owners.empty()) owners.push_back(spec.owners[number]);
  }
  spec.owners = std::move(owners);
  return Layout::make(std::move(spec), std::move(shapes));
}

void JoinedPlan::add(EmitPlan plan, const PartContent& part,
                     const std::function<std::string(const std::string&)>& called) {
  const auto take = [&](std::vector<OutputFile>& from, std::vector<OutputFile>& into) {
    for (OutputFile& file : from) {
      file.name = called(file.name);
      for (Fragment& fragment : file.fragments)
        if (auto* data = std::get_if<TensorData>(&fragment.data))
          data->tensor = part.tensors[data->tensor];
      into.push_back(std::move(file));
    }
  };
  take(plan.files, plan_.files);
  take(plan.commit_files, plan_.commit_files);
  for (const std::uint32_t number : plan.omitted) plan_.omitted.push_back(part.tensors[number]);
  std::ranges::move(plan.dropped, std::back_inserter(plan_.dropped));
  std::ranges::move(plan.notes, std::back_inserter(plan_.notes));
}

}  // namespace ebb::formats::folders
