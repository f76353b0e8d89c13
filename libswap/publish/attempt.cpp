#include "ebb/libswap/publish/attempt.h"

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <utility>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/units.h"

namespace ebb::libswap {

using formats::append_le;
using formats::ByteReader;

namespace {

constexpr std::string_view kMagic = "ebb journal 4\n";
constexpr std::uint64_t kMaxJournal = formats::GiB;  // a segment takes some 40 bytes
constexpr std::size_t kHead = 8;

// The fields of each, in their order: for those who put them and those who take them.
auto fields(Share& share) { return std::tie(share.number, share.fingerprint); }
auto fields(RangeCrc& part) { return std::tie(part.range, part.crc, part.bytes); }
auto fields(formats::BlockShare& share) { return std::tie(share.block, share.crc); }
auto fields(WrittenSegment& segment) {
  return std::tie(segment.index, segment.shares.stored, segment.shares.derived, segment.range_crcs,
                  segment.block_crcs, segment.frames.offset, segment.frames.lengths);
}

template <typename Item>
void put(ByteVector& out, const std::vector<Item>& items);
template <typename Item>
void put(ByteVector& out, Item item) {
  if constexpr (std::is_integral_v<Item>)
    append_le(out, item);
  else
    std::apply([&](const auto&... field) { (put(out, field), ...); }, fields(item));
}
template <typename Item>
void put(ByteVector& out, const std::vector<Item>& items) {
  append_le(out, static_cast<std::uint32_t>(items.size()));
  for (const Item& item : items) put(out, item);
}

template <typename Item>
bool take(ByteReader& in, std::vector<Item>& items);
template <typename Item>
bool take(ByteReader& in, Item& item) {
  if constexpr (std::is_integral_v<Item>) {
    const auto number = in.number<Item>();
    if (number) item = *number;
    return number.has_value();
  } else {
    return std::apply([&](auto&... field) { return (take(in, field) && ...); }, fields(item));
  }
}
template <typename Item>
bool take(ByteReader& in, std::vector<Item>& items) {
  const auto count = in.number<std::uint32_t>();
  for (std::uint32_t i = 0; count && i < *count; ++i)
    if (!take(in, items.emplace_back())) return false;
  return count.has_value();
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
      // Whole, and yet not what we write.
      if (!take(of, content.segments.emplace_back())) return std::nullopt;
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

Result<> Journal::append(std::span<const WrittenSegment> segments) {
  if (segments.empty()) return {};
  ByteVector payload;
  for (const WrittenSegment& segment : segments) put(payload, segment);
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

Attempt::Attempt(IoQueue& io, Temporary temporary, std::string identity,
                 std::chrono::milliseconds interval)
    : io_(&io),
      temporary_(std::move(temporary)),
      identity_(std::move(identity)),
      interval_(interval) {}

namespace {

// Only one can give the destination its name: the others are told before they work for it. Of two
// that begin in the same moment the one with the lower id goes on; "": any other does.
Result<> check_alone(IoBackend& files, const fs::path& destination, std::string_view id) {
  EBB_TRY_ASSIGN(const auto others, attempts_alive(files, destination, id));
  const bool alone = std::ranges::none_of(
      others, [&](const std::string& other) { return id.empty() || other < id; });
  if (alone) return {};
  return Error{Code::busy, destination.string() + ": another process is writing it at this moment",
               "wait for that one, or choose another destination"};
}

}  // namespace

Result<Attempt> Attempt::begin(IoQueue& io, const fs::path& destination, std::string identity,
                               std::chrono::milliseconds interval) {
  EBB_TRY(check_alone(io.backend(), destination, ""));
  EBB_TRY_ASSIGN(const auto ids, journaled_attempts(io.backend(), destination));
  for (const std::string& id : ids) {
    EBB_TRY_ASSIGN(std::optional<Temporary> left, Temporary::adopt(io.backend(), destination, id));
    if (!left) continue;
    EBB_TRY_ASSIGN(auto content, read_journal(io, left->journal()));
    if (identity.empty() || !content || content->identity != identity) continue;  // removes it
    Attempt attempt(io, *std::move(left), std::move(identity), interval);
    EBB_TRY_ASSIGN(attempt.journal_,
                   Journal::reopen(io, attempt.temporary_.journal(), content->bytes));
    attempt.finished_ = std::move(content->segments);
    return attempt;
  }
  EBB_TRY_ASSIGN(Temporary temporary, Temporary::reserve(io.backend(), destination));
  EBB_TRY(check_alone(io.backend(), destination, temporary.id()));
  return Attempt(io, std::move(temporary), std::move(identity), interval);
}

Result<> Attempt::start_over() {
  finished_.clear();
  journal_.reset();
  EBB_TRY(remove_tree(io_->backend(), temporary_.journal()));
  return remove_tree(io_->backend(), temporary_.fresh());
}

bool Attempt::note(std::span<const WrittenSegment> segments) {
  if (identity_.empty()) return false;
  unsaved_.insert(unsaved_.end(), segments.begin(), segments.end());
  return Clock::now() - saved_ >= interval_;
}

Result<> Attempt::save() {
  if (journal_ == nullptr) {
    EBB_TRY_ASSIGN(journal_, Journal::create(*io_, temporary_.journal(), identity_));
    EBB_TRY(io_->backend().sync_directory(temporary_.journal().parent_path()));
  }
  EBB_TRY(journal_->append(unsaved_));
  unsaved_.clear();
  saved_ = Clock::now();
  return {};
}

}  // namespace ebb::libswap
