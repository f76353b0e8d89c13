// The zip reader against damaged and hostile archives (Z01-Z14 of tests/acceptance.md), and
// archives beyond 4 GiB.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/torch/archive.h"
#include "ebb/formats/torch/file_writer.h"
#include "tests/support/archives.h"

namespace ebb {

namespace {

using formats::MemorySource;
using formats::TorchArchive;
using formats::ZipReader;

// A tensor of four floats as torch.save would write it.
ByteVector good_archive() {
  const formats::TensorArchiveWriter writer(DType::f32, {4});
  ByteVector bytes = writer.head();
  const ByteVector data(16, std::byte{0x3f});
  formats::append_bytes(bytes, data);
  formats::append_bytes(bytes, writer.tail(formats::crc32_zip(0, data)));
  return bytes;
}

std::string complaint(ByteVector bytes) {
  const std::uint64_t size = bytes.size();
  const auto archive =
      TorchArchive::open(std::make_shared<MemorySource>("z", std::move(bytes)), 0, size);
  if (!archive) return archive.error().message;
  const auto tensor = torch_tensor(archive->graph(), archive->graph().root());
  if (!tensor) return tensor.error().message;
  const auto elements = archive->elements(*tensor, 1u << 20);
  return elements ? "" : elements.error().message;
}

// Position of the n-th occurrence of `text`.
std::size_t find_text(const ByteVector& bytes, std::string_view text, int n) {
  const std::string_view all = formats::text_of(bytes);
  std::size_t at = all.find(text);
  for (; n > 1; --n) at = all.find(text, at + 1);
  EBB_CHECK(at != std::string_view::npos);
  return at;
}

void put(ByteVector& bytes, std::size_t at, std::string_view text) {
  std::copy_n(formats::view_of(text).begin(), text.size(),
              bytes.begin() + static_cast<std::ptrdiff_t>(at));
}

TEST(Zip, ReadsWhatTheWriterWrote) { EXPECT_EQ(complaint(good_archive()), ""); }

TEST(Zip, Z01EveryPrefixIsRefused) {
  const ByteVector good = good_archive();
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_NE(complaint({good.begin(), good.begin() + std::ptrdiff_t(size)}), "") << size;
}

TEST(Zip, Z02BytesAfterTheEndRecordAreRefused) {
  ByteVector bytes = good_archive();
  bytes.insert(bytes.end(), 30, std::byte{'x'});
  EXPECT_NE(complaint(bytes).find("does not reach the end"), std::string::npos) << complaint(bytes);
}

TEST(Zip, Z03LocalHeaderThatDisagreesIsRefused) {
  ByteVector bytes = good_archive();
  put(bytes, find_text(bytes, "archive/data/0", 1), "archive/data/1");
  EXPECT_NE(complaint(bytes).find("the local header of 'archive/data/0' disagrees"),
            std::string::npos)
      << complaint(bytes);
}

TEST(Zip, Z05EncryptedFlagIsRefused) {
  ByteVector bytes = good_archive();
  const std::size_t entry = find_text(bytes, "PK\x01\x02", 1);
  bytes[entry + 8] |= std::byte{1};
  EXPECT_NE(complaint(bytes).find("is marked encrypted"), std::string::npos);
}

TEST(Zip, Z06WrongCrcNamesTheRecord) {
  ByteVector bytes = good_archive();
  bytes[find_text(bytes, "\x3f\x3f\x3f\x3f", 1)] = std::byte{0};
  EXPECT_NE(complaint(bytes).find("record 'archive/data/0' fails its CRC32 check"),
            std::string::npos);
}

TEST(Zip, Z08NamesThatLeaveTheFolderAreRefused) {
  for (const std::string_view name :
       {"archive/../../xxx", "archive//byteordr", "archive\\byteorder", "archive/./byteord"}) {
    ByteVector bytes = good_archive();
    put(bytes, find_text(bytes, "archive/byteorder", 2), name);
    EXPECT_NE(complaint(bytes).find("record name"), std::string::npos) << complaint(bytes);
  }
}

TEST(Zip, Z09SizesBeyondTheArchiveAreRefused) {
  ByteVector bytes = good_archive();
  const std::size_t entry = find_text(bytes, "PK\x01\x02", 1);
  put(bytes, entry + 20, std::string_view("\xf0\xff\xff\xff\xf0\xff\xff\xff", 8));
  EXPECT_NE(complaint(bytes).find("overlaps the next record"), std::string::npos)
      << complaint(bytes);
  put(bytes, entry + 20, "\xff\xff\xff\xff\xff\xff\xff\xff");
  EXPECT_NE(complaint(bytes).find("damaged zip64 field"), std::string::npos) << complaint(bytes);
}

TEST(Zip, Z09DeflatedRecordsHoldWhatTheySay) {
  const std::string text(200, 'x');
  const ByteVector good = test_support::archive_of(
      {{"a/x", text, test_support::ArchiveRecord::Method::deflated}, {"a/version", "3\n"}});
  const auto read_as = [&](std::uint32_t declared) {
    ByteVector bytes = good;
    const std::string size = {static_cast<char>(declared & 0xff), static_cast<char>(declared >> 8)};
    put(bytes, 22, size);
    put(bytes, find_text(bytes, "PK\1\2", 1) + 24, size);
    const auto source = std::make_shared<MemorySource>("z", std::move(bytes));
    const auto archive = ZipReader::open(source, 0, source->size());
    if (!archive) return archive.error().message;
    const auto record = archive->read(*archive->find("x"), 1000);
    return record ? std::string(formats::text_of(*record)) : record.error().message;
  };
  EXPECT_EQ(read_as(200), text);
  EXPECT_EQ(read_as(199), "z:33: record 'a/x' decompresses to more bytes than it says");
  EXPECT_EQ(read_as(201), "z:33: record 'a/x' decompresses to fewer bytes than it says");
  EXPECT_EQ(read_as(0), "z:33: record 'a/x' decompresses to more bytes than it says");
}

TEST(Zip, Z10PrefixBytesAreRefused) {
  ByteVector bytes = good_archive();
  bytes.insert(bytes.begin(), 64, std::byte{'#'});
  EXPECT_EQ(complaint(bytes), "z:0: no zip archive begins here");
}

TEST(Zip, Z13TinyFilesAreRefused) {
  EXPECT_EQ(complaint({}), "z:0: too short for a zip archive");
  EXPECT_EQ(complaint({std::byte{'P'}}), "z:0: too short for a zip archive");
}

TEST(Zip, Z14TarArchivesAreUnsupportedByName) {
  ByteVector bytes(512);
  put(bytes, 257, "ustar");
  EXPECT_NE(complaint(bytes).find("a tar archive of torch 0.1"), std::string::npos);
}

TEST(Zip, SurvivesAFlipOfEveryByte) {
  const ByteVector good = good_archive();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int flip : {1, 0x80, 0xff}) {
      ByteVector bytes = good;
      bytes[at] ^= static_cast<std::byte>(flip);
      complaint(std::move(bytes));
    }
  }
}

