#include "formats/torch/inflate.h"

#include <zlib.h>

#include <algorithm>

#include "formats/core/crc32c.h"
#include "formats/core/json_text.h"
#include "formats/core/units.h"
#include "formats/torch/refuse.h"

namespace formats {
namespace {

constexpr std::size_t kPacked = 64 * KiB;
constexpr std::size_t kSkipped = 64 * KiB;

}  // namespace

// One pass over the record: knows what comes next.
class InflateSource::Cursor {
 public:
  explicit Cursor(const InflateSource& source) : source_(source), packed_(kPacked) {}
  Cursor(const Cursor&) = delete;
  Cursor& operator=(const Cursor&) = delete;
  ~Cursor() {
    if (begun_) inflateEnd(&stream_);
  }

  std::uint64_t position() const { return position_; }

  Result<> skip_to(std::uint64_t offset) {
    ByteVector scratch(std::min<std::uint64_t>(kSkipped, offset - position_));
    while (position_ < offset)
      TRY(next(
          std::span(scratch).first(std::min<std::uint64_t>(scratch.size(), offset - position_))));
    return {};
  }

  Result<> next(std::span<std::byte> into) {
    if (!begun_ && inflateInit2(&stream_, -MAX_WBITS) != Z_OK)
      return Error{Code::no_memory, "no memory to decompress " + source_.name_, {}};
    begun_ = true;
    TRY(fill(into));
    crc_ = crc32_zip(crc_, into);
    position_ += into.size();
    return position_ == source_.entry_.size ? finish() : Result<>();
  }

 private:
  Error bad(std::string_view why) const {
    return refuse(Code::corrupt, source_.source_->name(), source_.at_,
                  "record '" + printable(source_.entry_.name) + "' " + std::string(why));
  }

  Result<> fill(std::span<std::byte> into) {
    while (!into.empty()) {
      if (ended_) return bad("decompresses to fewer bytes than it says");
      TRY(refill());
      const std::size_t room = std::min<std::size_t>(into.size(), 1u << 30);
      stream_.next_out = reinterpret_cast<Bytef*>(into.data());
      stream_.avail_out = static_cast<uInt>(room);
      const int state = inflate(&stream_, Z_NO_FLUSH);
      if (state == Z_BUF_ERROR) return bad("is cut off");
      if (state != Z_OK && state != Z_STREAM_END) return bad("cannot be decompressed");
      ended_ = state == Z_STREAM_END;
      into = into.subspan(room - stream_.avail_out);
    }
    return {};
  }

  // zlib may still have something to give when it has taken everything.
  Result<> refill() {
    const std::uint64_t left = source_.entry_.stored_size - taken_;
    if (stream_.avail_in != 0 || left == 0) return {};
    const std::size_t count = std::min<std::uint64_t>(left, packed_.size());
    TRY(source_.source_->read(source_.at_ + taken_, std::span(packed_).first(count)));
    taken_ += count;
    stream_.next_in = reinterpret_cast<Bytef*>(packed_.data());
    stream_.avail_in = static_cast<uInt>(count);
    return {};
  }

  Result<> finish() {
    while (!ended_) {  // the end of the stream may still be in the bytes to come
      TRY(refill());
      Bytef spare = 0;
      stream_.next_out = &spare;
      stream_.avail_out = 1;
      const int state = inflate(&stream_, Z_NO_FLUSH);
      if ((state != Z_OK && state != Z_STREAM_END) || stream_.avail_out == 0)
        return bad("decompresses to more bytes than it says");
      ended_ = state == Z_STREAM_END;
    }
    if (taken_ - stream_.avail_in != source_.entry_.stored_size)
      return bad("ends before its stored bytes do");
    if (source_.entry_.has_crc() && crc_ != source_.entry_.crc) return bad("fails its CRC32 check");
    return {};
  }

  const InflateSource& source_;
  ByteVector packed_;
  z_stream stream_{};
  bool begun_ = false;
  bool ended_ = false;
  std::uint64_t taken_ = 0;     // stored bytes handed to zlib
  std::uint64_t position_ = 0;  // decompressed bytes so far
  std::uint32_t crc_ = 0;
};

InflateSource::InflateSource(std::shared_ptr<const ByteSource> source, std::uint64_t at,
                             const ZipEntry& entry)
    : source_(std::move(source)), at_(at), entry_(entry) {
  name_ = std::string(source_->name()) + ": " + printable(entry_.name);
}

InflateSource::~InflateSource() = default;

Result<> InflateSource::read(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset > entry_.size || into.size() > entry_.size - offset)
    return refuse(Code::corrupt, name_, offset, "a read past its end");
  if (into.empty()) return {};
  std::shared_ptr<Cursor> cursor = resting_.exchange(nullptr);
  if (cursor == nullptr || cursor->position() > offset) cursor = std::make_shared<Cursor>(*this);
  TRY(cursor->skip_to(offset));
  TRY(cursor->next(into));
  resting_.store(std::move(cursor));
  return {};
}

Result<> InflateSource::finish() const {
  std::shared_ptr<Cursor> cursor = resting_.exchange(nullptr);
  if (cursor == nullptr) cursor = std::make_shared<Cursor>(*this);
  TRY(cursor->skip_to(entry_.size));
  resting_.store(std::move(cursor));
  return {};
}

}  // namespace formats
