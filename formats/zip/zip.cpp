#include "ebb/formats/zip/zip.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/zip/inflate.h"

namespace ebb::formats {
namespace {

constexpr std::uint32_t kLocalSignature = 0x04034b50;
constexpr std::uint32_t kCentralSignature = 0x02014b50;
constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::uint32_t kEnd64Signature = 0x06064b50;
constexpr std::uint32_t kLocator64Signature = 0x07064b50;
constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kEnd64Bytes = 56;
constexpr std::uint64_t kLocator64Bytes = 20;
constexpr std::uint64_t kLocalBytes = 30;
constexpr std::uint64_t kCentralBytes = 46;
constexpr std::uint64_t kUsualCentral = 64;  // with a name; fewer only cost growing a list
constexpr std::uint64_t kWindow = 4 * KiB;   // a page, which is read anyway
constexpr std::uint64_t kMostWindow = 64 * KiB;
constexpr std::uint64_t kMaxComment = 65535;
constexpr std::uint64_t kMaxDirectory = 256 * MiB;
constexpr std::uint64_t kMaxName = 4096;
constexpr std::uint64_t kMaxInflation = 1032;  // of deflate, by its own definition
constexpr std::uint32_t kFull32 = 0xffffffffu;

// Characters that a record's name must not hold.
constexpr std::array<bool, 256> kForbidden = [] {
  std::array<bool, 256> forbidden{};
  for (std::size_t c = 0; c < 0x20; ++c) forbidden[c] = true;
  forbidden['\\'] = forbidden[0x7f] = true;
  return forbidden;
}();

template <typename T>
T at(ByteView bytes, std::size_t offset) {
  return load_le<T>(bytes.subspan(offset));
}

// The zip64 extra field replaces, in this order, whichever 32-bit fields are all ones.
bool apply_zip64(ByteView extra, ZipEntry& entry) {
  const bool wants[] = {entry.size == kFull32, entry.stored_size == kFull32,
                        entry.header_at == kFull32};
  std::uint64_t* const fields[] = {&entry.size, &entry.stored_size, &entry.header_at};
  ByteReader reader(extra);
  while (reader.left() >= 4) {
    const std::uint16_t id = *reader.number<std::uint16_t>();
    const std::uint16_t length = *reader.number<std::uint16_t>();
    const auto body = reader.take(length);
    if (!body) return false;
    if (id != 1) continue;
    ByteReader values(*body);
    for (std::size_t i = 0; i < 3; ++i) {
      if (!wants[i]) continue;
      const auto value = values.number<std::uint64_t>();
      if (!value) return false;
      *fields[i] = *value;
    }
    return true;
  }
  return !wants[0] && !wants[1] && !wants[2];
}

}  // namespace

Error ZipReader::bad(std::uint64_t where, std::string_view why) const {
  return refuse(Code::corrupt, source_->name(), offset_ + where, why);
}

Error ZipReader::crc_failure(const ZipEntry& entry) const {
  return bad(entry.header_at, "record '" + entry.name + "' fails its CRC32 check");
}

Result<ZipReader> ZipReader::open(std::shared_ptr<const ByteSource> source, std::uint64_t offset,
                                  std::uint64_t length) {
  ZipReader zip;
  zip.source_ = std::move(source);
  zip.offset_ = offset;
  zip.length_ = length;
  if (offset > zip.source_->size() || length > zip.source_->size() - offset)
    return refuse(Code::corrupt, zip.source_->name(), offset,
                  compose("{} bytes wanted, but the file ends at {}", length, zip.source_->size()));
  if (length < kEndBytes) return zip.bad(0, "too short for a zip archive");
  EBB_TRY_ASSIGN(const ByteVector head, read_bytes(*zip.source_, offset, 4, 4));
  if (load_le<std::uint32_t>(head) != kLocalSignature)
    return zip.bad(0, "no zip archive begins here");
  EBB_TRY_ASSIGN(const Directory where, zip.find_directory());
  EBB_TRY(zip.read_directory(where));
  EBB_TRY(zip.check_places(where));
  return zip;
}

// Where the end record begins. torch writes no comment; one that another tool wrote is accepted
// when the last signature in the file explains every byte after it.
Result<std::uint64_t> ZipReader::find_end(ByteVector& tail) const {
  for (const std::uint64_t wanted : {std::min(length_, kEndBytes + kLocator64Bytes + kEnd64Bytes),
                                     std::min(length_, kEndBytes + kMaxComment)}) {
    EBB_TRY_ASSIGN(tail, read_bytes(*source_, offset_ + length_ - wanted, wanted, wanted));
    for (std::uint64_t i = wanted - kEndBytes + 1; i-- > 0;) {
      if (at<std::uint32_t>(tail, i) != kEndSignature) continue;
      const std::uint64_t comment = at<std::uint16_t>(tail, i + 20);
      if (i + kEndBytes + comment == wanted) return i;
      return bad(length_ - wanted + i, "the zip's end record does not reach the end of the bytes");
    }
  }
  return bad(length_, "the zip has no end-of-central-directory record: it is cut off");
}

Result<ZipReader::Directory> ZipReader::find_directory() const {
  ByteVector tail;
  EBB_TRY_ASSIGN(const std::uint64_t in_tail, find_end(tail));
  const ByteView record = ByteView(tail).subspan(in_tail, kEndBytes);
  const std::uint64_t end_at = length_ - tail.size() + in_tail;
  if (at<std::uint16_t>(record, 4) != 0 || at<std::uint16_t>(record, 6) != 0)
    return bad(end_at, "a zip in several volumes");
  Directory where{.at = at<std::uint32_t>(record, 16),
                  .size = at<std::uint32_t>(record, 12),
                  .count = at<std::uint16_t>(record, 10),
                  .end = end_at};
  const bool zip64 = end_at >= kLocator64Bytes && in_tail >= kLocator64Bytes &&
                     at<std::uint32_t>(tail, in_tail - kLocator64Bytes) == kLocator64Signature;
  if (zip64) {
    EBB_TRY_ASSIGN(const Directory wide, zip64_directory(end_at));
    const auto agree = [](std::uint64_t narrow, std::uint64_t full, std::uint64_t limit) {
      return narrow == std::min(full, limit) || narrow == limit;
    };
    if (!agree(where.at, wide.at, kFull32) || !agree(where.size, wide.size, kFull32) ||
        !agree(where.count, wide.count, 0xffff))
      return bad(end_at, "the zip's two end records disagree");
    where = wide;
  }
  if (where.at > where.end || where.end - where.at != where.size)
    return bad(end_at, "the zip's directory does not end where its end record begins");
  if (where.size > kMaxDirectory)
    return refuse(
        Code::limit, source_->name(), offset_ + where.at,
        compose("a zip directory of {} bytes; the limit is {}", where.size, kMaxDirectory));
  return where;
}

Result<ZipReader::Directory> ZipReader::zip64_directory(std::uint64_t end_at) const {
  EBB_TRY_ASSIGN(const ByteVector locator,
                 read_bytes(*source_, offset_ + end_at - kLocator64Bytes, kLocator64Bytes, 64));
  const std::uint64_t record_at = at<std::uint64_t>(locator, 8);
  if (end_at < kLocator64Bytes + kEnd64Bytes || record_at != end_at - kLocator64Bytes - kEnd64Bytes)
    return bad(end_at - kLocator64Bytes, "the zip64 end record is not where its locator says");
  EBB_TRY_ASSIGN(const ByteVector record,
                 read_bytes(*source_, offset_ + record_at, kEnd64Bytes, 64));
  if (at<std::uint32_t>(record, 0) != kEnd64Signature)
    return bad(record_at, "no zip64 end record where its locator points");
  return Directory{.at = at<std::uint64_t>(record, 48),
                   .size = at<std::uint64_t>(record, 40),
                   .count = at<std::uint64_t>(record, 32),
                   .end = record_at};
}

Result<ZipEntry> ZipReader::read_entry(ByteReader& reader, std::uint64_t entry_at) const {
  const auto fixed = reader.take(kCentralBytes);
  if (!fixed || at<std::uint32_t>(*fixed, 0) != kCentralSignature)
    return bad(entry_at, "the zip's directory is damaged");
  const auto flags = at<std::uint16_t>(*fixed, 8);
  const auto method = at<std::uint16_t>(*fixed, 10);
  const auto name_length = at<std::uint16_t>(*fixed, 28);
  ZipEntry entry{.name = {},
                 .crc = at<std::uint32_t>(*fixed, 16),
                 .stored_size = at<std::uint32_t>(*fixed, 20),
                 .size = at<std::uint32_t>(*fixed, 24),
                 .header_at = at<std::uint32_t>(*fixed, 42),
                 .end_at = 0,
                 .deflated = method == 8};
  const auto name = reader.take(name_length);
  const auto extra = reader.take(at<std::uint16_t>(*fixed, 30));
  const auto comment = reader.take(at<std::uint16_t>(*fixed, 32));
  if (!name || !extra || !comment) return bad(entry_at, "the zip's directory is damaged");
  entry.name = text_of(*name);
  if (name_length > kMaxName) return bad(entry_at, "a record name longer than 4096 bytes");
  EBB_TRY(check_name(entry));
  if ((flags & 1u) != 0) return bad(entry_at, "record '" + entry.name + "' is marked encrypted");
  if (method != 0 && method != 8)
    return refuse(Code::unsupported, source_->name(), offset_ + entry_at,
                  compose("record '{}' uses compression method {}", entry.name, method));
  if (!apply_zip64(*extra, entry))
    return bad(entry_at, "record '" + entry.name + "' has a damaged zip64 field");
  if (!entry.deflated && entry.stored_size != entry.size)
    return bad(entry_at, "record '" + entry.name + "' is stored but its two sizes differ");
  return entry;
}

Result<> ZipReader::check_name(const ZipEntry& entry) const {
  const std::string_view name = entry.name;
  bool forbidden = false;
  for (const char c : name) forbidden |= kForbidden[static_cast<unsigned char>(c)];
  if (forbidden)
    return bad(entry.header_at,
               "record name " + json_string(name) + " holds a forbidden character");
  for (std::size_t first = 0; first <= name.size();) {
    const std::size_t end = std::min(name.find('/', first), name.size());
    const std::string_view part = name.substr(first, end - first);
    if (part == "..")
      return bad(entry.header_at,
                 "record name '" + entry.name + "' leaves the archive's directory");
    if (part.empty() || part == ".")
      return bad(entry.header_at,
                 "record name " + json_string(name) + " is not a plain relative path");
    first = end + 1;
  }
  return {};
}

Result<> ZipReader::read_directory(const Directory& where) {
  EBB_TRY_ASSIGN(const ByteVector bytes,
                 read_bytes(*source_, offset_ + where.at, where.size, kMaxDirectory));
  std::vector<std::uint64_t> places;  // of the entries, in the directory
  places.reserve(bytes.size() / kCentralBytes);
  entries_.reserve(bytes.size() / kUsualCentral);
  ByteReader reader(bytes);
  while (reader.left() > 0) {
    const std::uint64_t entry_at = where.at + reader.position();
    EBB_TRY_ASSIGN(ZipEntry entry, read_entry(reader, entry_at));
    const std::size_t slash = entry.name.find('/');
    if (slash == std::string::npos)
      return bad(entry_at, "record '" + entry.name + "' lies outside the archive's one folder");
    const std::string_view folder = std::string_view(entry.name).substr(0, slash);
    if (entries_.empty()) folder_ = folder;
    if (folder != folder_)
      return bad(entry_at, compose("record '{}' is not in folder '{}'", entry.name, folder_));
    places.push_back(entry_at);
    entries_.push_back(std::move(entry));
  }
  EBB_TRY(name_entries(places));
  if (entries_.size() != where.count)
    return bad(where.at, compose("the zip's directory has {} records, its end record says {}",
                                 entries_.size(), where.count));
  return {};
}

Result<> ZipReader::name_entries(const std::vector<std::uint64_t>& places) {
  by_name_.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::string_view name = entries_[i].name;
    if (!by_name_.insert(name.substr(folder_.size() + 1)).fresh)
      return bad(places[i],
                 "record '" + entries_[i].name + "' is listed twice in the central directory");
  }
  return {};
}

