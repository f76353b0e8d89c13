// A state dict as the object that torch.save pickles. Internal to formats that write such files.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/pickle/pickle_writer.h"
#include "ebb/formats/state_dict/nesting.h"

namespace ebb::formats::torch_save {

// What lies at `place`, with what `leaf` writes for tensors and values.
void write_nested(PickleWriter& file, const Nesting& nesting, const Nesting::Place& place,
                  const std::function<void(const Nesting::Leaf&)>& leaf);

// Tensors of content that are made of parts: the first part of each takes the place of the whole.
class PlacedWholes {
 public:
  // One more part, content tensor `number`, which would lie at `path`. The place of its whole where
  // it is the first. REQUIRES: part.part_of.
  std::optional<std::vector<PathItem>> add(TensorEntry part, std::uint32_t number,
                                           const std::vector<PathItem>& path);
  // REQUIRES: it was added.
  std::span<const std::uint32_t> parts_of(const TensorEntry& part) const;

 private:
  std::map<const Composite*, std::vector<std::uint32_t>> parts_;
};

}  // namespace ebb::formats::torch_save
