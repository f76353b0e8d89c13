// Tensors that are stored in a form which is not read - a rank's part of a sharded tensor, a
// quantized state, a class of somebody's own - named as what they are. None of them is damage.
#pragma once

#include <optional>
#include <string>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/error.h"
#include "ebb/formats/pickle/pickle.h"
#include "ebb/formats/torch/archive.h"

namespace ebb::formats {

struct UnreadForm {
  std::string what;  // for people: "torchao's 8-bit state (OptimState8bit)"
  std::string hint;  // what to do about it
  // What it stands for, where the pickle says that.
  std::optional<DType> dtype = {};
  std::optional<Shape> shape = {};
};

// nullopt: it is no tensor (torch/tensor.h), or one whose elements lie in a storage of its own.
std::optional<UnreadForm> unread_form(const PickleGraph& graph, PickleId id);

// Code::unsupported.
Error error_of(const UnreadForm& form, const std::string& where);

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