// Entries may stand in any order but not on each other.
Result<> ZipReader::check_places(const Directory& where) {
  std::vector<std::size_t> order(entries_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto before = [this](std::size_t a, std::size_t b) {
    return entries_[a].header_at < entries_[b].header_at;
  };
  if (!std::is_sorted(order.begin(), order.end(), before))
    std::sort(order.begin(), order.end(), before);
  for (std::size_t i = 0; i < order.size(); ++i) {
    ZipEntry& entry = entries_[order[i]];
    entry.end_at = i + 1 < order.size() ? entries_[order[i + 1]].header_at : where.at;
    const auto need = checked_add(entry.stored_size, kLocalBytes + entry.name.size());
    if (!need || entry.header_at > where.at || entry.end_at < entry.header_at ||
        *need > entry.end_at - entry.header_at)
      return bad(entry.header_at,
                 "record '" + entry.name + "' overlaps the next record or the zip's directory");
  }
  return {};
}

const ZipEntry* ZipReader::find(std::string_view name) const {
  const auto number = by_name_.find(name);
  return number ? &entries_[*number] : nullptr;
}

// As much of the local header as says what the directory says.
Result<ByteView> ZipReader::header_of(const ZipEntry& entry, Window& window) const {
  const std::uint64_t want = kLocalBytes + entry.name.size();
  const bool there = entry.header_at >= window.at &&
                     entry.header_at - window.at <= window.bytes.size() &&
                     want <= window.bytes.size() - (entry.header_at - window.at);
  if (!there) {
    // Where small records go on behind the last window the next one is larger.
    const std::uint64_t end = window.at + window.bytes.size();
    const bool goes_on = entry.header_at >= window.at && entry.header_at < end + kWindow;
    const std::uint64_t wide =
        goes_on ? std::clamp<std::uint64_t>(2 * window.bytes.size(), kWindow, kMostWindow)
                : kWindow;
    // check_places() found all of it before the directory.
    const std::uint64_t size = std::max(want, std::min(wide, length_ - entry.header_at));
    EBB_TRY_ASSIGN(window.bytes, read_bytes(*source_, offset_ + entry.header_at, size,
                                            kMostWindow + kLocalBytes + kMaxName));
    window.at = entry.header_at;
  }
  return ByteView(window.bytes).subspan(entry.header_at - window.at, want);
}

Result<std::uint64_t> ZipReader::data_offset(const ZipEntry& entry) const {
  Window window;
  return data_offset(entry, window);
}

Result<std::uint64_t> ZipReader::data_offset(const ZipEntry& entry, Window& window) const {
  const std::uint64_t want = kLocalBytes + entry.name.size();
  EBB_TRY_ASSIGN(const ByteView header, header_of(entry, window));
  if (at<std::uint32_t>(header, 0) != kLocalSignature)
    return bad(entry.header_at, "no record begins where the directory places '" + entry.name + "'");
  const bool same = at<std::uint16_t>(header, 26) == entry.name.size() &&
                    text_of(header.subspan(kLocalBytes)) == entry.name &&
                    at<std::uint16_t>(header, 8) == (entry.deflated ? 8 : 0);
  if (!same)
    return bad(entry.header_at,
               "the local header of '" + entry.name + "' disagrees with the zip's directory");
  const std::uint64_t data = entry.header_at + want + at<std::uint16_t>(header, 28);
  if (data > entry.end_at || entry.stored_size > entry.end_at - data)
    return bad(entry.header_at, "record '" + entry.name + "' runs into what follows it");
  return offset_ + data;
}

Result<ByteVector> ZipReader::read(const ZipEntry& entry, std::uint64_t limit) const {
  if (entry.size > limit || entry.stored_size > limit)
    return refuse(
        Code::limit, source_->name(), offset_ + entry.header_at,
        compose("record '{}' of {} bytes; the limit is {}", entry.name, entry.size, limit));
  if (entry.deflated && entry.size / kMaxInflation > entry.stored_size)
    return bad(entry.header_at, "record '" + entry.name + "' claims more than deflate can expand");
  EBB_TRY_ASSIGN(const std::uint64_t from, data_offset(entry));
  if (entry.deflated) {
    ByteVector inflated(static_cast<std::size_t>(entry.size));
    const InflateSource source(source_, from, entry);
    EBB_TRY(source.read(0, inflated));
    EBB_TRY(source.finish());
    return inflated;
  }
  EBB_TRY_ASSIGN(ByteVector bytes, read_bytes(*source_, from, entry.stored_size, limit));
  if (entry.has_crc() && crc32_zip(0, bytes) != entry.crc) return crc_failure(entry);
  return bytes;
}

}  // namespace ebb::formats
