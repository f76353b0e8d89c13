// A store's manifest as values. docs/formats/native.md is the byte layout; this header is what the
// rest of the code sees of it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/dtype.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/layout/box.h"
#include "ebb/formats/native/superblock.h"

namespace ebb::formats::native {

// `count` elements of a parameter's state, elements [first, first+count) of the row-major tensor,
// stored dense at byte `offset` of the tile.
//
// `encoding` says what the elements make: 0, themselves; block_encoding(b), with a scale for each
// b elements, counted from the parameter's first, the fp32 numbers of the state: codes, of dtype
// i8. The scales are the state `<state>.scale` of a parameter of the same name. kLowHalves: low
// halves of fp32 numbers (halves.h), of dtype u16; the high ones are the parameter's state `param`.
struct Segment {
  std::uint32_t param = 0;
  std::uint32_t state = 0;  // index into Manifest::states
  DType dtype = DType::f32;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t offset = 0;
  std::uint32_t encoding = 0;
  bool operator==(const Segment&) const = default;
};
constexpr std::uint32_t block_encoding(std::uint32_t elems) { return 1 | elems << 8; }
// Elements of a block; 0: none of this encoding.
constexpr std::uint32_t block_of(std::uint32_t encoding) {
  return (encoding & 0xff) == 1 ? encoding >> 8 : 0;
}
inline constexpr std::string_view kScaleOf = ".scale";  // behind the name of a state
inline constexpr std::uint32_t kLowHalves = 2;
inline constexpr std::string_view kHighHalves = "param";  // the state

struct Tile {
  std::uint8_t slot = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t written_step = 0;
  std::vector<Segment> segments;
  std::vector<std::uint32_t> crcs;  // one per block of block_bytes, see block_crc
};

constexpr std::uint32_t kNoGroup = 0xffffffff;  // of what no optimizer steps: frozen, a buffer

struct Param {
  std::string name;
  Shape shape;
  std::uint32_t group = 0;
};

struct Group {
  std::string optimizer;  // "muon", "adamw"
  // every hyper-parameter explicit, in a fixed order: value is a number or a short word
  std::vector<std::pair<std::string, std::string>> settings;
  bool operator==(const Group&) const = default;
};

struct Blob {
  std::string key;
  ByteVector bytes;
};

struct Manifest {
  Uuid store{};
  Rank rank{};
  std::uint32_t world = 1;
  std::uint64_t generation = 0;  // starts at 1, never reused
  std::uint64_t step = 0;
  std::string fingerprint;  // kernel library, version, ISA path, precision mode
  std::vector<std::string> states;
  std::vector<Param> params;  // all parameters of the model, the same on every rank
  std::vector<Group> groups;
  std::vector<Tile> tiles;
  std::vector<Blob> blobs;
  // What only a converted checkpoint has; rank 0's count.
  std::vector<ValueEntry> values;
  std::map<std::string, std::int64_t> param_steps;
};

// Limits of what a manifest holds; texts in bytes.
constexpr std::uint32_t kMaxText = 64 * 1024;
constexpr std::uint32_t kMaxStates = 256;
constexpr std::uint32_t kMaxGroups = 65536;
constexpr std::uint32_t kMaxParams = 1u << 24;
constexpr std::uint32_t kMaxDimensions = 16;
constexpr std::uint32_t kMaxBlobs = 65536;

// Size is a multiple of 4096 bytes; the trailer's CRC covers everything before it.
ByteVector encode(const Manifest& manifest);
Result<Manifest> decode_manifest(ByteView bytes, std::string_view file, std::uint64_t offset);

// The first 64 bytes of a region, before the rest is known to be there: what to read next. A void
// header is an abandoned generation's: only its number counts.
struct ManifestHeader {
  Uuid store{};
  Rank rank{};
  std::uint32_t world = 1;
  std::uint64_t generation = 0;
  std::uint64_t step = 0;
  std::uint64_t bytes = 0;  // the encoded manifest, whole; 0 when void
  bool is_void = false;
};
constexpr std::uint64_t kManifestHeaderBytes = 64;
Result<ManifestHeader> decode_manifest_header(ByteView bytes, std::string_view file,
                                              std::uint64_t offset);
// 4096 bytes to write over a manifest's beginning: the generation can never be chosen again.
ByteVector encode_void_header(const ManifestHeader& abandoned);

// crc32c(store | rank | tile | slot | block | written_step | bytes): a misdirected, stale or
// foreign block fails.
struct BlockPlace {
  Uuid store{};
  Rank rank{};
  std::uint64_t tile = 0;
  std::uint32_t slot = 0;
  std::uint64_t block = 0;
  std::uint64_t written_step = 0;
};
std::uint32_t block_crc(const BlockPlace& place, ByteView bytes);

}  // namespace ebb::formats::native
