// Checkpoints of any number of tensors and chunks, in any format this library writes: what takes
// the time of a reader with no regard to the bytes of the tensors.
#pragma once

#include <cstdint>
#include <string>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::test_support {

// holes: shards are files of the right size without bytes, and there are no values: only an index
// can be read. A million DCP items would be a GiB of zip headers.
enum class Payload : std::uint8_t { whole, holes };

struct Synthetic {
  std::string format = "dcp";
  std::uint64_t params = 100;  // each has a weight and a momentum: two tensors
  std::uint32_t world = 4;     // ranks, over which every tensor of `rows` rows is cut
  std::uint64_t rows = 8;
  Payload payload = Payload::whole;
};

// Written into `directory`, which must exist and be empty. Elements are zeros.
Result<> make_synthetic(const Synthetic& wanted, const std::string& directory);

}  // namespace ebb::test_support
