#include <algorithm>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/native/manifest_wire.h"

namespace ebb::formats::native {
namespace {

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

  template <typename T>
  Result<T> number(std::string_view what) {
    if (const auto value = reader_.number<T>()) return *value;
    return corrupt(compose("the manifest ends inside {}", what));
  }
  Result<ByteView> bytes(std::uint64_t count, std::string_view what) {
    if (const auto taken = reader_.take(count)) return *taken;
    return corrupt(compose("{} of {} bytes, but only {} are left", what, count, reader_.left()));
  }
  Result<std::string> text(std::string_view what) {
    EBB_TRY_ASSIGN(const auto size, number<std::uint32_t>(what));
    if (size > kMaxText)
      return error(Code::limit, compose("{} of {} bytes is over the limit of 65536", what, size));
    EBB_TRY_ASSIGN(const ByteView taken, bytes(size, what));
    return std::string(text_of(taken));
  }
  // A count of things that take at least `each` bytes: bounded before anything is allocated.
  template <typename T>
  Result<T> count(std::string_view what, T limit, std::size_t each) {
    EBB_TRY_ASSIGN(const auto value, number<T>(what));
    if (value > limit)
      return error(Code::limit, compose("{} {} are over the limit of {}", value, what, limit));
    if (value > reader_.left() / each)
      return corrupt(
          compose("{} {} do not fit the {} bytes that are left", value, what, reader_.left()));
    return value;
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

Result<> read_fingerprint(Wire& wire, Manifest& manifest) {
  if (wire.left() > kMaxText)
    return wire.error(Code::limit, "a fingerprint over the limit of 65536 bytes");
  EBB_TRY_ASSIGN(const ByteView text, wire.bytes(wire.left(), "fingerprint"));
  manifest.fingerprint = std::string(text_of(text));
  return {};
}

Result<> read_states(Wire& wire, Manifest& manifest) {
  EBB_TRY_ASSIGN(const auto count, wire.count<std::uint32_t>("states", kMaxStates, 4));
  for (std::uint32_t i = 0; i < count; ++i) {
    EBB_TRY_ASSIGN(auto name, wire.text("a state's name"));
    manifest.states.push_back(std::move(name));
  }
  return {};
}

Result<> read_groups(Wire& wire, Manifest& manifest) {
  EBB_TRY_ASSIGN(const auto count, wire.count<std::uint32_t>("groups", kMaxGroups, 8));
  for (std::uint32_t i = 0; i < count; ++i) {
    Group group;
    EBB_TRY_ASSIGN(group.optimizer, wire.text("an optimizer's name"));
    EBB_TRY_ASSIGN(const auto settings, wire.count<std::uint32_t>("settings", kMaxGroups, 8));
    for (std::uint32_t k = 0; k < settings; ++k) {
      EBB_TRY_ASSIGN(auto key, wire.text("a setting's name"));
      EBB_TRY_ASSIGN(auto value, wire.text("a setting's value"));
      group.settings.emplace_back(std::move(key), std::move(value));
    }
    manifest.groups.push_back(std::move(group));
  }
  return {};
}

Result<> read_params(Wire& wire, Manifest& manifest) {
  EBB_TRY_ASSIGN(const auto count, wire.count<std::uint32_t>("parameters", kMaxParams, 12));
  manifest.params.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    Param param;
    EBB_TRY_ASSIGN(param.name, wire.text("a parameter's name"));
    EBB_TRY_ASSIGN(param.group, wire.number<std::uint32_t>("a parameter's group"));
    if (param.group >= manifest.groups.size() && param.group != kNoGroup)
      return wire.corrupt(compose("parameter {} is in group {} of {}", param.name, param.group,
                                  manifest.groups.size()));
    EBB_TRY_ASSIGN(const auto dims, wire.count<std::uint32_t>("dimensions", kMaxDimensions, 8));
    for (std::uint32_t d = 0; d < dims; ++d) {
      EBB_TRY_ASSIGN(const auto extent, wire.number<std::uint64_t>("a shape"));
      param.shape.push_back(extent);
    }
    if (!checked_volume(param.shape))
      return wire.corrupt("parameter " + param.name + " has more than 2^64 elements");
    manifest.params.push_back(std::move(param));
  }
  return {};
}

Result<Segment> read_segment(Wire& wire, const Manifest& manifest, std::uint64_t used_bytes) {
  Segment segment;
  EBB_TRY_ASSIGN(segment.param, wire.number<std::uint32_t>("a segment"));
  EBB_TRY_ASSIGN(segment.state, wire.number<std::uint32_t>("a segment"));
  EBB_TRY_ASSIGN(const auto dtype_number, wire.number<std::uint32_t>("a segment"));
  EBB_TRY_ASSIGN(const auto zero, wire.number<std::uint32_t>("a segment"));
  EBB_TRY_ASSIGN(segment.first, wire.number<std::uint64_t>("a segment"));
  EBB_TRY_ASSIGN(segment.count, wire.number<std::uint64_t>("a segment"));
  EBB_TRY_ASSIGN(segment.offset, wire.number<std::uint64_t>("a segment"));
  if (segment.param >= manifest.params.size() || segment.state >= manifest.states.size())
    return wire.corrupt(compose("a segment of parameter {}, state {}; there are {} and {}",
                                segment.param, segment.state, manifest.params.size(),
                                manifest.states.size()));
  const Param& param = manifest.params[segment.param];
  const auto dtype =
      dtype_number < 256 ? dtype_numbered(static_cast<std::uint8_t>(dtype_number)) : std::nullopt;
  if (!dtype || bits_of(*dtype) % 8 != 0 || zero != 0)
    return wire.error(Code::unsupported,
                      compose("parameter {} is stored as dtype number {}, unknown to this version",
                              param.name, dtype_number));
  segment.dtype = *dtype;
  const std::uint64_t elems = volume(param.shape);
  if (segment.first > elems || segment.count > elems - segment.first)
    return wire.corrupt(compose("a segment of parameter {} has elements {} + {} of {}", param.name,
                                segment.first, segment.count, elems));
  const auto bytes = checked_mul(segment.count, bytes_of(*dtype));
  if (!bytes || segment.offset > used_bytes || *bytes > used_bytes - segment.offset)
    return wire.corrupt("a segment of parameter " + param.name + " leaves its tile");
  return segment;
}

Result<> read_tiles(Wire& wire, Manifest& manifest) {
  EBB_TRY_ASSIGN(const auto count, wire.count<std::uint64_t>("tiles", kMaxTiles, 24));
  manifest.tiles.reserve(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < count; ++i) {
    Tile tile;
    EBB_TRY_ASSIGN(const auto slot, wire.number<std::uint32_t>("a tile"));
    EBB_TRY_ASSIGN(const auto segments, wire.number<std::uint32_t>("a tile"));
    EBB_TRY_ASSIGN(tile.used_bytes, wire.number<std::uint64_t>("a tile"));
    EBB_TRY_ASSIGN(tile.written_step, wire.number<std::uint64_t>("a tile"));
    if (slot >= kMaxSlots || tile.used_bytes > kMaxTileBytes || segments > wire.left() / 40)
      return wire.corrupt(compose("tile {} in slot {} with {} bytes and {} segments is impossible",
                                  i, slot, tile.used_bytes, segments));
    tile.slot = static_cast<std::uint8_t>(slot);
    tile.segments.reserve(segments);
    for (std::uint32_t k = 0; k < segments; ++k) {
      EBB_TRY_ASSIGN(const Segment segment, read_segment(wire, manifest, tile.used_bytes));
      tile.segments.push_back(segment);
    }
    manifest.tiles.push_back(std::move(tile));
  }
  return {};
}

Result<> read_crcs(Wire& wire, Manifest& manifest) {
  for (Tile& tile : manifest.tiles) {
    EBB_TRY_ASSIGN(const auto count, wire.count<std::uint32_t>("checksums", 1u << 20, 4));
    tile.crcs.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      EBB_TRY_ASSIGN(const auto crc, wire.number<std::uint32_t>("a checksum"));
      tile.crcs.push_back(crc);
    }
  }
  return {};
}

Result<> read_blobs(Wire& wire, Manifest& manifest) {
  EBB_TRY_ASSIGN(const auto count, wire.count<std::uint32_t>("blobs", kMaxBlobs, 12));
  for (std::uint32_t i = 0; i < count; ++i) {
    Blob blob;
    EBB_TRY_ASSIGN(blob.key, wire.text("a blob's key"));
    EBB_TRY_ASSIGN(const auto size, wire.number<std::uint64_t>("a blob"));
    EBB_TRY_ASSIGN(const ByteView bytes, wire.bytes(size, "a blob"));
    blob.bytes.assign(bytes.begin(), bytes.end());
    manifest.blobs.push_back(std::move(blob));
  }
  return {};
}

Result<std::string_view> read_json(Wire& wire, std::string_view what) {
  EBB_TRY_ASSIGN(const ByteView text, wire.bytes(wire.left(), what));
  return text_of(text);
}

Result<> read_values(Wire& wire, Manifest& manifest) {
  const std::string where = wire.here();
  EBB_TRY_ASSIGN(const std::string_view json, read_json(wire, "values"));
  EBB_TRY_ASSIGN(manifest.values, read_values_json(json, where));
  return {};
}

Result<> read_param_steps(Wire& wire, Manifest& manifest) {
  const std::string where = wire.here();
  EBB_TRY_ASSIGN(const std::string_view json, read_json(wire, "step counters"));
  EBB_TRY_ASSIGN(manifest.param_steps, read_param_steps_json(json, where));
  return {};
}

using SectionReader = Result<> (*)(Wire&, Manifest&);
constexpr std::array<SectionReader, kSectionTags.size()> kSectionReaders = {
    read_fingerprint, read_states, read_groups, read_params,     read_tiles,
    read_crcs,        read_blobs,  read_values, read_param_steps};

Result<> read_section(Wire& wire, std::size_t index, std::string_view file, Manifest& manifest) {
  EBB_TRY_ASSIGN(const ByteView tag, wire.bytes(4, "a section's tag"));
  if (text_of(tag) != kSectionTags[index])
    return wire.error(
        Code::unsupported,
        compose(
            "section \"{}\" where this version expects \"{}\": written by a newer version of Ebb",
            text_of(tag), kSectionTags[index]));
  EBB_TRY_ASSIGN(const auto crc, wire.number<std::uint32_t>("a section"));
  EBB_TRY_ASSIGN(const auto size, wire.number<std::uint64_t>("a section"));
  const std::uint64_t content_at = wire.place();
  EBB_TRY_ASSIGN(const ByteView content, wire.bytes(size, compose("section {}", text_of(tag))));
  Wire inner(content, file, content_at);
  if (crc32c(0, content) != crc)
    return inner.corrupt(compose("section {} does not match its checksum", text_of(tag)));
  EBB_TRY(kSectionReaders[index](inner, manifest));
  return inner.finished();
}

Error corrupt_at(std::string_view file, std::uint64_t offset, const std::string& what) {
  return refuse(Code::corrupt, file, offset, what);
}

}  // namespace

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
  const auto version = load_le<std::uint32_t>(bytes.subspan(8));
  const auto sections = load_le<std::uint32_t>(bytes.subspan(36));
  header.rank = Rank{load_le<std::uint32_t>(bytes.subspan(12))};
  std::ranges::copy(bytes.subspan(16, 16), header.store.begin());
  header.world = load_le<std::uint32_t>(bytes.subspan(32));
  header.generation = load_le<std::uint64_t>(bytes.subspan(40));
  header.step = load_le<std::uint64_t>(bytes.subspan(48));
  header.bytes = load_le<std::uint64_t>(bytes.subspan(56));
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
  for (std::size_t i = 0; i < sections; ++i) EBB_TRY(read_section(wire, i, file, manifest));
  return manifest;
}

}  // namespace ebb::formats::native
