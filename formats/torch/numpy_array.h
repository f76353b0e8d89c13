// numpy's arrays among values, as random numbers are kept in: Value::Kind::object with the name of
// the function that makes one, its dtype and shape for arguments and its bytes for a state. What
// numpy pickles otherwise - objects in it, Fortran's order, big-endian - stays a mere name.
#pragma once

#include <optional>

#include "ebb/formats/catalog/value.h"
#include "ebb/formats/pickle/pickle.h"
#include "ebb/formats/pickle/pickle_writer.h"

namespace ebb::formats {

// nullopt: the object is no such array.
std::optional<Value> numpy_array(const PickleGraph& graph, PickleId id);

bool is_numpy_array(const Value& value);
bool holds_numpy_array(const Value& value);

// As numpy pickles it. REQUIRES: is_numpy_array(value).
void write_numpy_array(PickleWriter& pickle, const Value& value);

// The same with a tensor of torch's in place of each array; nullopt where torch has no such dtype.
std::optional<Value> with_tensors(const Value& value);

}  // namespace ebb::formats
