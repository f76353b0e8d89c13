#include "formats/core/decompress.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>

namespace formats {
namespace {

constexpr std::size_t kPass = 64 * 1024;

Error too_much(std::string_view where, std::uint64_t limit) {
  return {Code::limit,
          std::string(where) + ": decompresses to more than " + std::to_string(limit) +
              " bytes, which is the limit for what it should hold",
          {}};
}

struct FreeStream {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

struct EndInflate {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

}  // namespace

Result<ByteVector> unzstd(ByteView packed, std::uint64_t limit, std::string_view where) {
  const auto bad = [&](std::string_view why) {
    return Error{Code::corrupt, std::string(where) + ": " + std::string(why), {}};
  };
  const std::unique_ptr<ZSTD_DStream, FreeStream> stream(ZSTD_createDStream());
  if (stream == nullptr) return Error{Code::no_memory, "no memory for a zstd stream", {}};
  ByteVector out;
  ByteVector pass(ZSTD_DStreamOutSize());
  ZSTD_inBuffer input{packed.data(), packed.size(), 0};
  std::size_t state = 1;
  while (input.pos < input.size || state != 0) {
    ZSTD_outBuffer output{pass.data(), pass.size(), 0};
    const std::size_t before = input.pos;
    state = ZSTD_decompressStream(stream.get(), &output, &input);
    if (ZSTD_isError(state) != 0) return bad(ZSTD_getErrorName(state));
    append_bytes(out, ByteView(pass).first(output.pos));
    if (out.size() > limit) return too_much(where, limit);
    if (state != 0 && input.pos == before && output.pos == 0)
      return bad("the zstd stream is cut off");
  }
  return out;
}

Result<ByteVector> unzlib(ByteView packed, std::uint64_t limit, std::string_view where) {
  const auto bad = [&](std::string_view why) {
    return Error{Code::corrupt, std::string(where) + ": " + std::string(why), {}};
  };
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) return Error{Code::no_memory, "no memory for zlib", {}};
  const std::unique_ptr<z_stream, EndInflate> end(&stream);
  if (packed.size() > std::numeric_limits<uInt>::max())
    return bad("a zlib stream of more than 4 GiB");
  // zlib does not write to its input, but its types do not say so.
  stream.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  ByteVector out;
  std::array<std::byte, kPass> pass;
  for (int state = Z_OK; state != Z_STREAM_END;) {
    stream.next_out = reinterpret_cast<Bytef*>(pass.data());
    stream.avail_out = static_cast<uInt>(pass.size());
    state = inflate(&stream, Z_NO_FLUSH);
    if (state == Z_BUF_ERROR) return bad("the zlib stream is cut off");
    if (state != Z_OK && state != Z_STREAM_END)
      return bad(stream.msg == nullptr ? "not a zlib stream" : stream.msg);
    append_bytes(out, ByteView(pass).first(pass.size() - stream.avail_out));
    if (out.size() > limit) return too_much(where, limit);
  }
  if (stream.avail_in != 0) return bad("bytes behind the end of the zlib stream");
  return out;
}

}  // namespace formats
