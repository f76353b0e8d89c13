// Tensors that are not read (unread_form.h) among values, and how a catalog lists them.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/pickle/pickle.h"
#include "ebb/formats/torch/archive.h"
#include "ebb/formats/torch/unread_form.h"

namespace ebb::formats {

// A tensor that is not read, below a value.
struct UnreadInside {
  std::vector<PathItem> path;  // from the value to it; empty: there is no value but it
  UnreadForm form;
};
// What of a node is read. Of a dict, tensors that are not are left out; of a sequence they are
// None.
struct ReadablePart {
  std::optional<Value> value;
  std::vector<UnreadInside> unread;
};
// As value_of (torch/archive.h) with the archive.
Result<ReadablePart> readable_part_of(const PickleGraph& graph, PickleId id,
                                      const TorchArchive& archive);
// How the catalog names it, where `above` is the value's place.
UnreadEntry entry_of(UnreadInside inside, std::vector<PathItem> above);

// Takes the tensors at these places of the catalog's list, ascending, out of it: they become
// Catalog::unread, under the names they have by then.
struct UnreadAt {
  std::size_t tensor = 0;
  UnreadForm form;
};
void leave_unread(Catalog& catalog, const std::vector<UnreadAt>& unread);
// Adds one to both lists, until all have their names: what it is called follows from the others.
void add_unread(TensorEntry entry, UnreadForm form, Catalog& catalog,
                std::vector<UnreadAt>& unread);

}  // namespace ebb::formats
