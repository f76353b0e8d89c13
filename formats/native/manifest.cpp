#include "ebb/formats/native/manifest.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/native/fields.h"

namespace ebb::formats::native {
namespace {

constexpr std::string_view kManifestMagic = "EBBMANIF";
constexpr std::string_view kVoidMagic = "EBBVOID.";
constexpr std::uint32_t kManifestVersion = 1;
constexpr std::uint64_t kManifestTrailerBytes = 16;

// What follows a header's magic.
auto fields_of(auto& header, auto& version, auto& sections) {
  return std::tie(version, header.rank, header.store, header.world, sections, header.generation,
                  header.step, header.bytes);
}

void append_count(ByteVector& out, std::size_t count) {
  append_le(out, static_cast<std::uint32_t>(count));
}
void append_string(ByteVector& out, std::string_view text) {
  append_count(out, text.size());
  append_text(out, text);
}

// Reads forward and fails with the absolute place in the file.
class Wire {
 public:
  Wire(ByteView bytes, std::string_view file, std::uint64_t offset)
      : reader_(bytes), file_(file), offset_(offset) {}

  Error error(Code code, const std::string& what) const {
    return refuse(code, file_, place(), what);
  }
  std::string here() const { return compose("{}:{}", file_, place()); }
  Error corrupt(const std::string& what) const { return error(Code::corrupt, what); }
  std::size_t left() const { return reader_.left(); }
  std::uint64_t place() const { return offset_ + reader_.position(); }

  // The next numbers, one behind the other.
  template <typename... Numbers>
  Result<> numbers(std::string_view what, Numbers&... into) {
    if (take_fields(reader_, std::tie(into...))) return {};
    return corrupt(compose("the manifest ends inside {}", what));
  }
  Result<ByteView> bytes(std::uint64_t count, std::string_view what) {
    if (const auto taken = reader_.take(count)) return *taken;
    return corrupt(compose("{} of {} bytes, but only {} are left", what, count, reader_.left()));
  }
  Result<> text(std::string_view what, std::string& into) {
    std::uint32_t size = 0;
    EBB_TRY(numbers(what, size));
    if (size > kMaxText)
      return error(Code::limit, compose("{} of {} bytes is over the limit of 65536", what, size));
    EBB_TRY_ASSIGN(const ByteView taken, bytes(size, what));
    into = text_of(taken);
    return {};
  }
  // A count of things that take at least `each` bytes, bounded before anything is allocated, and
  // then these: read_one(thing) for each.
  template <typename Count, typename Things>
  Result<> list(std::string_view what, Count limit, std::size_t each, Things& into,
                const auto& read_one) {
    Count count = 0;
    EBB_TRY(numbers(what, count));
    if (count > limit)
      return error(Code::limit, compose("{} {} are over the limit of {}", count, what, limit));
    if (count > left() / each)
      return corrupt(compose("{} {} do not fit the {} bytes that are left", count, what, left()));
    into.reserve(static_cast<std::size_t>(count));
    for (Count i = 0; i < count; ++i) {
      typename Things::value_type thing{};
      EBB_TRY(read_one(thing));
      into.push_back(std::move(thing));
    }
    return {};
  }
  Result<> finished() const {
    if (reader_.left() == 0) return {};
    return corrupt(compose("{} bytes too many in this section", reader_.left()));
  }

