#include "ebb/formats/native/survey.h"

#include <algorithm>

#include "ebb/formats/core/number_text.h"
#include "ebb/formats/native/store_files.h"

namespace ebb::formats::native {
namespace {

constexpr std::string_view kRankPrefix = "rank-";
constexpr std::string_view kOf = "-of-";
constexpr std::size_t kDigits = 5;

struct RankName {
  std::uint32_t rank = 0;
  std::uint32_t world = 0;
};

// "rank-00001-of-00004/..." and nothing else.
std::optional<RankName> rank_name_in(std::string_view name) {
  constexpr std::size_t kLength = kRankPrefix.size() + kDigits + kOf.size() + kDigits;
  if (name.size() <= kLength || name[kLength] != '/') return std::nullopt;
  if (!name.starts_with(kRankPrefix)) return std::nullopt;
  if (name.substr(kRankPrefix.size() + kDigits, kOf.size()) != kOf) return std::nullopt;
  const auto rank = parse_number<std::uint32_t>(name.substr(kRankPrefix.size(), kDigits));
  const auto world = parse_number<std::uint32_t>(name.substr(kLength - kDigits, kDigits));
  if (!rank || !world || *world == 0 || *world > kMaxWorld || *rank >= *world) return std::nullopt;
  return RankName{*rank, *world};
}

// Whether any manifest, void ones too, ever began in this file: its superblocks cannot say.
Result<bool> ever_used(const ByteSource& meta) {
  ByteVector head(kManifestHeaderBytes);
  for (std::uint64_t at = kRegionsOffset; at + kBlock <= meta.size(); at += kBlock) {
    EBB_TRY(meta.read(at, head));
    if (decode_manifest_header(head, meta.name(), at)) return true;
  }
  return false;
}

std::string meta_of(const std::string& store, Rank rank, std::uint32_t world) {
  return compose("{}{}/{}", store, rank_directory(rank, world), kMetaFile);
}

Result<RankSurvey> survey_rank(const SourceTree& tree, const std::string& name) {
  RankSurvey survey;
  if (tree.find(name) == nullptr) {
    survey.missing = true;
    survey.problem =
        Error{Code::incomplete, compose("{}/{}: this rank's file is missing", tree.root(), name)};
    return survey;
  }
  EBB_TRY_ASSIGN(const auto meta, tree.open(name));
  auto scan = scan_meta(*meta);
  if (scan) {
    survey.scan = std::move(*scan);
    return survey;
  }
  if (scan.error().code == Code::io) return std::move(scan).error();
  survey.problem = std::move(scan).error();
  EBB_TRY_ASSIGN(const bool used, ever_used(*meta));
  survey.missing = !used;  // create did not get so far
  return survey;
}

}  // namespace

bool is_rank_directory(std::string_view name) {
  return rank_name_in(compose("{}/", name)).has_value();
}

SourceTree::Hold hold_generations(const SourceTree& tree, const std::string& folder,
                                  std::uint32_t world, std::uint64_t generation,
                                  std::uint64_t count) {
  return tree.hold(meta_of(folder, Rank{0}, world), hold_byte(generation), count);
}

Result<std::uint64_t> newest_begun(const SourceTree& tree, const Survey& survey) {
  std::uint64_t common = kMaxGeneration;
  for (const RankSurvey& rank : survey.ranks) {
    const Superblock& s = rank.scan->superblock;
    EBB_TRY_ASSIGN(const auto meta, tree.open(meta_of(survey.folder, s.rank, s.world)));
    EBB_TRY_ASSIGN(const std::uint64_t newest, newest_begun(*meta, s));
    common = std::min(common, newest);
  }
  return common;
}

std::vector<std::string> store_folders(const SourceTree& tree) {
  std::vector<std::string> folders;
  for (const SourceTree::Entry& entry : tree.entries()) {
    std::string folder;
    std::string_view rest = entry.name;
    if (const std::size_t slash = rest.find('/');
        slash != std::string_view::npos && store_in_directory_name(rest.substr(0, slash))) {
      folder = std::string(rest.substr(0, slash + 1));
      rest.remove_prefix(slash + 1);
    }
    if (!rank_name_in(rest)) continue;
    if (std::ranges::find(folders, folder) == folders.end()) folders.push_back(folder);
  }
  return folders;
}

Result<Survey> survey_store(const SourceTree& tree, const std::string& folder) {
  Survey survey;
  survey.folder = folder;
  survey.where = std::string(tree.root());
  if (!folder.empty()) survey.where += "/" + folder.substr(0, folder.size() - 1);
  std::uint32_t world = 0;
  for (const SourceTree::Entry& entry : tree.entries()) {
    if (!entry.name.starts_with(folder)) continue;
    const auto name = rank_name_in(std::string_view(entry.name).substr(folder.size()));
    if (!name) continue;
    if (world != 0 && world != name->world)
      return Error{Code::layout, compose("{}: folders of a world of {} ranks and of one of {}",
                                         survey.where, world, name->world)};
    world = name->world;
  }
  if (world == 0) return Error{Code::incomplete, survey.where + ": no rank's folder is here"};
  survey.hold = hold_generations(tree, folder, world, 0, 0);
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    EBB_TRY_ASSIGN(RankSurvey one, survey_rank(tree, meta_of(folder, Rank{rank}, world)));
    survey.ranks.push_back(std::move(one));
  }
  return survey;
}

