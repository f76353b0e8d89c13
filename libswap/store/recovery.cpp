#include "ebb/libswap/store/recovery.h"

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/native/store_files.h"

namespace ebb::libswap {
namespace {

using formats::native::MetaScan;
using formats::native::RegionFinding;
using formats::native::Superblock;

Result<std::int64_t> agree_largest(Agreement& ranks, std::uint64_t mine) {
  EBB_TRY_ASSIGN(const std::int64_t lowest, ranks.agree(-static_cast<std::int64_t>(mine)));
  return -lowest;
}

// Nobody goes on when one rank cannot.
Result<> together(Agreement& ranks, Result<> mine, const std::string& what) {
  EBB_TRY_ASSIGN(const std::int64_t all_well, ranks.agree(mine ? 1 : 0));
  if (!mine) return mine;
  if (all_well == 1) return {};
  return Error{Code::peer, "another rank could not " + what + "; its own message says why"};
}

// What must be equal on all ranks, in 62 bits.
std::int64_t identity_of(const Superblock& s) {
  ByteVector bytes;
  formats::append_bytes(bytes, s.store);
  formats::append_le(bytes, s.world);
  formats::append_le(bytes, s.slots);
  formats::append_le(bytes, s.tile_bytes);
  formats::append_le(bytes, s.layout_digest);
  const std::uint64_t low = formats::crc32c(0, bytes);
  const std::uint64_t high = formats::crc32c(1, bytes);
  return static_cast<std::int64_t>((high << 30) ^ low);
}

Result<> same_store(const RankFiles& files, Agreement& ranks) {
  const std::int64_t mine = identity_of(files.superblock());
  EBB_TRY_ASSIGN(const std::int64_t lowest, ranks.agree(mine));
  EBB_TRY_ASSIGN(const std::int64_t highest, ranks.agree(-mine));
  if (lowest == -highest) return {};
  return Error{Code::layout,
               files.data_name() + ": the ranks' folders belong to different stores or layouts"};
}

// The newest generation that every rank holds valid; 0 if there is none.
Result<std::uint64_t> newest_common(const MetaScan& found, Agreement& ranks) {
  std::uint64_t candidate = formats::native::kMaxGeneration;
  for (;;) {
    const RegionFinding* mine = found.newest_valid(candidate);
    EBB_TRY_ASSIGN(const std::int64_t agreed,
                   ranks.agree(mine ? static_cast<std::int64_t>(mine->header.generation) : 0));
    const auto lowest = static_cast<std::uint64_t>(agreed);
    if (lowest == 0 || lowest == candidate) return lowest;
    candidate = lowest;
  }
}

// Nothing is common. Right after create, or after a crash in the very first commit of one rank,
// that is nothing lost; otherwise it says what each rank has.
Result<> nothing_lost(const RankFiles& files, Agreement& ranks) {
  const RegionFinding* newest = files.found().newest_valid(formats::native::kMaxGeneration);
  const bool any = newest != nullptr || files.found().may_have_committed();
  EBB_TRY_ASSIGN(const std::int64_t somebody, agree_largest(ranks, any ? 1 : 0));
  if (somebody == 0) return {};
  std::string what_each_has;
  const Superblock& self = files.superblock();
  for (std::uint32_t rank = 0; rank < self.world; ++rank) {
    const bool me = rank == index_of(self.rank);
    const std::uint64_t mine = me && newest ? newest->header.generation : 0;
    EBB_TRY_ASSIGN(const std::int64_t has, agree_largest(ranks, mine));
    what_each_has += compose("{}{} has {}", rank == 0 ? "" : ", ", (compose("rank {}", rank)),
                             (has == 0 ? "none" : std::to_string(has)));
  }
  return Error{
      Code::incomplete,
      files.data_name() + ": no generation is valid on all ranks: newest " + what_each_has};
}

bool in_the_way(const RegionFinding& finding, std::uint64_t generation) {
  return !finding.header.is_void && finding.header.generation > generation;
}

// A generation newer than the common one was prepared by some ranks only, or it was committed and a
// rank lost it since. Then slots of the common one may have been reused: only its blocks can tell.
Result<> check_if_newer(RankFiles& files, const formats::native::Manifest& common) {
  bool newer = false;
  for (const RegionFinding& finding : files.found().regions)
    newer |= in_the_way(finding, common.generation);
  if (!newer) return {};
  return files.verify(common);
}

Result<> void_newer(RankFiles& files, std::uint64_t generation) {
  for (const RegionFinding& finding : files.found().regions)
    if (in_the_way(finding, generation))
      EBB_TRY(files.void_manifest(finding.region, finding.header));
  return {};
}

fs::path meta_of(const RankFiles& files, std::int64_t rank) {
  const Rank number{static_cast<std::uint32_t>(rank)};
  return fs::path(files.data_name()).parent_path().parent_path() /
         formats::native::rank_directory(number, files.superblock().world) /
         formats::native::kMetaFile;
}

// What the first rank of which something is true tells the others: its number; the world's size
// from those of which it is not.
std::int64_t me(const RankFiles& files) { return index_of(files.superblock().rank); }
std::int64_t nobody(const RankFiles& files) { return files.superblock().world; }

constexpr std::string_view kWhy = " (a snapshot was interrupted, or the file is damaged)";

// What some rank has that is newer than the common generation, or may have.
Result<std::optional<std::string>> newer_than(const RankFiles& files, Agreement& ranks,
                                              std::uint64_t generation) {
  const MetaScan& found = files.found();
  const RegionFinding* newest = nullptr;
  for (const RegionFinding& finding : found.regions)
    if (in_the_way(finding, generation) &&
        (newest == nullptr || finding.header.generation > newest->header.generation))
      newest = &finding;
  EBB_TRY_ASSIGN(const std::int64_t passed,
                 agree_largest(ranks, newest ? newest->header.generation : 0));
  if (passed == 0) {
    EBB_TRY_ASSIGN(const std::int64_t rank,
                   ranks.agree(found.unreadable.empty() ? nobody(files) : me(files)));
    if (rank == nobody(files)) return std::optional<std::string>();
    return std::optional(compose("a manifest that cannot be read was passed over in {}{}",
                                 meta_of(files, rank).string(), kWhy));
  }
  const bool mine = newest && newest->header.generation == static_cast<std::uint64_t>(passed);
  EBB_TRY_ASSIGN(const std::int64_t step, agree_largest(ranks, mine ? newest->header.step : 0));
  EBB_TRY_ASSIGN(const std::int64_t rank,
                 ranks.agree(mine && newest->valid() ? nobody(files) : me(files)));
  return std::optional(
      compose("generation {} (step {}) was passed over: rank {} does not have it whole in {}{}",
              passed, step, rank, meta_of(files, rank).string(), kWhy));
}

}  // namespace

Result<Recovered> recover_generation(RankFiles& files, Agreement& ranks) {
  EBB_TRY(same_store(files, ranks));
  Recovered recovered;
  EBB_TRY_ASSIGN(const std::int64_t newest_seen, agree_largest(ranks, files.found().newest_seen()));
  recovered.next_generation = static_cast<std::uint64_t>(newest_seen) + 1;
  EBB_TRY_ASSIGN(const std::uint64_t generation, newest_common(files.found(), ranks));
  if (generation == 0) {
    EBB_TRY(nothing_lost(files, ranks));
    return recovered;
  }
  EBB_TRY_ASSIGN(recovered.passed_over, newer_than(files, ranks, generation));
  recovered.region = files.found().newest_valid(generation)->region;
  auto manifest = files.read_manifest(recovered.region);
  Result<> usable = manifest ? check_if_newer(files, *manifest) : Result<>(manifest.error());
  EBB_TRY(together(ranks, std::move(usable), compose("read generation {}", generation)));
  EBB_TRY(together(ranks, void_newer(files, generation),
                   compose("put away what is newer than generation {}", generation)));
  recovered.manifest = std::move(*manifest);
  return recovered;
}

}  // namespace ebb::libswap
