// zstd and zlib streams, decoded into bounded memory: sizes that a stream declares are not
// believed.
#pragma once

#include <cstdint>
#include <string_view>

#include "formats/core/byte_source.h"
#include "formats/core/bytes.h"
#include "formats/core/result.h"

namespace formats {

// A zstd stream of any number of frames, decoded into at most `limit` bytes. Code::corrupt when it
// is damaged or cut off, Code::limit when it holds more; `where` begins the message.
Result<ByteVector> unzstd(ByteView packed, std::uint64_t limit, std::string_view where);

// The same out of a file, a piece at a time, so that only what is decoded takes memory: `expected`
// bytes of it are set aside at once where that many are likely.
Result<ByteVector> unzstd(const ByteSource& source, std::uint64_t offset, std::uint64_t length,
                          std::uint64_t expected, std::uint64_t limit, std::string_view where);

// The same for one zlib stream (RFC 1950); bytes behind it are damage.
Result<ByteVector> unzlib(ByteView packed, std::uint64_t limit, std::string_view where);

}  // namespace formats
