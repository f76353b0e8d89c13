#include "ebb/libswap/space/earlier_store.h"

#include <vector>

#include "ebb/formats/describe.h"

namespace ebb::libswap {

Result<std::unique_ptr<EarlierStore>> EarlierStore::open(Ranks& ranks, IoBackend& backend,
                                                         const std::vector<fs::path>& folders,
                                                         const Buffers& buffers) {
  EBB_TRY_ASSIGN(auto files, ScatteredStore::open(ranks, backend, folders));
  std::unique_ptr<EarlierStore> earlier(new EarlierStore(std::move(files)));
  const auto read = [&]() -> Result<> {
    EBB_TRY(earlier->read());
    if (Result<> same = earlier->compare(buffers); !same)
      return std::move(same).error().within(folders.front().string());
    return {};
  };
  EBB_TRY(earlier->run(ranks, "reading the earlier store", read));
  return earlier;
}

Result<> EarlierStore::read() {
  EBB_TRY_ASSIGN(checkpoint_, formats::describe(files_->tree()));
  loader_.emplace(*checkpoint_);
  const auto& tensors = checkpoint_->catalog().tensors;
  for (std::uint32_t i = 0; i < tensors.size(); ++i)
    tensors_.emplace(
        std::pair<std::string_view, std::string_view>(tensors[i].name, tensors[i].state), i);
  return {};
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
  EBB_TRY(loader_->load(wanted));
  return {};
}

}  // namespace ebb::libswap
