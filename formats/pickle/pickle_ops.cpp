// What each opcode of the restricted pickle machine does.
#include <array>
#include <bit>
#include <cstdint>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/pickle/pickle_machine.h"

namespace ebb::formats {

bool PickleMachine::op_proto() {
  std::uint8_t version = 0;
  if (!operand(version, "PROTO")) return false;
  if (opcode_at_ != 0) return fail(Code::corrupt, "a second PROTO opcode");
  if (version < 2 || version > 5)
    return fail(Code::unsupported,
                compose("pickle protocol {}; this version reads 2 to 5", version));
  return true;
}

bool PickleMachine::op_frame() {
  std::uint64_t length = 0;
  if (!operand(length, "FRAME")) return false;
  if (length <= reader_.left()) return true;
  ran_out_ = true;
  return fail(Code::corrupt,
              compose("a frame of {} bytes, but the pickle ends at byte {}: it was cut off", length,
                      graph_.bytes_.size()));
}

bool PickleMachine::op_long1() {
  std::uint8_t length = 0;
  return operand(length, "LONG1") && long_bytes(length);
}
bool PickleMachine::op_long4() {
  std::int32_t length = 0;
  if (!operand(length, "LONG4")) return false;
  if (length < 0) return fail(Code::corrupt, "an integer of negative length");
  return long_bytes(static_cast<std::uint64_t>(length));
}
bool PickleMachine::op_binfloat() {
  std::uint64_t bits = 0;
  if (!operand(bits, "BINFLOAT")) return false;
  return push({.kind = PickleKind::real, .n = __builtin_bswap64(bits)});
}

// Python 2's byte strings: text in practice, and refused when they are not.
bool PickleMachine::op_binstring() {
  std::int32_t length = 0;
  if (!operand(length, "BINSTRING")) return false;
  if (length < 0) return fail(Code::corrupt, "a string of negative length");
  return text_node(PickleKind::string, static_cast<std::uint64_t>(length));
}
inline bool PickleMachine::op_tuple() {
  std::size_t first = 0;
  return take_mark(first) && tuple_from(first);
}

bool PickleMachine::op_frozenset() {
  std::size_t first = 0;
  return take_mark(first) && container_of_top(PickleKind::set, first);
}

// Objects of classes we do not look into may be lists or dicts underneath; they stay closed books.
bool PickleMachine::inert_target(PickleId target) const {
  if (!graph_.is(target, PickleKind::object)) return false;
  const std::string_view name = graph_.class_name(target);
  return is_opaque_class(name) || !is_known_global(name);
}

bool PickleMachine::extend_list(std::span<const PickleId> items) {
  PickleId list = kNoPickle;
  if (!top(list, "APPEND")) return false;
  if (inert_target(list)) return true;
  if (!graph_.is(list, PickleKind::list))
    return fail(Code::corrupt,
                compose("APPEND to a {}, not to a list", name_of(graph_.kind(list))));
  return extend(list, items);
}

bool PickleMachine::extend_dict(std::span<const PickleId> items) {
  PickleId dict = kNoPickle;
  if (!top(dict, "SETITEM")) return false;
  if (items.size() % 2 != 0) return fail(Code::corrupt, "a dict key without its value");
  if (inert_target(dict)) return true;
  if (!graph_.is(dict, PickleKind::dict))
    return fail(Code::corrupt,
                compose("SETITEM on a {}, not on a dict", name_of(graph_.kind(dict))));
  return extend(dict, items);
}

bool PickleMachine::op_append() {
  PickleId item = kNoPickle;
  return pop(item, "APPEND") && extend_list({&item, 1});
}
bool PickleMachine::op_appends() {
  std::span<const PickleId> items;
  return pop_mark(items) && extend_list(items);
}
bool PickleMachine::op_setitem() {
  PickleId value = kNoPickle;
  PickleId key = kNoPickle;
  if (!pop(value, "SETITEM") || !pop(key, "SETITEM")) return false;
  return extend_dict(std::array{key, value});
}
inline bool PickleMachine::op_setitems() {
  std::span<const PickleId> items;
  return pop_mark(items) && extend_dict(items);
}
bool PickleMachine::op_additems() {
  PickleId set = kNoPickle;
  std::span<const PickleId> items;
  if (!pop_mark(items) || !top(set, "ADDITEMS")) return false;
  if (!graph_.is(set, PickleKind::set)) return fail(Code::corrupt, "ADDITEMS on no set");
  return extend(set, items);
}

bool PickleMachine::op_pop() {
  PickleId dropped = kNoPickle;
  return pop(dropped, "POP");
}
bool PickleMachine::op_pop_mark() {
  std::span<const PickleId> dropped;
  return pop_mark(dropped);
}
inline bool PickleMachine::op_mark() {
  if (marks_.size() >= limits_.marks)
    return fail(Code::limit,
                compose("more than {} open containers, which is the limit", limits_.marks));
  floor_ = stack_.size();
  marks_.push(floor_);
  return true;
}
bool PickleMachine::op_global() {
  std::string_view module;
  std::string_view name;
  return line(module) && line(name) && global(module, name);
}
bool PickleMachine::op_stack_global() {
  PickleId name = kNoPickle;
  PickleId module = kNoPickle;
  if (!pop(name, "STACK_GLOBAL") || !pop(module, "STACK_GLOBAL")) return false;
  if (!graph_.is(name, PickleKind::string) || !graph_.is(module, PickleKind::string))
    return fail(Code::corrupt, "STACK_GLOBAL of something that is not two strings");
  return global(graph_.text(module), graph_.text(name));
}

bool PickleMachine::call(PickleId callee, PickleId args) {
  const PickleKind kind = graph_.kind(callee);
  if (kind != PickleKind::global && kind != PickleKind::object)
    return fail(Code::corrupt, compose("a call of a {}", name_of(kind)));
  if (!graph_.is(args, PickleKind::tuple))
    return fail(Code::corrupt, "arguments that are no tuple");
  const Fold how = kind == PickleKind::global ? folds_[graph_.nodes_[callee].a] : Fold::none;
  if (how == Fold::none) return object(callee, args);
  return how == Fold::value ? value_object(callee, args) : fold(how, callee, args);
}

bool PickleMachine::value_object(PickleId callee, PickleId args) {
  PickleId& last = recent(((std::uint64_t{callee} << 32) + args) * kSpread);
  if (last != kNoPickle && graph_.is(last, PickleKind::object) && graph_.callee(last) == callee &&
      graph_.args(last) == args)
    return push_id(last);
  if (!object(callee, args)) return false;
  last = stack_.back();
  return true;
}

bool PickleMachine::is_value(const Node& object) const {
  const Node& callee = graph_.nodes_[object.a];
  return callee.kind == PickleKind::global && folds_[callee.a] == Fold::value;
}

PickleMachine::Fold PickleMachine::fold_of(std::string_view name) {
  if (name == "collections.OrderedDict" || name == "collections.Counter") return Fold::mapping;
  if (name == "collections.defaultdict") return Fold::empty_mapping;
  if (name == "_codecs.encode") return Fold::latin1;
  if (name == "torch.Size" || name == "torch.serialization._get_layout" ||
      name.ends_with("MEM_FORMAT_ENCODING"))
    return Fold::value;
  if (!name.starts_with("builtins.") && !name.starts_with("__builtin__.")) return Fold::none;
  const std::string_view word = name.substr(name.find('.') + 1);
  if (word == "bytes") return Fold::bytes;
  if (word == "bytearray") return Fold::bytearray;
  return word == "set" || word == "frozenset" ? Fold::set : Fold::none;
}

// Containers that protocol 2 spells as calls become what they mean; all else stays inert.
bool PickleMachine::fold(Fold how, PickleId callee, PickleId args) {
  const std::span<const PickleId> given = graph_.items(args);
  const auto first_is = [&](PickleKind kind) {
    return !given.empty() && graph_.is(given[0], kind);
  };
  switch (how) {
    case Fold::none:
    case Fold::value:
      break;
    case Fold::mapping:
      return fold_mapping(given);
    case Fold::empty_mapping:
      return op_empty<PickleKind::dict>();
    case Fold::latin1:
      if (given.size() == 2 && first_is(PickleKind::string))
        return fold_latin1(graph_.text(given[0]));
      break;
    case Fold::bytes:
      if (given.empty()) return own_bytes({});
      break;
    case Fold::bytearray:
      if (given.empty()) return own_bytes({});
      if (first_is(PickleKind::string)) return fold_latin1(graph_.text(given[0]));
      if (first_is(PickleKind::bytes)) return push_id(given[0]);
      break;
    case Fold::set:
      if (given.empty()) return op_empty<PickleKind::set>();
      if (given.size() != 1 || (!first_is(PickleKind::list) && !first_is(PickleKind::tuple))) break;
      if (!copy(graph_.items(given[0]).size())) return false;
      return set_of(given[0]);
  }
  return object(callee, args);
}

bool PickleMachine::set_of(PickleId sequence) {
  const std::span<const PickleId> given = graph_.items(sequence);
  const std::vector<PickleId> items(given.begin(), given.end());  // the pool may move
  return container_of(PickleKind::set, items);
}

bool PickleMachine::fold_mapping(std::span<const PickleId> args) {
  std::vector<PickleId> entries;
  if (!args.empty() && graph_.is(args[0], PickleKind::dict)) {
    const std::span<const PickleId> given = graph_.items(args[0]);
    entries.assign(given.begin(), given.end());
  } else if (!args.empty() && graph_.is(args[0], PickleKind::list)) {
    for (const PickleId pair : graph_.items(args[0])) {
      const PickleKind kind = graph_.kind(pair);
      if ((kind != PickleKind::tuple && kind != PickleKind::list) || graph_.items(pair).size() != 2)
        return fail(Code::corrupt, "an OrderedDict of something that is not pairs");
      entries.push_back(graph_.items(pair)[0]);
      entries.push_back(graph_.items(pair)[1]);
    }
  } else if (!args.empty()) {
    return fail(Code::corrupt, "an OrderedDict of something that is not pairs");
  }
  return copy(entries.size()) && container_of(PickleKind::dict, entries);
}

// Protocol 2 writes bytes as text of the code points 0..255.
bool PickleMachine::fold_latin1(std::string_view text) {
  if (!copy(text.size())) return false;
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      bytes += text[i];
    } else if (lead <= 0xc3 && i + 1 < text.size()) {
      const auto next = static_cast<unsigned char>(text[++i]);
      bytes += static_cast<char>(((lead & 3u) << 6) | (next & 0x3fu));
    } else {
      return fail(Code::corrupt, "bytes are spelled with a character above U+00FF");
    }
  }
  return own_bytes(std::move(bytes));
}

