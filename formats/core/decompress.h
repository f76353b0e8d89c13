// zstd and zlib streams, decoded into bounded memory: sizes that a stream declares are not
// believed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/result.h"

struct z_stream_s;  // zlib's

namespace ebb::formats {

// One deflate stream, taken and given a piece at a time. Memory: about 50 KiB from the first bytes
// on. Not thread-safe.
class Inflater {
 public:
  enum class Wrapping : std::uint8_t { none, zlib };  // RFC 1951; RFC 1950, with its checksum
  explicit Inflater(Wrapping wrapping) : wrapping_(wrapping) {}

  // The stream's next bytes; they must live until they are taken. REQUIRES: unused() == 0.
  void feed(ByteView packed);
  std::size_t unused() const { return packed_.size(); }  // fed and not taken
  bool ended() const { return ended_; }
  // Fills the front of `into`, as far as what was fed goes, and returns how far; 0 when it wants
  // more or has ended. Code::corrupt, and why, when these are no such bytes. REQUIRES: room.
  Result<std::size_t> next(std::span<std::byte> into);

 private:
  struct End {
    void operator()(z_stream_s* stream) const;
  };

  Wrapping wrapping_;
  std::unique_ptr<z_stream_s, End> stream_;  // from the first bytes on
  ByteView packed_;
  bool ended_ = false;
};

// A zstd stream of any number of frames, decoded into at most `limit` bytes. Code::corrupt when it
// is damaged or cut off, Code::limit when it holds more; `where` begins the message.
Result<ByteVector> unzstd(ByteView packed, std::uint64_t limit, std::string_view where);

// The same out of a file, a piece at a time, so that only what is decoded takes memory: `expected`
// bytes of it are set aside at once where that many are likely.
Result<ByteVector> unzstd(const ByteSource& source, std::uint64_t offset, std::uint64_t length,
                          std::uint64_t expected, std::uint64_t limit, std::string_view where);

// The same for one zlib stream (RFC 1950); bytes behind it are damage.
Result<ByteVector> unzlib(ByteView packed, std::uint64_t limit, std::string_view where);

}  // namespace ebb::formats
