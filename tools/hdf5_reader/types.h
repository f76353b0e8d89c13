// Element types as the description has them.
#pragma once

#include <hdf5.h>

#include "ebb/formats/hdf5/description.h"

namespace ebb::hdf5_reader {

formats::hdf5::ElementType element_type_of(hid_t type);

}  // namespace ebb::hdf5_reader
