// What the confined reader says about one HDF5 file: plain numbers and names, as bytes over a pipe.
// It comes from a process that parsed hostile input and is believed no more than a file: decode()
// bounds every count by the bytes that are there, and describe.cpp checks every number again.
//
// Offsets are from the file's superblock on, which is where a file of HDF5 begins; a user block
// before it is the business of superblock.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/value.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats::hdf5 {

constexpr std::string_view kReaderProgram = "ebb-hdf5-reader";
constexpr std::uint64_t kNowhere = ~std::uint64_t{0};  // an address that was never given
constexpr std::uint64_t kMaxDescription = 512ull << 20;

struct ElementType {
  enum class Kind : std::uint8_t { integer, floating, complex, boolean, text, other };
  Kind kind = Kind::other;
  std::uint32_t size = 0;  // bytes; of a complex number: of both parts
  bool big_endian = false;
  bool is_signed = false;
  bool padded = false;  // bits that are not part of the number
  // floating, complex: bit positions and widths inside one part
  std::uint32_t sign_at = 0;
  std::uint32_t exponent_at = 0;
  std::uint32_t exponent_bits = 0;
  std::uint32_t mantissa_at = 0;
  std::uint32_t mantissa_bits = 0;
  std::uint64_t bias = 0;
  std::string words;  // for messages: "variable-length string", "compound of 3 members"
};

struct Attribute {
  std::string name;
  Value value;
};

struct Filter {
  std::uint32_t id = 0;
  std::vector<std::uint32_t> settings;
};

struct StoredChunk {  // in the order of the chunk grid, row-major
  std::uint64_t address = kNowhere;
  std::uint64_t bytes = 0;
  std::uint32_t skipped = 0;  // bit i: filter i was not applied
};

// A selection of a virtual dataset or its source, per dimension: `count` blocks of `block`
// elements, `stride` apart, the first at `start`. All empty: everything.
struct Selection {
  enum class Kind : std::uint8_t { everything, blocks, none, irregular };
  Kind kind = Kind::everything;
  Shape start, stride, count, block;
};

struct Mapping {
  std::string file;  // as stored: relative to the file that holds the virtual dataset
  std::string dataset;
  Selection source;
  Selection target;
};

struct ExternalFile {
  std::string name;
  std::uint64_t bytes = 0;
};

struct Dataset {
  enum class Layout : std::uint8_t { compact, contiguous, chunked, mapped };
  std::string path;  // absolute
  ElementType type;
  bool has_space = true;  // false: declared to hold nothing at all
  Shape shape;
  Layout layout = Layout::contiguous;
  std::uint64_t address = kNowhere;  // contiguous
  std::uint64_t stored = 0;          // bytes the file keeps for it
  ByteVector content;                // compact
  Shape chunk;                       // chunked: extents of one chunk
  std::uint64_t chunks_stored = 0;
  std::vector<Filter> filters;
  std::vector<StoredChunk> chunks;  // all of the grid, or none where chunks are missing
  std::vector<Mapping> mappings;
  std::vector<ExternalFile> external;
  std::optional<Value> text;  // kind text: its strings, where they are few and one per dataset
  std::vector<Attribute> attributes;
};

struct Group {
  std::string path;  // absolute; "/" is the root
  std::vector<Attribute> attributes;
};

struct Link {
  enum class Kind : std::uint8_t { soft, external, other, group_again };
  Kind kind = Kind::soft;
  std::string path;
  std::string target;  // soft: a path; external: a path in `file`; group_again: its first path
  std::string file;
};

struct Description {
  std::string library;  // "1.10.8"
  std::vector<std::string> notes;
  std::vector<Group> groups;      // as walked; the root first
  std::vector<Dataset> datasets;  // as walked
  std::vector<Link> links;        // whatever is no hard link to something new
};

ByteVector encode(const Description& description);
// Code::corrupt with the byte where it stops making sense.
Result<Description> decode(ByteView bytes);

}  // namespace ebb::formats::hdf5
