#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/native/manifest_wire.h"

namespace ebb::formats::native {
namespace {

void append_string(ByteVector& out, std::string_view text) {
  append_le(out, static_cast<std::uint32_t>(text.size()));
  append_text(out, text);
}

void append_section(ByteVector& out, std::string_view tag, ByteView content) {
  append_text(out, tag);
  append_le(out, crc32c(0, content));
  append_le(out, std::uint64_t{content.size()});
  append_bytes(out, content);
}

void append_header(ByteVector& out, std::string_view magic, const ManifestHeader& header,
                   std::uint32_t sections) {
  append_text(out, magic);
  append_le(out, kManifestVersion);
  append_le(out, index_of(header.rank));
  append_bytes(out, header.store);
  append_le(out, header.world);
  append_le(out, sections);
  append_le(out, header.generation);
  append_le(out, header.step);
  append_le(out, header.bytes);
  EBB_CHECK(out.size() == kManifestHeaderBytes);
}

ByteVector states_section(const Manifest& manifest) {
  ByteVector out;
  append_le(out, static_cast<std::uint32_t>(manifest.states.size()));
  for (const std::string& state : manifest.states) append_string(out, state);
  return out;
}

ByteVector groups_section(const Manifest& manifest) {
  ByteVector out;
  append_le(out, static_cast<std::uint32_t>(manifest.groups.size()));
  for (const Group& group : manifest.groups) {
    append_string(out, group.optimizer);
    append_le(out, static_cast<std::uint32_t>(group.settings.size()));
    for (const auto& [key, value] : group.settings) {
      append_string(out, key);
      append_string(out, value);
    }
  }
  return out;
}

ByteVector params_section(const Manifest& manifest) {
  ByteVector out;
  append_le(out, static_cast<std::uint32_t>(manifest.params.size()));
  for (const Param& param : manifest.params) {
    append_string(out, param.name);
    append_le(out, param.group);
    append_le(out, static_cast<std::uint32_t>(param.shape.size()));
    for (const std::uint64_t dimension : param.shape) append_le(out, dimension);
  }
  return out;
}

ByteVector tiles_section(const Manifest& manifest) {
  ByteVector out;
  append_le(out, std::uint64_t{manifest.tiles.size()});
  for (const Tile& tile : manifest.tiles) {
    append_le(out, std::uint32_t{tile.slot});
    append_le(out, static_cast<std::uint32_t>(tile.segments.size()));
    append_le(out, tile.used_bytes);
    append_le(out, tile.written_step);
    for (const Segment& segment : tile.segments) {
      append_le(out, segment.param);
      append_le(out, segment.state);
      append_le(out, static_cast<std::uint32_t>(segment.dtype));
      append_le(out, std::uint32_t{0});
      append_le(out, segment.first);
      append_le(out, segment.count);
      append_le(out, segment.offset);
    }
  }
  return out;
}

ByteVector crcs_section(const Manifest& manifest) {
  ByteVector out;
  for (const Tile& tile : manifest.tiles) {
    append_le(out, static_cast<std::uint32_t>(tile.crcs.size()));
    for (const std::uint32_t crc : tile.crcs) append_le(out, crc);
  }
  return out;
}

ByteVector blobs_section(const Manifest& manifest) {
  ByteVector out;
  append_le(out, static_cast<std::uint32_t>(manifest.blobs.size()));
  for (const Blob& blob : manifest.blobs) {
    append_string(out, blob.key);
    append_le(out, std::uint64_t{blob.bytes.size()});
    append_bytes(out, blob.bytes);
  }
  return out;
}

}  // namespace

ByteVector encode(const Manifest& manifest) {
  ByteVector body;
  append_section(body, kSectionTags[0], view_of(manifest.fingerprint));
  append_section(body, kSectionTags[1], states_section(manifest));
  append_section(body, kSectionTags[2], groups_section(manifest));
  append_section(body, kSectionTags[3], params_section(manifest));
  append_section(body, kSectionTags[4], tiles_section(manifest));
  append_section(body, kSectionTags[5], crcs_section(manifest));
  append_section(body, kSectionTags[6], blobs_section(manifest));
  const bool converted = !manifest.values.empty() || !manifest.param_steps.empty();
  if (converted) {
    append_section(body, kSectionTags[7], view_of(values_json(manifest.values)));
    append_section(body, kSectionTags[8], view_of(param_steps_json(manifest.param_steps)));
  }
  const std::uint64_t size =
      align_up(kManifestHeaderBytes + body.size() + kManifestTrailerBytes, kBlock);
  ByteVector out;
  out.reserve(static_cast<std::size_t>(size));
  append_header(out, kManifestMagic,
                {manifest.store, manifest.rank, manifest.world, manifest.generation, manifest.step,
                 size, false},
                static_cast<std::uint32_t>(converted ? kSectionTags.size() : kSectionsOfAnEngine));
  append_bytes(out, body);
  out.resize(static_cast<std::size_t>(size - kManifestTrailerBytes));
  append_le(out, manifest.generation);
  append_le(out, std::uint32_t{0});
  append_le(out, crc32c(0, out));
  return out;
}

ByteVector encode_void_header(const ManifestHeader& abandoned) {
  ByteVector out;
  out.reserve(kBlock);
  ManifestHeader header = abandoned;
  header.bytes = 0;
  append_header(out, kVoidMagic, header, 0);
  out.resize(kBlock);
  return out;
}

}  // namespace ebb::formats::native