inline bool PickleMachine::op_newobj() {
  PickleId args = kNoPickle;
  PickleId callee = kNoPickle;
  return pop(args, "a class") && pop(callee, "a class") && call(callee, args);
}
bool PickleMachine::op_newobj_ex() {
  PickleId keywords = kNoPickle;
  if (!pop(keywords, "NEWOBJ_EX")) return false;
  if (!graph_.is(keywords, PickleKind::dict))
    return fail(Code::corrupt, "keyword arguments that are no dict");
  return op_newobj();
}
inline bool PickleMachine::op_reduce() {
  PickleId args = kNoPickle;
  PickleId callee = kNoPickle;
  if (!pop(args, "a call") || !pop(callee, "a call")) return false;
  if (graph_.is(callee, PickleKind::global)) graph_.names_[graph_.nodes_[callee].a].called = true;
  return call(callee, args);
}

inline bool PickleMachine::op_build() {
  PickleId state = kNoPickle;
  PickleId target = kNoPickle;
  if (!pop(state, "BUILD") || !top(target, "BUILD")) return false;
  if (graph_.is(target, PickleKind::dict)) return true;  // attributes of an OrderedDict
  if (!graph_.is(target, PickleKind::object))
    return fail(Code::corrupt, compose("BUILD on a {}", name_of(graph_.kind(target))));
  Node& object = graph_.nodes_[target];
  if (is_value(object))
    return fail(Code::corrupt, "BUILD on a " + printable(graph_.class_name(target)));
  auto built = std::bit_cast<Built>(object.n);
  if (built.state != kNoPickle) return fail(Code::corrupt, "BUILD twice on one object");
  built.state = state;
  object.n = std::bit_cast<std::uint64_t>(built);
  return true;
}