std::uint64_t Survey::newest_common(std::uint64_t limit) const {
  std::uint64_t candidate = limit;
  for (std::size_t agreeing = 0; agreeing < ranks.size();) {
    const RankSurvey& rank = ranks[agreeing];
    const RegionFinding* found = rank.scan ? rank.scan->newest_valid(candidate) : nullptr;
    if (found == nullptr) return 0;
    // A smaller one has to suit those that were asked before.
    agreeing = found->header.generation == candidate ? agreeing + 1 : 0;
    candidate = found->header.generation;
  }
  return candidate;
}

Result<> Survey::complete() const {
  for (const RankSurvey& rank : ranks)
    if (rank.problem) return *rank.problem;
  const Superblock& first = superblock();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Superblock& s = ranks[i].scan->superblock;
    if (s.store == first.store && s.world == ranks.size() && index_of(s.rank) == i &&
        s.layout_digest == first.layout_digest)
      continue;
    return Error{
        Code::layout,
        compose(
            "{}: the folder of rank {} holds rank {} of {} of store {}, rank 0 belongs to store {}",
            where, i, index_of(s.rank), s.world, to_string(s.store), to_string(first.store))};
  }
  return {};
}

bool Survey::leftover() const {
  if (committed() != 0) return false;
  bool any_missing = false;
  bool any_manifest = false;
  for (const RankSurvey& rank : ranks) {
    if (rank.problem && !rank.missing) return false;  // damaged: somebody may want to mend it
    any_missing |= rank.missing;
    if (!rank.scan) continue;
    if (rank.scan->may_have_committed()) return false;
    any_manifest |= rank.scan->newest_valid(kMaxGeneration) != nullptr;
  }
  // Generation 1 on some ranks is a first commit cut short; beside a missing rank it may be more.
  return !(any_missing && any_manifest);
}

std::vector<std::size_t> current_stores(const std::vector<Survey>& surveys) {
  const auto committed = [](const Survey& survey) {
    return survey.complete().has_value() && survey.committed() != 0;
  };
  std::vector<std::size_t> current;
  for (std::size_t i = 0; i < surveys.size(); ++i) {
    if (!committed(surveys[i])) continue;
    const Uuid& store = surveys[i].superblock().store;
    const bool superseded = std::ranges::any_of(surveys, [&](const Survey& other) {
      return committed(other) && other.superblock().parent == store;
    });
    if (!superseded) current.push_back(i);
  }
  return current;
}

}  // namespace ebb::formats::native
