#include "tests/support/archives.h"

#include <zlib.h>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/zip/zip.h"
#include "ebb/formats/zip/zip_layout.h"
#include "tests/support/source_tree.h"

namespace ebb::test_support {

namespace {

using formats::append_le;

std::string deflated(std::string_view text) {
  z_stream stream{};
  EBB_CHECK(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EBB_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

struct Record {
  std::string name, stored;
  std::uint16_t method;
  std::uint32_t crc, size;
};

// What local headers and the directory have in common.
void append_fields(ByteVector& out, const Record& record) {
  append_le<std::uint16_t>(out, 20);  // version
  append_le<std::uint16_t>(out, 0);   // flags
  append_le<std::uint16_t>(out, record.method);
  append_le<std::uint32_t>(out, 0);  // time
  append_le<std::uint32_t>(out, record.crc);
  append_le<std::uint32_t>(out, static_cast<std::uint32_t>(record.stored.size()));
  append_le<std::uint32_t>(out, record.size);
  append_le<std::uint16_t>(out, static_cast<std::uint16_t>(record.name.size()));
  append_le<std::uint16_t>(out, 0);  // extra
}

ByteVector zip_of(const std::vector<Record>& records) {
  ByteVector out, directory;
  for (const Record& record : records) {
    append_le<std::uint32_t>(directory, 0x02014b50);
    append_le<std::uint16_t>(directory, 20);
    append_fields(directory, record);
    directory.resize(directory.size() + 10);  // comment, disk, attributes
    append_le<std::uint32_t>(directory, static_cast<std::uint32_t>(out.size()));
    formats::append_text(directory, record.name);
    append_le<std::uint32_t>(out, 0x04034b50);
    append_fields(out, record);
    formats::append_text(out, record.name);
    formats::append_text(out, record.stored);
  }
  const auto at = static_cast<std::uint32_t>(out.size());
  formats::append_bytes(out, directory);
  append_le<std::uint32_t>(out, 0x06054b50);
  append_le<std::uint32_t>(out, 0);  // disks
  append_le<std::uint16_t>(out, static_cast<std::uint16_t>(records.size()));
  append_le<std::uint16_t>(out, static_cast<std::uint16_t>(records.size()));
  append_le<std::uint32_t>(out, static_cast<std::uint32_t>(directory.size()));
  append_le<std::uint32_t>(out, at);
  append_le<std::uint16_t>(out, 0);
  return out;
}

}  // namespace

ByteVector archive_around(ByteView pickle, const std::vector<std::size_t>& storages) {
  formats::ZipLayout layout;
  ByteVector out;
  std::vector<std::uint32_t> crcs;
  const auto add = [&](std::string_view name, ByteView bytes) {
    formats::append_bytes(out, layout.record(name, bytes));
    crcs.push_back(formats::crc32_zip(0, bytes));
  };
  add("data.pkl", pickle);
  add("byteorder", formats::view_of("little"));
  for (std::size_t i = 0; i < storages.size(); ++i)
    add("data/" + std::to_string(i), ByteVector(storages[i]));
  add("version", formats::view_of("3\n"));
  formats::append_bytes(out, layout.directory(crcs));
  return out;
}

ByteVector with_hidden_call(const std::filesystem::path& path) {
  const auto tree = load_tree(path);
  const auto source = tree->open(tree->entries().front().name);
  EBB_CHECK(source.has_value());
  const auto zip = formats::ZipReader::open(*source, 0, (*source)->size());
  EBB_CHECK(zip.has_value());
  std::vector<ArchiveRecord> records;
  for (const formats::ZipEntry& entry : zip->entries()) {
    const auto bytes = zip->read(entry, entry.size);
    EBB_CHECK(bytes.has_value());
    std::string text(formats::text_of(*bytes));
    if (entry.name.ends_with("/data.pkl"))  // behind the two bytes of the protocol
      text.insert(2, "cposix\nsystem\nX\x0b" + std::string(3, '\0') + "touch PWNED\x85R0");
    records.push_back({entry.name, std::move(text)});
  }
  return archive_of(records);
}

ByteVector archive_of(const std::vector<ArchiveRecord>& records) {
  std::vector<Record> stored;
  for (const ArchiveRecord& record : records)
    stored.push_back(
        {record.name,
         record.method == ArchiveRecord::Method::deflated ? deflated(record.text) : record.text,
         static_cast<std::uint16_t>(record.method),
         formats::crc32_zip(0, formats::view_of(record.text)),
         static_cast<std::uint32_t>(record.text.size())});
  return zip_of(stored);
}

PickleText& PickleText::raw(std::string_view opcodes) {
  out_ += opcodes;
  return *this;
}

PickleText& PickleText::text(std::string_view text) {
  out_ += 'X';
  const auto length = static_cast<std::uint32_t>(text.size());
  out_.append(reinterpret_cast<const char*>(&length), sizeof length);
  return raw(text);
}

PickleText& PickleText::number(std::int32_t value) {
  out_ += 'J';
  out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  return *this;
}

PickleText& PickleText::global(std::string_view module, std::string_view name) {
  return raw("c").raw(module).raw("\n").raw(name).raw("\n");
}

PickleText& PickleText::put(std::uint32_t memo) {
  out_ += 'r';
  out_.append(reinterpret_cast<const char*>(&memo), sizeof memo);
  return *this;
}

PickleText& PickleText::get(std::uint32_t memo) {
  if (memo < 256) {
    out_ += 'h';
    out_ += static_cast<char>(memo);
  } else {
    out_ += 'j';
    out_.append(reinterpret_cast<const char*>(&memo), sizeof memo);
  }
  return *this;
}

}  // namespace ebb::test_support
