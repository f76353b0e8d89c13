#include "ebb/formats/core/bytes.h"

namespace ebb::formats {

// Not inline: GCC 12 warns about a vector's inlined growth path at -O3.
void append_bytes(ByteVector& out, ByteView bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace ebb::formats
