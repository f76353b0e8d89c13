#include "ebb/formats/zip/inflate.h"

#include <algorithm>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/decompress.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {
namespace {

constexpr std::size_t kPacked = 64 * KiB;
constexpr std::size_t kSkipped = 64 * KiB;

}  // namespace

// One pass over the record: knows what comes next.
class InflateSource::Cursor {
 public:
  explicit Cursor(const InflateSource& source) : source_(source), packed_(kPacked) {}

  std::uint64_t position() const { return position_; }

  Result<> skip_to(std::uint64_t offset) {
    ByteVector scratch(std::min<std::uint64_t>(kSkipped, offset - position_));
    while (position_ < offset)
      EBB_TRY(next(
          std::span(scratch).first(std::min<std::uint64_t>(scratch.size(), offset - position_))));
    return {};
  }

  Result<> next(std::span<std::byte> into) {
    EBB_TRY(fill(into));
    crc_ = crc32_zip(crc_, into);
    position_ += into.size();
    return position_ == source_.entry_.size ? finish() : Result<>();
  }

  // REQUIRES: everything was given. What the record has left must be the end of its stream.
  Result<> finish() {
    while (!inflater_.ended()) {
      EBB_TRY(refill());
      std::byte spare{};
      EBB_TRY_ASSIGN(const std::size_t made, inflate(std::span(&spare, 1)));
      if (made != 0) return bad("decompresses to more bytes than it says");
    }
    if (taken_ - inflater_.unused() != source_.entry_.stored_size)
      return bad("ends before its stored bytes do");
    if (source_.entry_.has_crc() && crc_ != source_.entry_.crc) return bad("fails its CRC32 check");
    return {};
  }

 private:
  Error bad(std::string_view why) const {
    return refuse(Code::corrupt, source_.source_->name(), source_.at_,
                  compose("record '{}' {}", printable(source_.entry_.name), why));
  }

  Result<> fill(std::span<std::byte> into) {
    while (!into.empty()) {
      if (inflater_.ended()) return bad("decompresses to fewer bytes than it says");
      EBB_TRY(refill());
      EBB_TRY_ASSIGN(const std::size_t made, inflate(into));
      into = into.subspan(made);
    }
    return {};
  }

  // 0 only when there is more to take, or when the stream has ended.
  Result<std::size_t> inflate(std::span<std::byte> into) {
    const auto made = inflater_.next(into);
    if (!made)
      return made.error().code == Code::corrupt ? bad("cannot be decompressed") : made.error();
    const bool all_taken = inflater_.unused() == 0 && taken_ == source_.entry_.stored_size;
    if (*made == 0 && all_taken && !inflater_.ended()) return bad("is cut off");
    return *made;
  }

  // The decoder may still have something to give when it has taken everything.
  Result<> refill() {
    const std::uint64_t left = source_.entry_.stored_size - taken_;
    if (inflater_.unused() != 0 || left == 0) return {};
    const auto piece = std::span(packed_).first(std::min<std::uint64_t>(left, packed_.size()));
    EBB_TRY(source_.source_->read(source_.at_ + taken_, piece));
    taken_ += piece.size();
    inflater_.feed(piece);
    return {};
  }

  const InflateSource& source_;
  ByteVector packed_;
  Inflater inflater_{Inflater::Wrapping::none};
  std::uint64_t taken_ = 0;     // stored bytes handed to the decoder
  std::uint64_t position_ = 0;  // decompressed bytes so far
  std::uint32_t crc_ = 0;
};

InflateSource::InflateSource(std::shared_ptr<const ByteSource> source, std::uint64_t at,
                             const ZipEntry& entry)
    : source_(std::move(source)), at_(at), entry_(entry) {
  name_ = compose("{}: {}", source_->name(), printable(entry_.name));
}

InflateSource::~InflateSource() = default;

Result<> InflateSource::read(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset > entry_.size || into.size() > entry_.size - offset)
    return refuse(Code::corrupt, name_, offset, "a read past its end");
  if (into.empty()) return {};
  std::shared_ptr<Cursor> cursor = resting_.exchange(nullptr);
  if (cursor == nullptr || cursor->position() > offset) cursor = std::make_shared<Cursor>(*this);
  EBB_TRY(cursor->skip_to(offset));
  EBB_TRY(cursor->next(into));
  resting_.store(std::move(cursor));
  return {};
}

Result<> InflateSource::finish() const {
  std::shared_ptr<Cursor> cursor = resting_.exchange(nullptr);
  if (cursor == nullptr) cursor = std::make_shared<Cursor>(*this);
  EBB_TRY(cursor->skip_to(entry_.size));
  EBB_TRY(cursor->finish());
  resting_.store(std::move(cursor));
  return {};
}

}  // namespace ebb::formats
