// Everything a file declares, without reading element data.
#pragma once

#include <hdf5.h>

#include "ebb/formats/core/result.h"
#include "ebb/formats/hdf5/description.h"
#include "tools/hdf5_reader/driver.h"

namespace ebb::hdf5_reader {

// Hard links are followed, each group once; soft, external and other links are listed, not
// followed.
Result<formats::hdf5::Description> describe_file(hid_t file, Bytes& bytes);

}  // namespace ebb::hdf5_reader
