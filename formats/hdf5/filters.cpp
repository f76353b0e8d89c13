#include "ebb/formats/hdf5/filters.h"

#include <array>
#include <utility>

#include "ebb/formats/core/decompress.h"

namespace ebb::formats::hdf5 {
namespace {

constexpr std::array kKnown = {
    std::pair{4u, "szip"},         std::pair{5u, "nbit"},    std::pair{6u, "scaleoffset"},
    std::pair{305u, "LZO"},        std::pair{307u, "bzip2"}, std::pair{32000u, "lzf"},
    std::pair{32001u, "blosc"},    std::pair{32004u, "lz4"}, std::pair{32008u, "bitshuffle"},
    std::pair{32013u, "zfp"},      std::pair{32017u, "sz"},  std::pair{32019u, "fcidecomp"},
    std::pair{32023u, "granular"}, std::pair{32024u, "sz3"}, std::pair{32026u, "blosc2"},
};

Error bad(std::string_view where, std::string_view why) {
  return {Code::corrupt, compose("{}: {}", where, why)};
}

// Byte k of element i lies at k * elements + i; bytes that make no whole element follow as they
// are.
ByteVector unshuffle(const ByteVector& stored, std::size_t width) {
  if (width <= 1 || stored.size() < width) return stored;
  const std::size_t elements = stored.size() / width;
  ByteVector out(stored);
  for (std::size_t k = 0; k < width; ++k)
    for (std::size_t i = 0; i < elements; ++i) out[i * width + k] = stored[k * elements + i];
  return out;
}

// Old libraries on little-endian machines stored the checksum with the bytes of each half swapped;
// the library takes both.
std::uint32_t halves_swapped(std::uint32_t sum) {
  return ((sum & 0x00ff00ffu) << 8) | ((sum & 0xff00ff00u) >> 8);
}

Result<ByteVector> check_fletcher(ByteVector stored, std::string_view where) {
  if (stored.size() < 4) return bad(where, "too short for its checksum (fletcher32)");
  const auto stated = load_le<std::uint32_t>(ByteView(stored).last(4));
  stored.resize(stored.size() - 4);
  const std::uint32_t sum = fletcher32(stored);
  if (sum != stated && halves_swapped(sum) != stated)
    return bad(where, "its checksum (fletcher32) is wrong");
  return stored;
}

}  // namespace

std::uint32_t fletcher32(ByteView bytes) {
  std::uint32_t first = 0, second = 0;
  const auto fold = [](std::uint32_t sum) { return (sum & 0xffff) + (sum >> 16); };
  const auto byte = [&](std::size_t at) { return std::to_integer<std::uint32_t>(bytes[at]); };
  constexpr std::size_t kWordsBeforeOverflow = 360;
  std::size_t words = 0;
  for (std::size_t at = 0; at + 1 < bytes.size(); at += 2) {
    first += (byte(at) << 8) | byte(at + 1);
    second += first;
    if (++words % kWordsBeforeOverflow == 0) first = fold(first), second = fold(second);
  }
  first = fold(first), second = fold(second);
  if (bytes.size() % 2 != 0) {
    first += byte(bytes.size() - 1) << 8;
    second += first;
    first = fold(first), second = fold(second);
  }
  first = fold(first), second = fold(second);
  return (second << 16) | first;
}

Result<> check_filters(const std::vector<Filter>& filters, std::string_view where) {
  if (filters.size() > 32)
    return Error{Code::unsupported,
                 compose("{}: {} filters; HDF5 knows of at most 32", where, filters.size())};
  for (const Filter& filter : filters) {
    const std::uint32_t id = filter.id;
    if (id == kDeflate || id == kShuffle || id == kFletcher32 || id == kZstd) continue;
    std::string name = compose("filter {}", id);
    for (const auto& [known, word] : kKnown)
      if (known == id) name.append(" (").append(word).append(")");
    return Error{Code::unsupported,
                 compose("{}: {} is not read; deflate, shuffle, fletcher32 and zstd (32015) are",
                         where, name),
                 "h5repack -f GZIP=1 OLD.h5 NEW.h5, where libhdf5 has the filter"};
  }
  return {};
}

Result<ByteVector> undo_filters(const std::vector<Filter>& filters, std::uint32_t skipped,
                                std::uint32_t elem_bytes, ByteVector stored, std::uint64_t plain,
                                std::string_view where) {
  // What a filter was given may be what the one before it made a little longer.
  const std::uint64_t limit = plain + plain / 8 + 4096;
  for (std::size_t i = filters.size(); i > 0; --i) {
    const Filter& filter = filters[i - 1];
    if (i - 1 < 32 && (skipped >> (i - 1) & 1u) != 0) continue;
    if (filter.id == kFletcher32) {
      EBB_TRY_ASSIGN(stored, check_fletcher(std::move(stored), where));
    } else if (filter.id == kDeflate) {
      EBB_TRY_ASSIGN(stored, unzlib(stored, limit, where));
    } else if (filter.id == kZstd) {
      EBB_TRY_ASSIGN(stored, unzstd(stored, limit, where));
    } else if (filter.id == kShuffle) {
      stored = unshuffle(stored, filter.settings.empty() ? elem_bytes : filter.settings[0]);
    } else {
      return check_filters(filters, where).error();
    }
  }
  if (stored.size() == plain) return stored;
  return bad(where, compose("holds {} bytes, not the {} of a chunk", stored.size(), plain));
}

}  // namespace ebb::formats::hdf5
