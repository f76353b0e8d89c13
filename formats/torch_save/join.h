// The parts that ranks saved of one state dict put together: keys, values, and of each tensor the
// boxes that lie in their files. Internal to formats/torch_save.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "ebb/formats/torch_save/open_file.h"
#include "ebb/formats/torch_save/walk.h"

namespace ebb::formats::torch_save {

// What lies beside files of ranks and says how their tensors make up whole ones.
class SaidOfParts {
 public:
  virtual ~SaidOfParts() = default;
  // What of a whole the plain tensor of a rank's file is; nullopt: all of it. Fails where it is not
  // what is said.
  virtual Result<std::optional<ShardedPart>> part_of(const std::vector<PathItem>& path,
                                                     std::uint32_t rank,
                                                     const TorchTensor& tensor) = 0;
  // The same for a part that says itself what it is.
  virtual Result<> check(const std::vector<PathItem>& path, std::uint32_t rank,
                         const ShardedPart& part) = 0;
  // Whether tensors that are whole in each file may be others in each.
  virtual bool each_has_its_own() const = 0;
};

// What ranks of one family of files hold, one file after the other.
class RankJoin final : public Visitor {
 public:
  explicit RankJoin(FileCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  // What follows comes from this file, which is borrowed until the next one, as what is said of it
  // is; `named`: the rank that its name says.
  void begin(OpenFile& file, const std::string& name, std::uint32_t named, SaidOfParts* said);
  // The rank that its tensors say, else its name's.
  Result<std::uint32_t> end();
  bool found_shards() const { return found_shards_; }
  // All ranks of all meshes since the last call.
  std::set<std::uint32_t> take_ranks();

  Result<> tensor(const std::vector<PathItem>& path, PickleId id) override;
  Result<> value(const std::vector<PathItem>& path, Value value) override;
  Result<> container(const std::vector<PathItem>& path, Value::Kind kind) override;

  // Every element of every tensor is there. What is not whole because meshes do not tell how they
  // belong together is left unread; else the error is about coverage.
  Result<> prove_whole();
  std::vector<UnreadAt> unread() const;  // ascending
  // Of the tensors that are read and made of parts, which stand for those from now on.
  PartsOf take_parts();
  std::vector<std::string> notes() const;

 private:
  using Ranks = std::shared_ptr<const RankList>;
  struct Known {
    std::size_t number = 0;               // in the catalog
    std::string file;                     // where it was first
    Ranks ranks;                          // nullptr: whole in each file
    std::map<Shape, std::uint64_t> tags;  // of its chunks, by offset and extent
    bool of_several_meshes = false;
  };

  Ranks shared(const Ranks& ranks);
  Catalog& catalog() { return checkpoint_.building(); }
  Error conflict(const std::string& key, std::string_view what) const;
  void leave(const Known& known, UnreadForm form);
  Result<> add_plain(TensorEntry entry, TorchTensor tensor);
  Result<> add_part(TensorEntry entry, ShardedPart part);
  Result<> add_shards(const std::string& key, Known& known, ShardedPart& part);
  Result<> add_composite(TensorEntry entry, TorchComposite made);
  Result<> add_piece(const std::string& key, const Known& known, Box box, TorchComposite made);
  bool mixes(const Known& known, bool made_of_parts);
  Result<> check_mesh(const std::string& key, Known& known, const ShardedPart& part);
  Result<> take_rank(const std::string& key, const ShardedPart& part);
  Result<> compare(const std::string& key, Known& known, std::uint64_t tag,
                   const TorchTensor& tensor, bool replicas);
  void note_difference(const std::string& key);

  FileCheckpoint& checkpoint_;
  OpenFile* file_ = nullptr;
  SaidOfParts* said_ = nullptr;  // nullptr: nothing
  std::string name_;
  std::uint32_t named_ = 0;
  std::optional<std::uint32_t> rank_;
  struct ByContent {
    bool operator()(const Ranks& a, const Ranks& b) const { return *a < *b; }
  };
  std::set<Ranks, ByContent> meshes_;
  std::map<const RankList*, Ranks> of_file_;  // its lists, as one of those
  std::unordered_map<std::string, Known> keys_;
  std::unordered_map<std::string, std::size_t> values_;  // places in the catalog
  std::set<std::vector<PathItem>> containers_;
  std::map<std::size_t, UnreadForm> unread_;
  std::map<std::size_t, CompositeJoin> composites_;
  std::vector<std::string> differing_;  // keys
  bool found_shards_ = false;
};

}  // namespace ebb::formats::torch_save