 private:
  ByteReader reader_;
  std::string_view file_;
  std::uint64_t offset_ = 0;
};

// Each section's writer, and behind it its reader.

void write_fingerprint(ByteVector& out, const Manifest& manifest) {
  append_text(out, manifest.fingerprint);
}

Result<> read_fingerprint(Wire& wire, Manifest& manifest) {
  if (wire.left() > kMaxText)
    return wire.error(Code::limit, "a fingerprint over the limit of 65536 bytes");
  EBB_TRY_ASSIGN(const ByteView text, wire.bytes(wire.left(), "fingerprint"));
  manifest.fingerprint = text_of(text);
  return {};
}

void write_states(ByteVector& out, const Manifest& manifest) {
  append_count(out, manifest.states.size());
  for (const std::string& state : manifest.states) append_string(out, state);
}

Result<> read_states(Wire& wire, Manifest& manifest) {
  return wire.list("states", kMaxStates, 4, manifest.states,
                   [&](std::string& name) { return wire.text("a state's name", name); });
}

void write_groups(ByteVector& out, const Manifest& manifest) {
  append_count(out, manifest.groups.size());
  for (const Group& group : manifest.groups) {
    append_string(out, group.optimizer);
    append_count(out, group.settings.size());
    for (const auto& [key, value] : group.settings) {
      append_string(out, key);
      append_string(out, value);
    }
  }
}

Result<> read_groups(Wire& wire, Manifest& manifest) {
  const auto setting = [&](std::pair<std::string, std::string>& into) -> Result<> {
    EBB_TRY(wire.text("a setting's name", into.first));
    return wire.text("a setting's value", into.second);
  };
  return wire.list("groups", kMaxGroups, 8, manifest.groups, [&](Group& group) -> Result<> {
    EBB_TRY(wire.text("an optimizer's name", group.optimizer));
    return wire.list("settings", kMaxGroups, 8, group.settings, setting);
  });
}

void write_params(ByteVector& out, const Manifest& manifest) {
  append_count(out, manifest.params.size());
  for (const Param& param : manifest.params) {
    append_string(out, param.name);
    append_le(out, param.group);
    append_count(out, param.shape.size());
    for (const std::uint64_t dimension : param.shape) append_le(out, dimension);
  }
}

Result<> read_params(Wire& wire, Manifest& manifest) {
  return wire.list("parameters", kMaxParams, 12, manifest.params, [&](Param& param) -> Result<> {
    EBB_TRY(wire.text("a parameter's name", param.name));
    EBB_TRY(wire.numbers("a parameter's group", param.group));
    if (param.group >= manifest.groups.size() && param.group != kNoGroup)
      return wire.corrupt(compose("parameter {} is in group {} of {}", param.name, param.group,
                                  manifest.groups.size()));
    EBB_TRY(wire.list("dimensions", kMaxDimensions, 8, param.shape,
                      [&](std::uint64_t& extent) { return wire.numbers("a shape", extent); }));
    if (checked_volume(param.shape)) return {};
    return wire.corrupt("parameter " + param.name + " has more than 2^64 elements");
  });
}

void write_tiles(ByteVector& out, const Manifest& manifest) {
  append_le(out, std::uint64_t{manifest.tiles.size()});
  for (const Tile& tile : manifest.tiles) {
    append_fields(
        out, std::tuple(std::uint32_t{tile.slot}, static_cast<std::uint32_t>(tile.segments.size()),
                        tile.used_bytes, tile.written_step));
    for (const Segment& s : tile.segments)
      append_fields(out, std::tuple(s.param, s.state, static_cast<std::uint32_t>(s.dtype),
                                    s.encoding, s.first, s.count, s.offset));
  }
}

// What elements of that encoding are stored as; nullopt: docs/formats/native.md does not know it.
std::optional<DType> dtype_of_encoding(std::uint32_t encoding) {
  if (encoding == kLowHalves) return DType::u16;
  return block_of(encoding) != 0 ? std::optional(DType::i8) : std::nullopt;
}

Result<> read_segment(Wire& wire, const Manifest& manifest, std::uint64_t used_bytes,
                      Segment& segment) {
  std::uint32_t dtype_number = 0;
  EBB_TRY(wire.numbers("a segment", segment.param, segment.state, dtype_number, segment.encoding,
                       segment.first, segment.count, segment.offset));
  if (segment.param >= manifest.params.size() || segment.state >= manifest.states.size())
    return wire.corrupt(compose("a segment of parameter {}, state {}; there are {} and {}",
                                segment.param, segment.state, manifest.params.size(),
                                manifest.states.size()));
  const Param& param = manifest.params[segment.param];
  const auto encoded = dtype_of_encoding(segment.encoding);
  if (segment.encoding != 0 && !encoded)
    return wire.error(
        Code::unsupported,
        compose("{} of parameter {} is stored in encoding {}: written by a newer version of Ebb",
                manifest.states[segment.state], param.name, segment.encoding));
  if (encoded && dtype_number != static_cast<std::uint32_t>(*encoded))
    return wire.error(
        Code::unsupported,
        compose("parameter {} has {} of dtype number {}, unknown to this version", param.name,
                *encoded == DType::i8 ? "blocks" : "low halves", dtype_number));
  const auto dtype =
      dtype_number < 256 ? dtype_numbered(static_cast<std::uint8_t>(dtype_number)) : std::nullopt;
  if (!dtype || bits_of(*dtype) % 8 != 0)
    return wire.error(Code::unsupported,
                      compose("parameter {} is stored as dtype number {}, unknown to this version",
                              param.name, dtype_number));
  segment.dtype = *dtype;
  const std::uint64_t elems = volume(param.shape);
  if (segment.first > elems || segment.count > elems - segment.first)
    return wire.corrupt(compose("a segment of parameter {} has elements {} + {} of {}", param.name,
                                segment.first, segment.count, elems));
  const auto bytes = checked_mul(segment.count, bytes_of(segment.dtype));
  if (!bytes || segment.offset > used_bytes || *bytes > used_bytes - segment.offset)
    return wire.corrupt("a segment of parameter " + param.name + " leaves its tile");
  return {};
}

Result<> read_tiles(Wire& wire, Manifest& manifest) {
  return wire.list("tiles", kMaxTiles, 24, manifest.tiles, [&](Tile& tile) -> Result<> {
    std::uint32_t slot = 0, segments = 0;
    EBB_TRY(wire.numbers("a tile", slot, segments, tile.used_bytes, tile.written_step));
    if (slot >= kMaxSlots || tile.used_bytes > kMaxTileBytes || segments > wire.left() / 40)
      return wire.corrupt(compose("tile {} in slot {} with {} bytes and {} segments is impossible",
                                  manifest.tiles.size(), slot, tile.used_bytes, segments));
    tile.slot = static_cast<std::uint8_t>(slot);
    tile.segments.resize(segments);
    for (Segment& segment : tile.segments)
      EBB_TRY(read_segment(wire, manifest, tile.used_bytes, segment));
    return {};
  });
}

void write_crcs(ByteVector& out, const Manifest& manifest) {
  for (const Tile& tile : manifest.tiles) {
    append_count(out, tile.crcs.size());
    for (const std::uint32_t crc : tile.crcs) append_le(out, crc);
  }
}

Result<> read_crcs(Wire& wire, Manifest& manifest) {
  for (Tile& tile : manifest.tiles)
    EBB_TRY(wire.list("checksums", 1u << 20, 4, tile.crcs,
                      [&](std::uint32_t& crc) { return wire.numbers("a checksum", crc); }));
  return {};
}

void write_blobs(ByteVector& out, const Manifest& manifest) {
  append_count(out, manifest.blobs.size());
  for (const Blob& blob : manifest.blobs) {
    append_string(out, blob.key);
    append_le(out, std::uint64_t{blob.bytes.size()});
    append_bytes(out, blob.bytes);
  }
}

Result<> read_blobs(Wire& wire, Manifest& manifest) {
  return wire.list("blobs", kMaxBlobs, 12, manifest.blobs, [&](Blob& blob) -> Result<> {
    std::uint64_t size = 0;
    EBB_TRY(wire.text("a blob's key", blob.key));
    EBB_TRY(wire.numbers("a blob", size));
    EBB_TRY_ASSIGN(const ByteView bytes, wire.bytes(size, "a blob"));
    blob.bytes.assign(bytes.begin(), bytes.end());
    return {};
  });
}

void write_values(ByteVector& out, const Manifest& manifest) {
  append_text(out, values_json(manifest.values));
}

Result<> read_values(Wire& wire, Manifest& manifest) {
  const std::string where = wire.here();
  EBB_TRY_ASSIGN(const ByteView json, wire.bytes(wire.left(), "values"));
  EBB_TRY_ASSIGN(manifest.values, read_values_json(text_of(json), where));
  return {};
}

void write_param_steps(ByteVector& out, const Manifest& manifest) {
  append_text(out, param_steps_json(manifest.param_steps));
}

Result<> read_param_steps(Wire& wire, Manifest& manifest) {
  const std::string where = wire.here();
  EBB_TRY_ASSIGN(const ByteView json, wire.bytes(wire.left(), "step counters"));
  EBB_TRY_ASSIGN(manifest.param_steps, read_param_steps_json(text_of(json), where));
  return {};
}

struct Section {
  std::string_view tag;
  void (*write)(ByteVector&, const Manifest&);
  Result<> (*read)(Wire&, Manifest&);
};
// Each occurs once, in this order; the last two together or not at all.
constexpr Section kSections[] = {
    {"FNGR", write_fingerprint, read_fingerprint},
    {"STAT", write_states, read_states},
    {"GRPS", write_groups, read_groups},
    {"PARM", write_params, read_params},
    {"TILE", write_tiles, read_tiles},
    {"CRCS", write_crcs, read_crcs},
    {"BLOB", write_blobs, read_blobs},
    {"VALS", write_values, read_values},
    {"STPS", write_param_steps, read_param_steps},
};
constexpr std::size_t kSectionsOfAnEngine = 7;
constexpr bool possible_sections(std::size_t count) {
  return count == kSectionsOfAnEngine || count == std::size(kSections);
}

void write_section(ByteVector& out, const Section& section, const Manifest& manifest) {
  ByteVector content;
  section.write(content, manifest);
  append_text(out, section.tag);
  append_fields(out, std::tuple(crc32c(0, content), std::uint64_t{content.size()}));
  append_bytes(out, content);
}

Result<> read_section(Wire& wire, const Section& section, std::string_view file,
                      Manifest& manifest) {
  EBB_TRY_ASSIGN(const ByteView tag, wire.bytes(4, "a section's tag"));
  if (text_of(tag) != section.tag)
    return wire.error(
        Code::unsupported,
        compose(
            "section \"{}\" where this version expects \"{}\": written by a newer version of Ebb",
            text_of(tag), section.tag));
  std::uint32_t crc = 0;
  std::uint64_t size = 0;
  EBB_TRY(wire.numbers("a section", crc, size));
  const std::uint64_t content_at = wire.place();
  EBB_TRY_ASSIGN(const ByteView content, wire.bytes(size, compose("section {}", section.tag)));
  Wire inner(content, file, content_at);
  if (crc32c(0, content) != crc)
    return inner.corrupt(compose("section {} does not match its checksum", section.tag));
  EBB_TRY(section.read(inner, manifest));
  return inner.finished();
}

ByteVector header_bytes(std::string_view magic, const ManifestHeader& header,
                        std::uint32_t sections) {
  ByteVector out;
  append_text(out, magic);
  append_fields(out, fields_of(header, kManifestVersion, sections));
  EBB_CHECK(out.size() == kManifestHeaderBytes);
  return out;
}

Error corrupt_at(std::string_view file, std::uint64_t offset, const std::string& what) {
  return refuse(Code::corrupt, file, offset, what);
}

}  // namespace

ByteVector encode(const Manifest& manifest) {
  const bool converted = !manifest.values.empty() || !manifest.param_steps.empty();
  const std::size_t sections = converted ? std::size(kSections) : kSectionsOfAnEngine;
  ByteVector body;
  for (const Section& section : std::span(kSections).first(sections))
    write_section(body, section, manifest);
  const std::uint64_t size =
      align_up(kManifestHeaderBytes + body.size() + kManifestTrailerBytes, kBlock);
  ByteVector out = header_bytes(kManifestMagic,
                                {manifest.store, manifest.rank, manifest.world, manifest.generation,
                                 manifest.step, size, false},
                                static_cast<std::uint32_t>(sections));
  out.reserve(static_cast<std::size_t>(size));
  append_bytes(out, body);
  out.resize(static_cast<std::size_t>(size - kManifestTrailerBytes));
  append_fields(out, std::tuple(manifest.generation, std::uint32_t{0}));
  append_le(out, crc32c(0, out));
  return out;
}

ByteVector encode_void_header(const ManifestHeader& abandoned) {
  ManifestHeader header = abandoned;
  header.bytes = 0;
  ByteVector out = header_bytes(kVoidMagic, header, 0);
  out.resize(kBlock);
  return out;
}

Result<ManifestHeader> decode_manifest_header(ByteView bytes, std::string_view file,
                                              std::uint64_t offset) {
  if (bytes.size() < kManifestHeaderBytes)
    return corrupt_at(file, offset,
                      compose("a manifest's header has 64 bytes, here are {}", bytes.size()));
  const std::string_view magic = text_of(bytes.first(8));
  ManifestHeader header;
  header.is_void = magic == kVoidMagic;
  if (magic != kManifestMagic && !header.is_void)
    return corrupt_at(file, offset, "no manifest of an Ebb store begins here");
  std::uint32_t version = 0, sections = 0;
  ByteReader fields(bytes.subspan(magic.size()));
  take_fields(fields, fields_of(header, version, sections));
  if (version != kManifestVersion || (!header.is_void && !possible_sections(sections)))
    return refuse(Code::unsupported, file, offset,
                  compose("written by a newer version of Ebb (manifest version {}, {} sections)",
                          version, sections));
  if (header.world == 0 || index_of(header.rank) >= header.world || header.generation == 0 ||
      header.generation > kMaxGeneration || header.step > kMaxGeneration)
    return corrupt_at(file, offset,
                      compose("a manifest of generation {}, rank {} of {} is impossible",
                              header.generation, index_of(header.rank), header.world));
  const bool size_possible =
      header.is_void
          ? header.bytes == 0
          : header.bytes >= kBlock && header.bytes % kBlock == 0 && header.bytes <= kMaxRegionBytes;
  if (!size_possible)
    return corrupt_at(file, offset, compose("a manifest of {} bytes is impossible", header.bytes));
  return header;
}

Result<Manifest> decode_manifest(ByteView bytes, std::string_view file, std::uint64_t offset) {
  EBB_TRY_ASSIGN(const ManifestHeader header, decode_manifest_header(bytes, file, offset));
  if (header.is_void)
    return corrupt_at(file, offset, compose("generation {} was abandoned", header.generation));
  if (bytes.size() != header.bytes)
    return corrupt_at(file, offset,
                      compose("a manifest of {} bytes, here are {}", header.bytes, bytes.size()));
  const ByteView trailer = bytes.last(kManifestTrailerBytes);
  if (load_le<std::uint32_t>(trailer.subspan(12)) != crc32c(0, bytes.first(bytes.size() - 4)))
    return corrupt_at(
        file, offset + bytes.size() - 4,
        compose("the manifest of generation {} does not match its checksum: torn or damaged",
                header.generation));
  if (load_le<std::uint64_t>(trailer) != header.generation)
    return corrupt_at(file, offset + bytes.size() - kManifestTrailerBytes,
                      "the manifest's header and trailer name different generations");
  Manifest manifest;
  manifest.store = header.store;
  manifest.rank = header.rank;
  manifest.world = header.world;
  manifest.generation = header.generation;
  manifest.step = header.step;
  Wire wire(bytes.subspan(kManifestHeaderBytes,
                          bytes.size() - kManifestHeaderBytes - kManifestTrailerBytes),
            file, offset + kManifestHeaderBytes);
  const auto sections = load_le<std::uint32_t>(bytes.subspan(36));
  for (const Section& section : std::span(kSections).first(sections))
    EBB_TRY(read_section(wire, section, file, manifest));
  return manifest;
}

std::uint32_t block_crc(const BlockPlace& place, ByteView bytes) {
  // No vector: this runs for every block that is paged in or out.
  std::array<std::byte, 48> bound;
  std::size_t end = 0;
  const auto put = [&](const auto& field) {
    std::memcpy(bound.data() + end, &field, sizeof(field));
    end += sizeof(field);
  };
  std::apply(
      [&](const auto&... fields) { (put(fields), ...); },
      std::tie(place.store, place.rank, place.tile, place.slot, place.block, place.written_step));
  EBB_CHECK(end == bound.size());
  return crc32c(crc32c(0, bound), bytes);
}

}  // namespace ebb::formats::native
