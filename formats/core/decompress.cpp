#include "ebb/formats/core/decompress.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "ebb/formats/core/check.h"

namespace ebb::formats {
namespace {

constexpr std::size_t kPass = 64 * 1024;
constexpr std::uint64_t kPiece = 256 * 1024;
constexpr std::uint64_t kLikely = 64;  // how far a stream expands

Error too_much(std::string_view where, std::uint64_t limit) {
  return {
      Code::limit,
      compose("{}: decompresses to more than {} bytes, which is the limit for what it should hold",
              where, limit)};
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
    if (frames.stream_ == nullptr) return Error{Code::no_memory, "no memory for a zstd stream"};
    frames.out_.reserve(static_cast<std::size_t>(expected));
    return frames;
  }

  Result<> feed(ByteView packed) {
    ZSTD_inBuffer input{packed.data(), packed.size(), 0};
    bool full = false;  // within a frame the decoder may hold more than fitted the last pass
    while (input.pos < input.size || (full && state_ != 0)) {
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
  Error bad(std::string_view why) const { return {Code::corrupt, compose("{}: {}", where_, why)}; }

  std::unique_ptr<ZSTD_DStream, FreeStream> stream_;
  ByteVector out_;
  ByteVector pass_;
  std::uint64_t limit_;
  std::string_view where_;
  std::size_t state_ = 1;  // 0 between frames
};

}  // namespace

Result<ByteVector> unzstd(ByteView packed, std::uint64_t limit, std::string_view where) {
  EBB_TRY_ASSIGN(ZstdFrames frames, ZstdFrames::begin(0, limit, where));
  EBB_TRY(frames.feed(packed));
  return frames.finish();
}

Result<ByteVector> unzstd(const ByteSource& source, std::uint64_t offset, std::uint64_t length,
                          std::uint64_t expected, std::uint64_t limit, std::string_view where) {
  // What is declared is not believed beyond what the bytes make likely.
  const std::uint64_t likely =
      std::max(kPiece, length > limit / kLikely ? limit : length * kLikely);
  EBB_TRY_ASSIGN(ZstdFrames frames,
                 ZstdFrames::begin(std::min({expected, limit, likely}), limit, where));
  ByteVector piece(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, length)));
  for (std::uint64_t at = 0; at < length; at += piece.size()) {
    const auto part = std::span(piece).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), length - at)));
    EBB_TRY(source.read(offset + at, part));
    EBB_TRY(frames.feed(part));
  }
  return frames.finish();
}

void Inflater::End::operator()(z_stream_s* stream) const {
  inflateEnd(stream);
  delete stream;
}

void Inflater::feed(ByteView packed) {
  EBB_CHECK(packed_.empty());
  packed_ = packed;
}

Result<std::size_t> Inflater::next(std::span<std::byte> into) {
  EBB_CHECK(!into.empty());
  if (stream_ == nullptr) {
    auto stream = std::make_unique<z_stream>();
    const int bits = wrapping_ == Wrapping::zlib ? MAX_WBITS : -MAX_WBITS;
    if (inflateInit2(stream.get(), bits) != Z_OK)
      return Error{Code::no_memory, "no memory to decompress"};
    stream_.reset(stream.release());
  }
  constexpr std::size_t kMost = 1u << 30;  // zlib counts in 32 bits
  const std::size_t room = std::min(into.size(), kMost);
  std::size_t made = 0;
  do {
    const std::size_t given = std::min(packed_.size(), kMost);
    // zlib does not write to its input, but its types do not say so.
    stream_->next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(packed_.data()));
    stream_->avail_in = static_cast<uInt>(given);
    stream_->next_out = reinterpret_cast<Bytef*>(into.data());
    stream_->avail_out = static_cast<uInt>(room);
    const int state = inflate(stream_.get(), Z_NO_FLUSH);
    if (state != Z_OK && state != Z_STREAM_END && state != Z_BUF_ERROR)
      return Error{Code::corrupt, stream_->msg == nullptr ? "not deflated" : stream_->msg};
    ended_ = state == Z_STREAM_END;
    packed_ = packed_.subspan(given - stream_->avail_in);
    made = room - stream_->avail_out;
  } while (made == 0 && !ended_ && !packed_.empty());
  return made;
}

Result<ByteVector> unzlib(ByteView packed, std::uint64_t limit, std::string_view where) {
  const auto bad = [&](std::string_view why) {
    return Error{Code::corrupt, compose("{}: {}", where, why)};
  };
  Inflater inflater(Inflater::Wrapping::zlib);
  inflater.feed(packed);
  ByteVector out;
  std::array<std::byte, kPass> pass;
  while (!inflater.ended()) {
    const auto made = inflater.next(pass);
    if (!made) return made.error().code == Code::corrupt ? bad(made.error().message) : made.error();
    if (*made == 0 && !inflater.ended()) return bad("the zlib stream is cut off");
    append_bytes(out, ByteView(pass).first(*made));
    if (out.size() > limit) return too_much(where, limit);
  }
  if (inflater.unused() != 0) return bad("bytes behind the end of the zlib stream");
  return out;
}

}  // namespace ebb::formats
