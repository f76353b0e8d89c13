// What a rank's meta.ebb holds: used by the store when it opens and by the tools, so that both see
// the same generations.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/native/manifest.h"

namespace ebb::formats::native {

struct RegionFinding {
  std::uint32_t region = 0;
  ManifestHeader header;
  std::optional<Error> damage;  // why the manifest behind the header is not valid
  bool valid() const { return !header.is_void && !damage; }
};

struct MetaScan {
  Superblock superblock;
  std::optional<Error> damage_a, damage_b;  // of the superblocks; at most one is set
  std::vector<RegionFinding> regions;       // those with a header of this store and rank
  std::vector<Error> unreadable;            // of regions that were written and have no such header

  // The largest number seen, void and torn ones included: none up to it may be used again.
  std::uint64_t newest_seen() const;
  // The newest valid generation that is at most `limit`; nullptr if there is none.
  const RegionFinding* newest_valid(std::uint64_t limit) const;
  // Whether a generation may have been committed here, even if it is unreadable now: number 1 alone
  // may be what a crash left of the first commit.
  bool may_have_committed() const;

 private:
  const RegionFinding* newest(const auto& counts) const;
};

// Fails when neither superblock is valid; damaged manifests are findings, failed reads are errors.
Result<MetaScan> scan_meta(const ByteSource& meta);

// The newest generation with a header in the file, valid behind it or not; void ones do not count.
Result<std::uint64_t> newest_begun(const ByteSource& meta, const Superblock& superblock);

// Reads and decodes one region and checks it against the superblock.
Result<Manifest> read_manifest(const ByteSource& meta, const Superblock& superblock,
                               std::uint32_t region);

// Every tile has a slot of this store, fits it, and has one checksum for each block in use.
Result<> check_fits(const Manifest& manifest, const Superblock& superblock,
                    const std::string& where);

}  // namespace ebb::formats::native
