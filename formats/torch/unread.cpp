#include "ebb/formats/torch/unread.h"

#include "ebb/formats/catalog/key_path.h"

namespace ebb::formats {

UnreadEntry entry_of(UnreadInside inside, std::vector<PathItem> above) {
  above.insert(above.end(), inside.path.begin(), inside.path.end());
  const std::string key = joined(above);
  return {key, std::move(above), key, "tensor", inside.form.what, inside.form.hint};
}

void add_unread(TensorEntry entry, UnreadForm form, Catalog& catalog,
                std::vector<UnreadAt>& unread) {
  entry.dtype = form.dtype.value_or(DType::u8);
  entry.shape = form.shape.value_or(Shape());
  unread.push_back({catalog.tensors.size(), std::move(form)});
  catalog.tensors.push_back(std::move(entry));
}

void leave_unread(Catalog& catalog, const std::vector<UnreadAt>& unread) {
  if (unread.empty()) return;
  auto next = unread.begin();
  std::vector<TensorEntry> rest;
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    TensorEntry& tensor = catalog.tensors[i];
    if (next == unread.end() || next->tensor != i) {
      rest.push_back(std::move(tensor));
      continue;
    }
    catalog.unread.push_back({tensor.key.value_or(tensor.name), std::move(tensor.path),
                              std::move(tensor.name), std::move(tensor.state), next->form.what,
                              next->form.hint});
    ++next;
  }
  catalog.tensors = std::move(rest);
}

}  // namespace ebb::formats
