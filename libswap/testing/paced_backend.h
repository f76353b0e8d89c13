// PacedBackend: what is stored below as if it lay on several disks of stated speeds. A disk moves
// one operation after another, reads and writes alike, and disks move side by side. Stalls are
// drawn from a fixed seed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libswap {

struct PacedDisk {
  std::string path_part;  // files whose paths contain this lie on it; the first that fits
  double bytes_per_s = 0;
  double stalls_per_s = 0;  // of the time it moves: so often it stands still, for 1 to 20 ms
};

// An operation is done below while it is submitted: what is below should be memory. Files on none
// of the disks are not paced.
std::unique_ptr<IoBackend> make_paced_backend(std::unique_ptr<IoBackend> below,
                                              std::vector<PacedDisk> disks);

}  // namespace ebb::libswap
