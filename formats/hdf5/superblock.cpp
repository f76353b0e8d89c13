#include "ebb/formats/hdf5/superblock.h"

#include <algorithm>
#include <array>
#include <optional>

#include "ebb/formats/core/refuse.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats::hdf5 {
namespace {

constexpr std::array<unsigned char, 8> kSignature = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
constexpr std::uint64_t kFirstUserBlock = 512;
constexpr std::size_t kMostBytes = 96;  // of a superblock, as far as it is read here

Result<std::optional<std::uint64_t>> find_signature(const ByteSource& file) {
  std::array<std::byte, kSignature.size()> bytes{};
  for (std::uint64_t at = 0; at + bytes.size() <= file.size();
       at = at == 0 ? kFirstUserBlock : at * 2) {
    EBB_TRY(file.read(at, bytes));
    if (std::ranges::equal(bytes, std::as_bytes(std::span(kSignature))))
      return std::optional<std::uint64_t>(at);
  }
  return std::optional<std::uint64_t>();
}

}  // namespace

bool has_signature(const ByteSource& file) {
  const auto found = find_signature(file);
  return found && found->has_value();
}

Result<Superblock> read_superblock(const ByteSource& file) {
  EBB_TRY_ASSIGN(const std::optional<std::uint64_t> found, find_signature(file));
  if (!found) return refuse(Code::corrupt, file.name(), 0, "no signature of HDF5");
  Superblock block{.at = *found};
  const auto bad = [&](Code code, std::string_view why) {
    return refuse(code, file.name(), block.at, why);
  };
  ByteVector bytes(
      static_cast<std::size_t>(std::min<std::uint64_t>(kMostBytes, file.size() - block.at)));
  EBB_TRY(file.read(block.at, bytes));
  const auto u8 = [&](std::size_t at) {
    return at < bytes.size() ? std::to_integer<std::uint8_t>(bytes[at]) : std::uint8_t{0};
  };
  block.version = u8(8);
  if (block.version > 3)
    return bad(Code::unsupported,
               compose("superblock of version {}; 0 to 3 are read", block.version));
  const bool old = block.version < 2;
  if (u8(old ? 13 : 9) != 8 || u8(old ? 14 : 10) != 8)
    return bad(bytes.size() < 16 ? Code::incomplete : Code::unsupported,
               compose("addresses of {} and lengths of {} bytes; only 8 and 8 are read",
                       u8(old ? 13 : 9), u8(old ? 14 : 10)));
  // Version 1 has four bytes more before the addresses: base, free space, end of file.
  const std::size_t addresses = old ? (block.version == 0 ? 24 : 28) : 12;
  if (bytes.size() < addresses + 24)
    return bad(Code::incomplete, "the file ends in its superblock");
  const auto base = load_le<std::uint64_t>(ByteView(bytes).subspan(addresses));
  const auto stated = load_le<std::uint64_t>(ByteView(bytes).subspan(addresses + 16));
  // The library moves with the signature when a user block was put in front later.
  const auto end = stated < base ? std::nullopt : checked_add(block.at, stated - base);
  if (!end) return bad(Code::corrupt, "the superblock's end of file lies before its beginning");
  block.end = *end;
  if (block.end > file.size())
    return refuse(Code::incomplete, file.name(), file.size(),
                  compose("the file ends before the end its superblock states, {}", block.end));
  constexpr std::uint8_t kOpenForWriting = 1, kOpenBySwmr = 4;
  if (block.version == 3 && (u8(11) & (kOpenForWriting | kOpenBySwmr)) != 0)
    return Error{Code::incomplete,
                 compose("{}:{}: the file was not closed by its writer (consistency flags {})",
                         file.name(), block.at + 11, u8(11)),
                 "wait for the writer; after a crash: h5clear -s, then look at every value"};
  return block;
}

Result<> FromByte::read(std::uint64_t offset, std::span<std::byte> into) const {
  const auto at = checked_add(at_, offset);
  if (!at) return refuse(Code::corrupt, name(), offset, "an offset beyond 64 bits");
  return file_->read(*at, into);
}

}  // namespace ebb::formats::hdf5
