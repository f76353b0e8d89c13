// Survey: all ranks' folders of one store looked at from outside, and the generation all of them
// hold. The offline form of recovery: the tools and the swap directory decide by it, without
// writing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/native/meta_scan.h"

namespace ebb::formats::native {

struct RankSurvey {
  std::optional<MetaScan> scan;
  std::optional<Error> problem;  // why there is no scan: missing or damaged beyond reading
  bool missing = false;
};

struct Survey {
  std::string folder;             // in the tree: "" or "store-<uuid>/"
  std::string where;              // for messages
  std::vector<RankSurvey> ranks;  // by number
  SourceTree::Hold hold;          // of all generations, taken before the first look

  // The newest generation valid on all ranks and at most `limit`; 0 if there is none.
  std::uint64_t newest_common(std::uint64_t limit) const;
  std::uint64_t committed() const { return newest_common(kMaxGeneration); }
  // Every rank is there, readable, and of the same store.
  Result<> complete() const;
  // No generation was ever committed: what a crash left of a create or of the first commit.
  bool leftover() const;
  // Of the first rank that can be read. REQUIRES: complete().
  const Superblock& superblock() const { return ranks.front().scan->superblock; }
};

bool is_rank_directory(std::string_view name);

// Holds generations from `generation` on, `count` of them (0: all), in the store in `folder`.
SourceTree::Hold hold_generations(const SourceTree& tree, const std::string& folder,
                                  std::uint32_t world, std::uint64_t generation,
                                  std::uint64_t count);

// The newest generation that every rank has begun to write a manifest of, valid or not; what is
// void does not count. Reads a few bytes of each rank.
Result<std::uint64_t> newest_begun(const SourceTree& tree, const Survey& survey);

// The folders of a tree that hold rank folders: "" for a store itself, else each "store-<uuid>/".
std::vector<std::string> store_folders(const SourceTree& tree);

// Fails on reads that fail and on folders that name several worlds; all else is in the survey.
Result<Survey> survey_store(const SourceTree& tree, const std::string& folder);

// Indices of the surveys that count: with a committed generation, and not the parent of such a one.
std::vector<std::size_t> current_stores(const std::vector<Survey>& surveys);

}  // namespace ebb::formats::native
