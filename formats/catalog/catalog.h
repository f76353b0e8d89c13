// Catalog: a checkpoint as a value - which tensors and values it holds and where every shard lies.
// Every format's describe() produces one; coverage proofs, inspection and conversion read nothing
// else.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/path_item.h"
#include "ebb/formats/catalog/value.h"
#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/core/dtype.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats {

// One stored piece of a tensor. `offset` and `length` are the encoded bytes inside the file.
struct Chunk {
  Box box;
  std::uint32_t file = 0;  // index into Catalog::files
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  Rank holder{};          // the rank that wrote it
  std::uint64_t tag = 0;  // the format's own: which payload decoding applies
};

// A tensor of a class of its own, as torchao's quantized ones: a framework stores plain tensors in
// its stead, its parts, and those are what a catalog lists (composite.h).
struct Composite {
  std::string type;  // "torchao.optim.subclass_8bit.OptimState8bit"
  DType dtype = DType::f32;
  Shape shape;                                          // both of what it stands for
  std::vector<std::pair<std::string, Value>> settings;  // what else it keeps: block_size, signed
  std::size_t parts = 0;                                // how many it is made of
};
struct PartOf {
  std::shared_ptr<const Composite> whole;
  std::string part;  // what the class calls it: "codes"
};

struct TensorEntry {
  std::optional<std::string> key;  // the format's own key, if it has one
  std::vector<PathItem> path;      // nested position, if the format records one
  std::string name;                // the parameter it belongs to
  std::string state;               // "param", "master", "momentum_buffer", ...: data, never an enum
  DType dtype = DType::f32;
  Shape shape;
  std::vector<Chunk> chunks;
  // What the format stores, where elements are made of it by more than a copy; `dtype` is of these.
  std::optional<DType> stored = {};
  std::shared_ptr<const PartOf> part_of = {};  // nullptr: it is a whole
};

// How messages call the tensor: its key, else "name (state)"; safe to print.
std::string label_of(const TensorEntry& tensor);

struct ValueEntry {
  std::string key;
  std::vector<PathItem> path;
  Value value;
  bool echoed =
      false;  // groups, step or param_steps say the same: other formats take it from there
};

// A place of the nesting whose kind the paths below it do not tell: a dict with whole numbers for
// keys (a list otherwise), a dict of nothing, a tuple.
struct ContainerEntry {
  std::vector<PathItem> path;
  Value::Kind kind = Value::Kind::dict;
};

struct GroupEntry {       // one optimizer parameter group
  std::string optimizer;  // "muon", "adamw", "" when the format does not say
  std::vector<std::pair<std::string, Value>> settings;
  std::vector<std::string> params;  // names
};

struct FileEntry {
  std::string name;
  std::uint64_t size = 0;
  std::optional<Rank> rank;
};

// A tensor that is stored in a form this version does not read: a DTensor's local part, a quantized
// state. It is named as what it is, is no damage, and hides nothing beside it.
struct UnreadEntry {
  std::string key;
  std::vector<PathItem> path;
  std::string name;   // as in TensorEntry, as far as the key tells
  std::string state;  // likewise
  std::string what;   // for people: "a DTensor: one rank's part of a tensor"
  std::string hint;   // what to do about it; may be empty
};
// What would be read, for whoever chooses by key, name and state.
TensorEntry as_tensor(const UnreadEntry& unread);

// What lies in the checkpoint's folder and is no part of what was read.
struct BesideEntry {
  enum class Role : std::uint8_t {
    states,      // of an optimizer
    weights,     // of a model
    checkpoint,  // a folder that is one itself
    job,         // what a job keeps of its own: random numbers, a scheduler, its arguments
    harmless,    // known, and no part of what is trained: a tokenizer, a configuration, a log
    unknown,
  };
  std::string path;           // below the root; that of a folder ends with '/'
  std::string what;           // for people: "a torch.save file with optimizer state"
  bool holds_states = false;  // of an optimizer
  Role role = Role::unknown;
  std::uint64_t count = 1;  // of entries whose names differ in numbers alone; `path` is the first
};