inline bool PickleMachine::op_binpersid() {
  PickleId id = kNoPickle;
  return pop(id, "BINPERSID") && push({.kind = PickleKind::persistent, .a = id});
}

// Those that most of an index consists of; the compiler makes one jump of it.
[[gnu::always_inline]] inline bool PickleMachine::run_opcode(std::uint8_t opcode) {
  switch (opcode) {
    case 'h':
      return op_get<std::uint8_t>("BINGET");
    case 'j':
      return op_get<std::uint32_t>("LONG_BINGET");
    case 'q':
      return op_put<std::uint8_t>("BINPUT");
    case 'r':
      return op_put<std::uint32_t>("LONG_BINPUT");
    case 0x94:
      return put(memo_.size());
    case '(':
      return op_mark();
    case 't':
      return op_tuple();
    case 0x85:
      return tuple_of_top(1);
    case 0x86:
      return tuple_of_top(2);
    case 0x87:
      return tuple_of_top(3);
    case 'K':
      return op_integer<std::uint8_t>("BININT1");
    case 'M':
      return op_integer<std::uint16_t>("BININT2");
    case 'J':
      return op_integer<std::int32_t>("BININT");
    case 'X':
      return op_text<std::uint32_t, PickleKind::string>();
    case 'R':
      return op_reduce();
    case 0x81:
      return op_newobj();
    case ')':
      return shared(PickleKind::tuple, 0);
    case 0x89:
      return shared(PickleKind::boolean, 0);
    case '}':
      return op_empty<PickleKind::dict>();
    case 'u':
      return op_setitems();
    case 'b':
      return op_build();
    case 'Q':
      return op_binpersid();
    default:
      return run_rare_opcode(opcode);
  }
}

