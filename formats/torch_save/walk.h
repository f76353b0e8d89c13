// What torch.save has pickled, item by item: dicts and sequences are entered, tensors and values
// are handed out with the path that leads to them. Internal to formats/torch_save.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/pickle/pickle.h"

namespace ebb::formats::torch_save {

class Visitor {
 public:
  virtual ~Visitor() = default;
  virtual Result<> tensor(const std::vector<PathItem>& path, PickleId id) = 0;
  virtual Result<> value(const std::vector<PathItem>& path, Value value) = 0;
  // Whose kind the paths below it do not tell.
  virtual Result<> container(const std::vector<PathItem>& path, Value::Kind kind) = 0;
};

// Over one file after the other; notes are of all of them.
class StateWalk {
 public:
  // `above`: where the root lies. Errors name the file and the key.
  Result<> run(const PickleGraph& graph, std::string where, std::vector<PathItem> above,
               Visitor& visitor);
  // About what was walked over; `catalog` has its values.
  void add_notes(Catalog& catalog) const;

 private:
  Error bad(Code code, std::string_view why) const;
  Result<> walk(PickleId id);
  bool holds_more(PickleId id) const;
  Result<> walk_dict(PickleId id);
  Result<PathItem> item_of(PickleId key);
  Result<> walk_sequence(PickleId id);
  Result<> enter(PathItem item, PickleId id);
  Result<> hand_out(PickleId id);

  const PickleGraph* graph_ = nullptr;  // being read
  std::string where_;
  Visitor* visitor_ = nullptr;
  std::vector<PathItem> path_;
  std::uint64_t path_bytes_ = 0;
  std::uint64_t leaves_ = 0;
  std::string first_odd_key_;
  std::size_t odd_key_count_ = 0;
};

}  // namespace ebb::formats::torch_save
