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
constexpr std::uint64_t kPiece = 256 * 1024;
constexpr std::uint64_t kLikely = 64;  // how far a stream expands

Error too_much(std::string_view where, std::uint64_t limit) {
  return {Code::limit,
          std::string(where) + ": decompresses to more than " + std::to_string(limit) +
              " bytes, which is the limit for what it should hold",
          {}};
}

struct FreeStream {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

// A stream of zstd frames, decoded as its bytes come.
class ZstdFrames {
 public:
  static Result<ZstdFrames> begin(std::uint64_t expected, std::uint64_t limit,
                                  std::string_view where) {
    ZstdFrames frames(limit, where);
    if (frames.stream_ == nullptr) return Error{Code::no_memory, "no memory for a zstd stream", {}};
    frames.out_.reserve(static_cast<std::size_t>(expected));
    return frames;
  }

  Result<> feed(ByteView packed) {
    ZSTD_inBuffer input{packed.data(), packed.size(), 0};
    bool full = false;  // the decoder may hold more than fitted the last pass
    while (input.pos < input.size || full) {
      ZSTD_outBuffer output{pass_.data(), pass_.size(), 0};
      state_ = ZSTD_decompressStream(stream_.get(), &output, &input);
      if (ZSTD_isError(state_) != 0) return bad(ZSTD_getErrorName(state_));
      append_bytes(out_, ByteView(pass_).first(output.pos));
      if (out_.size() > limit_) return too_much(where_, limit_);
      full = output.pos == output.size;
    }
    return {};
  }

  Result<ByteVector> finish() {
    if (state_ != 0) return bad("the zstd stream is cut off");
    return std::move(out_);
  }

 private:
  ZstdFrames(std::uint64_t limit, std::string_view where)
      : stream_(ZSTD_createDStream()), pass_(ZSTD_DStreamOutSize()), limit_(limit), where_(where) {}
  Error bad(std::string_view why) const {
    return {Code::corrupt, std::string(where_) + ": " + std::string(why), {}};
  }

  std::unique_ptr<ZSTD_DStream, FreeStream> stream_;
  ByteVector out_;
  ByteVector pass_;
  std::uint64_t limit_;
  std::string_view where_;
  std::size_t state_ = 1;  // 0 between frames
};

struct EndInflate {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

}  // namespace

Result<ByteVector> unzstd(ByteView packed, std::uint64_t limit, std::string_view where) {
  TRY_ASSIGN(ZstdFrames frames, ZstdFrames::begin(0, limit, where));
  TRY(frames.feed(packed));
  return frames.finish();
}

Result<ByteVector> unzstd(const ByteSource& source, std::uint64_t offset, std::uint64_t length,
                          std::uint64_t expected, std::uint64_t limit, std::string_view where) {
  // What is declared is not believed beyond what the bytes make likely.
  const std::uint64_t likely =
      std::max(kPiece, length > limit / kLikely ? limit : length * kLikely);
  TRY_ASSIGN(ZstdFrames frames,
             ZstdFrames::begin(std::min({expected, limit, likely}), limit, where));
  ByteVector piece(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, length)));
  for (std::uint64_t at = 0; at < length; at += piece.size()) {
    const auto part = std::span(piece).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), length - at)));
    TRY(source.read(offset + at, part));
    TRY(frames.feed(part));
  }
  return frames.finish();
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
