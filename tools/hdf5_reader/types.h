// Element types as the description has them.
#pragma once

#include <hdf5.h>

#include "formats/hdf5/description.h"

namespace hdf5_reader {

formats::hdf5::ElementType element_type_of(hid_t type);

}  // namespace hdf5_reader
