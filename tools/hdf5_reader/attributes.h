// Attributes, and datasets that hold one text, as values.
#pragma once

#include <hdf5.h>

#include <string>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/formats/hdf5/description.h"

namespace ebb::hdf5_reader {

constexpr std::uint64_t kMostValueBytes = std::uint64_t{64} << 20;  // of one attribute or text

// All attributes of an object. What has no form as a value comes as Value::Kind::object with the
// type's name. `where` names the object in errors.
Result<std::vector<formats::hdf5::Attribute>> attributes_of(hid_t object, const std::string& where);

// The text of a dataset of one string.
Result<Value> text_of(hid_t dataset, hid_t type, const std::string& where);

}  // namespace ebb::hdf5_reader
