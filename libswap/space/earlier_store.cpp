#include "ebb/libswap/space/earlier_store.h"

#include <vector>

#include "ebb/formats/registry.h"
#include "ebb/libswap/tree/file_tree.h"

namespace ebb::libswap {

EarlierStore::EarlierStore(std::unique_ptr<Checkpoint> checkpoint)
    : checkpoint_(std::move(checkpoint)), loader_(*checkpoint_) {
  const auto& tensors = checkpoint_->catalog().tensors;
  for (std::uint32_t i = 0; i < tensors.size(); ++i)
    tensors_.emplace(
        std::pair<std::string_view, std::string_view>(tensors[i].name, tensors[i].state), i);
}

Result<std::unique_ptr<EarlierStore>> EarlierStore::open(const std::filesystem::path& folder,
                                                         const Buffers& buffers) {
  EBB_TRY_ASSIGN(auto tree, open_tree(folder));
  EBB_TRY_ASSIGN(auto checkpoint, formats::describe(std::move(tree)));
  std::unique_ptr<EarlierStore> earlier(new EarlierStore(std::move(checkpoint)));
  if (Result<> same = earlier->compare(buffers); !same)
    return std::move(same).error().within(folder.string());
  return earlier;
}

Result<> EarlierStore::compare(const Buffers& buffers) const {
  std::vector<bool> wanted(tensors_.size(), false);
  for (const Buffers::Buffer& buffer : buffers.all())
    for (const auto& [part, offset, bytes] : buffer.parts) {
      const std::string what = compose("{} ({})", part.tensor, part.state);
      const auto found = tensors_.find({part.tensor, part.state});
      if (found == tensors_.end())
        return Error{Code::incomplete, "has no " + what,
                     "register what it has, or begin in an empty directory"};
      const TensorEntry& tensor = checkpoint_->catalog().tensors[found->second];
      if (tensor.shape != part.shape || tensor.dtype != part.dtype)
        return Error{Code::layout,
                     compose("{} is {} {} there, and is registered as {} {}", what,
                             formats::name_of(tensor.dtype), formats::to_string(tensor.shape),
                             formats::name_of(part.dtype), formats::to_string(part.shape))};
      wanted[found->second] = true;
    }
  for (const auto& [name, number] : tensors_)
    if (!wanted[number])
      return Error{Code::layout,
                   compose("has {} ({}), which is not registered and would be lost", name.first,
                           name.second),
                   "register it, or begin in an empty directory"};
  return {};
}

std::uint64_t EarlierStore::step() const {
  return static_cast<std::uint64_t>(checkpoint_->catalog().step.value_or(0));
}

Result<> EarlierStore::fill(const Buffers::Buffer& buffer, std::span<std::byte> bytes) {
  std::vector<Wanted> wanted;
  for (const auto& [part, offset, size] : buffer.parts)
    want_range(tensors_.at({part.tensor, part.state}), part.shape, part.range,
               bytes.subspan(offset, size), wanted);
  EBB_TRY(loader_.load(wanted));
  return {};
}

}  // namespace ebb::libswap
