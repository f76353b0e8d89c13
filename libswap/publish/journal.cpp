#include "ebb/libswap/publish/journal.h"

#include <algorithm>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/units.h"

namespace ebb::libswap {

using formats::append_le;
using formats::ByteReader;

namespace {

constexpr std::string_view kMagic = "ebb journal 4\n";
constexpr std::uint64_t kMaxJournal = formats::GiB;  // a piece takes some 40 bytes
constexpr std::size_t kHead = 8;

void append_shares(ByteVector& out, const std::vector<Share>& shares) {
  append_le(out, static_cast<std::uint32_t>(shares.size()));
  for (const Share& share : shares) {
    append_le(out, share.number);
    append_le(out, share.fingerprint);
  }
}

void append_piece(ByteVector& out, const FinishedPiece& piece) {
  append_le(out, piece.index);
  append_shares(out, piece.shares.stored);
  append_shares(out, piece.shares.derived);
  append_le(out, static_cast<std::uint32_t>(piece.ranges.size()));
  for (const RangePart& part : piece.ranges) {
    append_le(out, part.range);
    append_le(out, part.crc);
    append_le(out, part.bytes);
  }
  append_le(out, static_cast<std::uint32_t>(piece.blocks.size()));
  for (const formats::BlockShare& share : piece.blocks) {
    append_le(out, share.block);
    append_le(out, share.crc);
  }
  append_le(out, piece.frames.offset);
  append_le(out, static_cast<std::uint32_t>(piece.frames.lengths.size()));
  for (const std::uint64_t length : piece.frames.lengths) append_le(out, length);
}

bool take(ByteReader& in, std::uint64_t& number) {
  const auto taken = in.number<std::uint64_t>();
  if (taken) number = *taken;
  return taken.has_value();
}

bool take(ByteReader& in, Share& share) {
  const auto number = in.number<std::uint32_t>();
  const auto fingerprint = in.number<std::uint64_t>();
  if (fingerprint) share = {*number, *fingerprint};
  return fingerprint.has_value();
}

bool take(ByteReader& in, RangePart& part) {
  const auto range = in.number<std::uint32_t>();
  const auto crc = in.number<std::uint32_t>();
  const auto bytes = in.number<std::uint64_t>();
  if (bytes) part = {*range, *crc, *bytes};
  return bytes.has_value();
}

bool take(ByteReader& in, formats::BlockShare& share) {
  const auto block = in.number<std::uint64_t>();
  const auto crc = in.number<std::uint32_t>();
  if (crc) share = {*block, *crc};
  return crc.has_value();
}

template <typename Item>
bool take(ByteReader& in, std::vector<Item>& items) {
  const auto count = in.number<std::uint32_t>();
  for (std::uint32_t i = 0; count && i < *count; ++i)
    if (!take(in, items.emplace_back())) return false;
  return count.has_value();
}

std::optional<FinishedPiece> take_piece(ByteReader& in) {
  FinishedPiece piece;
  const auto index = in.number<std::uint64_t>();
  if (!index || !take(in, piece.shares.stored) || !take(in, piece.shares.derived) ||
      !take(in, piece.ranges) || !take(in, piece.blocks) || !take(in, piece.frames.offset) ||
      !take(in, piece.frames.lengths))
    return std::nullopt;
  piece.index = *index;
  return piece;
}

// The next record; nullopt where the whole ones end.
std::optional<ByteView> take_record(ByteReader& in) {
  const auto length = in.number<std::uint32_t>();
  const auto crc = in.number<std::uint32_t>();
  const auto payload = crc ? in.take(*length) : std::nullopt;
  if (!payload || formats::crc32c(0, *payload) != *crc) return std::nullopt;
  return payload;
}

std::optional<JournalContent> decode(ByteView bytes) {
  ByteReader in(bytes);
  const auto first = take_record(in);
  if (!first || !formats::text_of(*first).starts_with(kMagic)) return std::nullopt;
  JournalContent content;
  content.identity = formats::text_of(*first).substr(kMagic.size());
  content.bytes = in.position();
  while (const auto record = take_record(in)) {
    ByteReader of(*record);
    while (of.left() > 0) {
      auto piece = take_piece(of);
      if (!piece) return std::nullopt;  // whole, and yet not what we write
      content.pieces.push_back(*std::move(piece));
    }
    content.bytes = in.position();
  }
  return content;
}

}  // namespace

Result<std::optional<JournalContent>> read_journal(IoQueue& io, const fs::path& path) {
  EBB_TRY_ASSIGN(const FileId file, io.backend().open(path, {}));
  const auto read = [&]() -> Result<ByteVector> {
    EBB_TRY_ASSIGN(const FileInfo info, io.backend().info(file));
    ByteVector bytes(info.size <= kMaxJournal ? info.size : 0);
    if (!bytes.empty()) EBB_TRY(io.read(file, 0, bytes));
    return bytes;
  };
  Result<ByteVector> bytes = read();
  EBB_TRY(io.backend().close(file));
  if (!bytes) return std::move(bytes).error();
  return decode(*bytes);
}

Result<std::unique_ptr<Journal>> Journal::create(IoQueue& io, const fs::path& path,
                                                 std::string_view identity) {
  EBB_TRY_ASSIGN(const FileId file,
                 io.backend().open(
                     path, {.access = Access::read_write, .creation = Creation::create_or_open}));
  std::unique_ptr<Journal> journal(new Journal(io, file, 0));
  EBB_TRY(io.backend().truncate(file, 0));
  ByteVector payload;
  formats::append_text(payload, kMagic);
  formats::append_text(payload, identity);
  EBB_TRY(journal->append_record(payload));
  return journal;
}

Result<std::unique_ptr<Journal>> Journal::reopen(IoQueue& io, const fs::path& path,
                                                 std::uint64_t bytes) {
  EBB_TRY_ASSIGN(const FileId file, io.backend().open(path, {.access = Access::read_write}));
  std::unique_ptr<Journal> journal(new Journal(io, file, bytes));
  EBB_TRY(io.backend().truncate(file, bytes));
  return journal;
}

Journal::~Journal() { static_cast<void>(io_.backend().close(file_)); }

Result<> Journal::append(std::span<const FinishedPiece> pieces) {
  if (pieces.empty()) return {};
  ByteVector payload;
  for (const FinishedPiece& piece : pieces) append_piece(payload, piece);
  return append_record(payload);
}

Result<> Journal::append_record(ByteView payload) {
  ByteVector record;
  record.reserve(kHead + payload.size());
  append_le(record, static_cast<std::uint32_t>(payload.size()));
  append_le(record, formats::crc32c(0, payload));
  formats::append_bytes(record, payload);
  EBB_TRY(io_.write(file_, end_, record));
  EBB_TRY(io_.sync_data(file_));
  end_ += record.size();
  return {};
}

}  // namespace ebb::libswap