bool PickleMachine::run_rare_opcode(std::uint8_t opcode) {
  using M = PickleMachine;
  static constexpr auto kTable = [] {
    std::array<Handler, 256> table{};
    table[0x80] = &M::op_proto;
    table[0x95] = &M::op_frame;
    table['N'] = &M::op_shared<PickleKind::none, 0>;
    table[0x88] = &M::op_shared<PickleKind::boolean, 1>;
    table[0x8a] = &M::op_long1;
    table[0x8b] = &M::op_long4;
    table['G'] = &M::op_binfloat;
    table[0x8c] = &M::op_text<std::uint8_t, PickleKind::string>;
    table[0x8d] = &M::op_text<std::uint64_t, PickleKind::string>;
    table['T'] = &M::op_binstring;
    table['U'] = &M::op_text<std::uint8_t, PickleKind::string>;
    table['B'] = &M::op_text<std::uint32_t, PickleKind::bytes>;
    table['C'] = &M::op_text<std::uint8_t, PickleKind::bytes>;
    table[0x8e] = &M::op_text<std::uint64_t, PickleKind::bytes>;
    table[0x96] = &M::op_text<std::uint64_t, PickleKind::bytes>;  // BYTEARRAY8: bytes that Python
                                                                  // would let you change
    table[']'] = &M::op_empty<PickleKind::list>;
    table['a'] = &M::op_append;
    table['e'] = &M::op_appends;
    table['s'] = &M::op_setitem;
    table[0x8f] = &M::op_empty<PickleKind::set>;
    table[0x90] = &M::op_additems;
    table[0x91] = &M::op_frozenset;
    table['0'] = &M::op_pop;
    table['1'] = &M::op_pop_mark;
    table['c'] = &M::op_global;
    table[0x93] = &M::op_stack_global;
    table[0x92] = &M::op_newobj_ex;
    return table;
  }();
  const Handler handler = kTable[opcode];
  return handler == nullptr ? refuse_opcode(opcode) : (this->*handler)();
}

bool PickleMachine::run_opcodes() {
  while (true) {
    opcode_at_ = reader_.position();
    const auto opcode = reader_.number<std::uint8_t>();
    if (!opcode) return cut_off("an opcode");
    if (*opcode == '.') return true;
    if (!run_opcode(*opcode)) return false;
  }
}

}  // namespace ebb::formats
