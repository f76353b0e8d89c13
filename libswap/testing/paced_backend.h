// PacedBackend: what is stored below as if it lay on several disks of stated speeds. A disk moves
// one operation after another, reads and writes alike, and disks move side by side.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libswap {

struct PacedDisk {
  std::string path_part;  // files whose paths contain this lie on it; the first that fits
  double bytes_per_s = 0;
};

// REQUIRES: `below` does operations as they are submitted (a memory backend). Files on none of the
// disks are not paced.
std::unique_ptr<IoBackend> make_paced_backend(std::unique_ptr<IoBackend> below,
                                              std::vector<PacedDisk> disks);

}  // namespace ebb::libswap