// What was read is one part of a save that several files or folders hold together, one per rank,
// as a rank of tensor parallelism has a part of each matrix: no model by itself.
struct PartOfSave {
  std::uint32_t parts = 0;  // how many there are; 0: not known
  std::string why;          // how that is known: "mp_rank_01 lies beside it"
};

// How parameters that the source only numbers came by their names.
enum class NamedBy : std::uint8_t { recorded, shapes, order };

// Where a torch state dict keeps a part: in keys that begin with `prefix`, below `path`.
struct StateDictPlace {
  std::vector<PathItem> path;
  std::string prefix;  // ends with a dot, or ""
};
struct StateDictOptimizer {
  enum class Keys : std::uint8_t { nested, flattened };
  StateDictPlace at;
  Keys keys = Keys::nested;         // of what lies below "state" and "param_groups"
  std::vector<std::string> params;  // names of those that are its own
  NamedBy named = NamedBy::recorded;
};
// Whether the order of a model's tensors is that of its parameters, where the format alone does not
// tell.
enum class ListOrder : std::uint8_t { unknown, of_the_model };

// Whether groups list their parameters as their one optimizer numbers them, from 0 on.
enum class GroupOrder : std::uint8_t { unknown, of_the_optimizer };

struct StateDictParts {
  std::vector<StateDictPlace> models;
  std::vector<StateDictOptimizer> optimizers;
  std::vector<PathItem> step;        // where the step is counted; empty: nowhere
  std::vector<std::string> unclear;  // among the notes
  // Settings of groups that are tensors where the state dict is written, by name.
  std::map<std::string, DType> tensor_settings;
};

struct Catalog {
  std::string format;    // "dcp", "safetensors", "ebb", "deepspeed", ...
  std::string producer;  // "torch 2.9 or newer", "DeepSpeed 0.19.8", ... as far as the bytes tell
  std::optional<std::int64_t> step;
  std::uint32_t world = 1;  // ranks that wrote it
  std::string partition;    // one line for people: "zero3 over 2 ranks", "rows over 3 ranks"
  std::uint64_t padding_elems = 0;
  std::vector<FileEntry> files;
  std::vector<TensorEntry> tensors;  // in the format's own order
  ListOrder listed = ListOrder::unknown;
  std::vector<ValueEntry> values;
  std::vector<ContainerEntry> containers;
  std::vector<GroupEntry> groups;
  GroupOrder grouped = GroupOrder::unknown;
  std::vector<UnreadEntry> unread;
  std::vector<BesideEntry> beside;
  std::optional<PartOfSave> part_of;  // nullopt: as far as is known, it is all of a save
  // Optimizer steps each parameter has taken, where the format counts them outside its tensors.
  std::map<std::string, std::int64_t> param_steps;
  StateDictParts parts;            // what was recognised, where the format is a torch state dict
  std::vector<std::string> notes;  // what a reader should know, one line each
};

// A described checkpoint: its catalog and access to the decoded elements. Thread-safe after
// describe.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  virtual const Catalog& catalog() const = 0;
  // Fills `into` with decoded, row-major, little-endian bytes of the chunk, from its byte `first`
  // on; a read past its end is Code::usage. Verifies whatever checksum the format has over what it
  // reads; errors name file, offset, tensor.
  Result<> read(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                std::span<std::byte> into) const;

 private:
  // REQUIRES: the bytes lie in the chunk, and there is at least one.
  virtual Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                              std::span<std::byte> into) const = 0;
};

// Every element of every tensor is stored exactly once: holes, overlaps and boxes outside the
// tensor are named by tensor and rows. O(chunks log chunks) per tensor, never quadratic.
Result<> prove_coverage(const TensorEntry& tensor, const Catalog& catalog);
Result<> prove_coverage(const Catalog& catalog);

}  // namespace ebb::formats

namespace ebb {
using formats::Catalog;
using formats::Checkpoint;
using formats::Chunk;
using formats::GroupEntry;
using formats::TensorEntry;
using formats::ValueEntry;
}  // namespace ebb
