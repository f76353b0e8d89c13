// A restricted pickle machine: turns a protocol 2-5 stream into an inert graph. It never imports,
// never calls, never resolves a name; what Python would execute becomes an `object` node that only
// remembers the name and the arguments. Iterative, bounded by PickleLimits, cycles are
// representable. Source of the opcode set: CPython's pickletools; what real producers emit:
// docs/formats/torch.md.
#pragma once

#include <bit>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {

using PickleId = std::uint32_t;  // index of a node; stable for the life of its graph
constexpr PickleId kNoPickle = 0xffffffffu;

enum class PickleKind : std::uint8_t {
  none,
  boolean,
  integer,
  big_integer,
  real,
  string,
  bytes,
  tuple,
  list,
  dict,
  set,
  global,
  object,
  persistent,
};
std::string_view name_of(PickleKind kind);

// A key that is looked up in many dicts, objects' attributes above all: writers give it one node,
// which is remembered and then compared by its number.
struct PickleName {
  std::string_view text;
  PickleId last = kNoPickle;
};

// Values in a stream that was compressed: what was written as a few bytes may hold millions.
constexpr std::uint64_t kMaxCompressedNodes = 1u << 21;

struct PickleLimits {
  std::uint64_t nodes = 1u << 28;    // values built
  std::uint64_t memo = 1u << 28;     // memo entries
  std::uint64_t marks = 1u << 20;    // containers open at once
  std::uint64_t big_integer = 1024;  // bytes of one integer
  std::uint64_t unfold = 64 * MiB;   // bytes of charge() above 32 for each byte of the stream
};

// The nodes of one stream. Owns the stream's bytes; texts are views into them.
class PickleGraph {
 public:
  // Reads exactly one pickle, which must fill `bytes` to the end. `where` names it in messages.
  static Result<PickleGraph> parse(ByteVector bytes, std::string where, PickleLimits limits = {});

  // Reads the pickle that `bytes` begin with; `end` says where it ended, or, when it failed,
  // whether that was for want of bytes.
  struct End {
    std::uint64_t at = 0;
    bool ran_out = false;
  };
  static Result<PickleGraph> parse_front(ByteVector bytes, std::string where, End& end,
                                         PickleLimits limits = {});

  PickleId root() const { return root_; }
  const std::string& where() const { return where_; }
  PickleId size() const { return static_cast<PickleId>(nodes_.size()); }  // ids are below this
  PickleKind kind(PickleId id) const { return nodes_[id].kind; }
  bool is(PickleId id, PickleKind kind) const { return nodes_[id].kind == kind; }

  std::int64_t integer(PickleId id) const;  // boolean, integer
  double real(PickleId id) const;           // real
  // string, bytes, big_integer (its two's complement, little-endian), global ("module.name").
  std::string_view text(PickleId id) const;
  // Where in the stream a string, bytes or a global (its first use) stands; nullopt for the others.
  std::optional<std::uint64_t> offset(PickleId id) const;
  // tuple, list, set: the elements; dict: key, value, key, value...; persistent: its one id.
  std::span<const PickleId> items(PickleId id) const;
  // object: what would have been called, with what, and what BUILD gave it (kNoPickle: nothing).
  PickleId callee(PickleId id) const;
  PickleId args(PickleId id) const;
  PickleId state(PickleId id) const;

  // True for an object whose callee is the global "module.name".
  bool is_object_of(PickleId id, std::string_view name) const;
  // The callee's name, "" when the callee is not a global.
  std::string_view class_name(PickleId id) const;
  // A dict's value under a key, kNoPickle when absent or when `dict` is none. Linear.
  PickleId find(PickleId dict, std::string_view key) const;
  PickleId find(PickleId dict, std::int64_t key) const;
  PickleId find(PickleId dict, PickleName& key) const;

  // Pays for `bytes` that a reader makes out of the graph. A stream can refer to one node any
  // number of times, so that a small file unfolds without end: all readers of one graph pay from
  // one budget (PickleLimits::unfold), and Code::limit says that it is empty. Not for two threads
  // at once.
  Result<> charge(std::uint64_t bytes) const;
  std::uint64_t unfolded() const;  // how much of PickleLimits::unfold was spent

