// Tensors of classes of their own, of which a catalog lists the parts: how those are called, and
// what is said of the whole.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// "OptimState8bit", with the package: what a class is called in a sentence.
std::string class_text(std::string_view type);

// Parts of the entries that stand for them while names are given: what a tensor is follows from the
// whole's place and shape. Such an entry has a part_of without a part.
using PartsOf = std::map<const Composite*, std::vector<TensorEntry>>;
// Makes an entry stand for its parts. REQUIRES: they are of one whole, and at least one.
void stand_for(const std::vector<TensorEntry>& parts, TensorEntry& entry);
// Puts the parts in their places: "w (exp_avg)" becomes "w (exp_avg.codes)", the weight "w" the
// weights "w.qdata". REQUIRES: all that stand for parts have some.
void unfold(Catalog& catalog, PartsOf parts);
// Lets `change` rename a catalog in which one entry, without chunks, stands for the parts of each
// whole; those follow. It may neither add, remove nor reorder tensors.
void change_wholes(Catalog& catalog, const std::function<void(Catalog&)>& change);
// Adds a note for each class.
void note_composites(Catalog& catalog);

// What a part of the whole is called: its name and state.
std::pair<std::string, std::string> part_name(const TensorEntry& whole, std::string_view part);

// The shape that a tensor's parameter has: of a part, the whole's.
const Shape& shape_of_whole(const TensorEntry& tensor);

// The whole's entry, of one of its parts: without chunks, and with no part.
TensorEntry whole_of(const TensorEntry& part);

}  // namespace ebb::formats