// A file of zeros with some literal bytes in it.
class Sparse : public formats::ByteSource {
 public:
  Sparse(std::uint64_t size, std::vector<std::pair<std::uint64_t, ByteVector>> parts)
      : size_(size), parts_(std::move(parts)) {}
  std::uint64_t size() const override { return size_; }
  std::string_view name() const override { return "sparse"; }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override {
    std::fill(into.begin(), into.end(), std::byte{0});
    for (const auto& [at, bytes] : parts_) {
      const std::uint64_t first = std::max(at, offset);
      const std::uint64_t end = std::min(at + bytes.size(), offset + into.size());
      if (first < end)
        std::copy_n(bytes.begin() + std::ptrdiff_t(first - at), end - first,
                    into.begin() + std::ptrdiff_t(first - offset));
    }
    return {};
  }

 private:
  std::uint64_t size_;
  std::vector<std::pair<std::uint64_t, ByteVector>> parts_;
};

TEST(Zip, TensorsBeyond4GiBHaveWideFields) {
  const formats::TensorArchiveWriter writer(DType::f32, {5, formats::GiB / 4});
  const std::uint64_t data = 5 * formats::GiB;
  ByteVector head = writer.head();
  const std::uint64_t data_at = head.size();
  ByteVector tail = writer.tail(7);
  EXPECT_EQ(tail.size(), writer.tail(0).size());
  const std::uint64_t size = data_at + data + tail.size();
  const auto source = std::make_shared<Sparse>(
      size, std::vector<std::pair<std::uint64_t, ByteVector>>{{0, head}, {data_at + data, tail}});
  const auto archive = TorchArchive::open(source, 0, size);
  ASSERT_TRUE(archive.has_value()) << archive.error().message;
  const auto tensor = torch_tensor(archive->graph(), archive->graph().root());
  ASSERT_TRUE(tensor.has_value()) << tensor.error().message;
  const auto plain = archive->plain(*tensor);
  ASSERT_TRUE(plain.has_value()) << plain.error().message;
  ASSERT_TRUE(plain->has_value());
  EXPECT_EQ((*plain)->record_at, data_at);
  EXPECT_EQ((*plain)->record->size, data);
  EXPECT_EQ((*plain)->record->crc, 7u);
}

}  // namespace

}  // namespace ebb
