// Files of ranks as one checkpoint in the making: one family of them after the other, whichever
// format's they are. Internal to formats that are made of such files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/torch_save/join.h"
#include "ebb/formats/torch_save/rank_files.h"

namespace ebb::formats::torch_save {

// Ranks whose files are not there.
struct MissingRanks {
  std::set<std::uint32_t> ranks;
  std::vector<std::string> files;  // the first of them
  std::size_t count = 0;           // of files

  void add(const RankFamily& family, const std::set<std::uint32_t>& wanted,
           const std::map<std::uint32_t, std::string>& there);
  std::string sentence() const;
};

class RankDescriber {
 public:
  // `format`: what the catalog calls it.
  RankDescriber(const std::shared_ptr<const SourceTree>& tree, std::string format);

  // `above`: where what it holds lies in the catalog. `said` is borrowed for the call.
  Result<> add(const RankFamily& family, const std::vector<PathItem>& above,
               SaidOfParts* said = nullptr);
  // A file that holds no tensors.
  Result<> add_file(const std::string& name);
  // A tensor that should be in the files and is in none of those that are there.
  void miss(std::string key) { missed_.push_back(std::move(key)); }
  void note(std::string note) { notes_.push_back(std::move(note)); }

  // That a family's first file lists all there is in the order of the model, as a job's own does.
  void take_order() { in_order_ = true; }

  const Catalog& catalog() const { return checkpoint_->catalog(); }
  bool found_shards() const { return join_.found_shards(); }
  std::uint32_t world() const { return world_; }  // the highest rank there should be, and one

  // Call once, last. Code::incomplete where ranks are missing, unless others have all they had.
  Result<std::unique_ptr<Checkpoint>> finish();

 private:
  Catalog& building() { return checkpoint_->building(); }
  Result<> pay(const PickleGraph& graph);
  Result<> prove_whole();
  Result<> check_whole();
  std::string_view cut() const;
  void add_notes();

  const SourceTree& tree_;
  std::unique_ptr<FileCheckpoint> checkpoint_;
  StateWalk walk_;
  RankJoin join_;
  UnknownNames unknown_;
  MissingRanks missing_;
  std::vector<std::string> missed_;
  std::vector<std::string> renamed_;
  std::vector<std::string> notes_;
  std::uint32_t world_ = 1;
  bool in_order_ = false;
  std::uint64_t unfolded_ = 0;  // PickleGraph::unfolded() of all files
};

}  // namespace ebb::formats::torch_save