  // Every name the stream refers to, in order of appearance, with the offset of its first use.
  struct Name {
    std::string name;
    std::uint64_t offset = 0;
    bool called = false;  // as a function; making an instance of a class does not count
  };
  const std::vector<Name>& names() const { return names_; }

 private:
  friend class PickleMachine;
  enum class Text : std::uint8_t { in_stream, owned };
  // 16 bytes, because an index of a million chunks has tens of millions of them. a and n mean:
  // number: n = bits; text: a = length, n = offset, or n = index in owned_;
  // tuple, list, dict, set: a = count, n = Room in pool_; global: a = index in names_;
  // object: a = callee, n = Built; persistent: a = its id.
  struct Node {
    PickleKind kind = PickleKind::none;
    Text text = Text::in_stream;
    std::uint32_t a = 0;
    std::uint64_t n = 0;
  };
  struct Room {  // pool_[first, first + capacity)
    std::uint32_t first = 0, capacity = 0;
  };
  struct Built {
    PickleId args = kNoPickle, state = kNoPickle;
  };

  PickleGraph() = default;
  std::uint64_t allowance() const;
  const Node& node(PickleId id, PickleKind kind) const {
    EBB_CHECK(nodes_[id].kind == kind);
    return nodes_[id];
  }

  std::string where_;
  ByteVector bytes_;
  std::vector<Node> nodes_;
  std::vector<PickleId> pool_;
  std::deque<std::string> owned_;
  std::vector<Name> names_;
  PickleId root_ = kNoPickle;
  std::uint64_t unfold_ = 0;
  mutable std::uint64_t charged_ = 0;
};

// Here, because readers of large indexes ask for millions of nodes.
inline std::int64_t PickleGraph::integer(PickleId id) const {
  const Node& at = nodes_[id];
  EBB_CHECK(at.kind == PickleKind::integer || at.kind == PickleKind::boolean);
  return std::bit_cast<std::int64_t>(at.n);
}

inline std::string_view PickleGraph::text(PickleId id) const {
  const Node& at = nodes_[id];
  if (at.kind == PickleKind::global) return names_[at.a].name;
  EBB_CHECK(at.kind == PickleKind::string || at.kind == PickleKind::bytes ||
            at.kind == PickleKind::big_integer);
  if (at.text == Text::owned) return owned_[at.n];
  return text_of(ByteView(bytes_).subspan(at.n, at.a));
}

inline std::span<const PickleId> PickleGraph::items(PickleId id) const {
  const Node& at = nodes_[id];
  if (at.kind == PickleKind::persistent) return {&at.a, 1};
  EBB_CHECK(at.kind == PickleKind::tuple || at.kind == PickleKind::list ||
            at.kind == PickleKind::dict || at.kind == PickleKind::set);
  return std::span(pool_).subspan(std::bit_cast<Room>(at.n).first, at.a);
}

inline PickleId PickleGraph::callee(PickleId id) const { return node(id, PickleKind::object).a; }
inline PickleId PickleGraph::args(PickleId id) const {
  return std::bit_cast<Built>(node(id, PickleKind::object).n).args;
}
inline PickleId PickleGraph::state(PickleId id) const {
  return std::bit_cast<Built>(node(id, PickleKind::object).n).state;
}

inline std::string_view PickleGraph::class_name(PickleId id) const {
  const PickleId what = callee(id);
  return is(what, PickleKind::global) ? text(what) : std::string_view{};
}

inline bool PickleGraph::is_object_of(PickleId id, std::string_view name) const {
  return is(id, PickleKind::object) && class_name(id) == name;
}

// True for the names our readers know the meaning of; everything else stays an inert object.
bool is_known_global(std::string_view name);

// True for the plain data classes among them that checkpoints keep values in (argparse.Namespace,
// io.BytesIO, Megatron's enums): arguments and attributes are all there is to them, so a value of
// one can be written back as it was found. Nothing that does more when constructed belongs here.
bool is_data_class(std::string_view name);

// For indexes, where an unknown name means that the file wants something called: refuses it by
// name.
Result<> require_known_globals(const PickleGraph& graph);

}  // namespace ebb::formats
