// The machine behind PickleGraph::parse. Internal to formats/torch.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ebb/formats/pickle/pickle.h"

namespace ebb::formats {

// A stack that grows out of line: a push is a few instructions wherever it is inlined.
template <typename T>
class PickleStack {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  const T& back() const { return items_[size_ - 1]; }  // REQUIRES: !empty()
  std::span<const T> from(std::size_t first) const {   // REQUIRES: first <= size()
    return {items_.get() + first, size_ - first};
  }
  void push(T item) {
    if (size_ == room_) grow();
    items_[size_++] = item;
  }
  void cut(std::size_t size) { size_ = size; }  // REQUIRES: size <= size()

 private:
  [[gnu::noinline]] void grow() {
    room_ = std::max<std::size_t>(256, 2 * room_);
    auto items = std::make_unique_for_overwrite<T[]>(room_);
    std::copy_n(items_.get(), size_, items.get());
    items_ = std::move(items);
  }

  std::unique_ptr<T[]> items_;
  std::size_t size_ = 0;
  std::size_t room_ = 0;
};

class PickleMachine {
 public:
  PickleMachine(PickleGraph& graph, PickleLimits limits)
      : graph_(graph), limits_(limits), reader_(graph.bytes_) {
    shared_.fill(kNoPickle);
    recent_.fill(kNoPickle);
  }

  Result<> run();        // the whole of the bytes
  Result<> run_front();  // up to the first STOP
  std::uint64_t position() const { return reader_.position(); }
  bool ran_out() const { return ran_out_; }

 private:
  static constexpr std::uint64_t most_items = std::numeric_limits<std::uint32_t>::max();
  using Node = PickleGraph::Node;
  using Room = PickleGraph::Room;
  using Built = PickleGraph::Built;
  // Calls that are containers, as old protocols spell them, or values that nothing can change.
  enum class Fold : std::uint8_t {
    none,
    mapping,
    empty_mapping,
    latin1,
    bytes,
    bytearray,
    set,
    value
  };
  static Fold fold_of(std::string_view name);
  // Handlers return false after fail(); run() then returns the stored error.
  using Handler = bool (PickleMachine::*)();

  bool fail(Code code, std::string_view why);
  bool cut_off(std::string_view what);
  void make_room();
  bool run_opcodes();  // up to STOP
  bool run_opcode(std::uint8_t opcode);
  bool run_rare_opcode(std::uint8_t opcode);
  bool refuse_opcode(std::uint8_t opcode);

  // Reading operands.
  template <typename T>
  bool operand(T& into, std::string_view what) {
    const std::optional<T> value = reader_.number<T>();
    if (!value) return cut_off(what);
    into = *value;
    return true;
  }
  bool line(std::string_view& into);
  bool text_node(PickleKind kind, std::uint64_t length);

  // The stack, its marks and the memo.
  bool push(Node node);
  bool push_id(PickleId id) {
    // Each push costs at least one byte of input, so the stack is bounded by the stream's length.
    stack_.push(id);
    return true;
  }
  bool top(PickleId& into, std::string_view what) {
    if (stack_.size() <= floor_) return nothing_there(what);
    into = stack_.back();
    return true;
  }
  bool pop(PickleId& into, std::string_view what) {
    if (!top(into, what)) return false;
    stack_.cut(stack_.size() - 1);
    return true;
  }
  bool get(std::uint64_t index) {
    if (index >= memo_.size() || memo_[index] == kNoPickle) return never_set(index);
    return push_id(memo_[index]);
  }
  bool put(std::uint64_t index);
  bool take_mark(std::size_t& first);  // where on the stack the newest mark lies
  // What lay above the newest mark; there until the next push.
  bool pop_mark(std::span<const PickleId>& items);
  bool too_many_nodes();
  bool nothing_there(std::string_view what);
  bool memo_gap(std::uint64_t index);
  bool memo_full();
  bool no_mark();
  bool few_values(std::size_t count);
  bool never_set(std::uint64_t index);

  // Building nodes.
  bool integer(std::int64_t value);
  bool long_bytes(std::uint64_t length);
  bool shared(PickleKind kind, std::uint8_t value);
  PickleId& recent(std::uint64_t hash) { return recent_[hash >> (64 - kRecentBits)]; }
  bool remember(PickleId& place, Node node);
  bool tuple_from(std::size_t first);
  bool tuple_of_top(std::size_t count);
  bool container_of_top(PickleKind kind, std::size_t first);
  bool too_many_items();
  bool container_of(PickleKind kind, std::span<const PickleId> items);
  bool extend(PickleId container, std::span<const PickleId> items);
  bool own_bytes(std::string bytes);
  bool global(std::string_view module, std::string_view name);
  bool object(PickleId callee, PickleId args);
  bool value_object(PickleId callee, PickleId args);
  bool is_value(const Node& object) const;
  bool extend_list(std::span<const PickleId> items);
  bool extend_dict(std::span<const PickleId> items);
  bool inert_target(PickleId target) const;
  bool copy(std::uint64_t count);
  bool call(PickleId callee, PickleId args);
  bool fold(Fold how, PickleId callee, PickleId args);
  bool fold_mapping(std::span<const PickleId> args);
  bool set_of(PickleId sequence);
  bool fold_latin1(std::string_view text);

  // One handler for each opcode, or for those that differ in the width of their operand.
  template <PickleKind kind, std::uint8_t value>
  bool op_shared() {
    return shared(kind, value);
  }
  template <PickleKind kind>
  bool op_empty() {
    return container_of(kind, {});
  }
  template <typename Length, PickleKind kind>
  bool op_text() {
    Length length = 0;
    return operand(length, "a length") && text_node(kind, length);
  }
  template <typename T>
  bool op_integer(std::string_view name) {
    T value = 0;
    return operand(value, name) && integer(value);
  }
  template <typename T>
  bool op_put(std::string_view name) {
    T index = 0;
    return operand(index, name) && put(index);
  }
  template <typename T>
  bool op_get(std::string_view name) {
    T index = 0;
    return operand(index, name) && get(index);
  }
  bool op_proto();
  bool op_frame();
  bool op_long1();
  bool op_long4();
  bool op_binfloat();
  bool op_binstring();
  bool op_tuple();
  bool op_append();
  bool op_appends();
  bool op_setitem();
  bool op_setitems();
  bool op_additems();
  bool op_frozenset();
  bool op_mark();
  bool op_pop();
  bool op_pop_mark();
  bool op_global();
  bool op_stack_global();
  bool op_newobj();
  bool op_newobj_ex();
  bool op_reduce();
  bool op_build();
  bool op_binpersid();

  PickleGraph& graph_;
  PickleLimits limits_;
  ByteReader reader_;
  std::uint64_t opcode_at_ = 0;
  PickleStack<PickleId> stack_;
  PickleStack<std::size_t> marks_;
  std::size_t floor_ = 0;  // the newest mark; nothing below it can be taken
  std::vector<PickleId> memo_;
  // None, the empty tuple, False and True, and the integers of one byte: each is one node, however
  // often it is used.
  std::array<PickleId, 4 + 256> shared_;
  // Of other tuples, whole numbers and Fold::value, the last one of each hash: an index says the
  // same few shapes again and again, and memory that was never touched costs more than to compare.
  static constexpr int kRecentBits = 9;
  static constexpr std::uint64_t kSpread = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
  std::array<PickleId, std::size_t{1} << kRecentBits> recent_;
  std::unordered_map<std::string, std::uint32_t> names_;
  std::vector<Fold> folds_;   // of PickleGraph::names_
  std::uint64_t copied_ = 0;  // ids and bytes that calls made again out of what was there
  std::optional<Error> failure_;
  bool ran_out_ = false;  // failed because the bytes end too early
};

// Here, because an index of a million chunks has tens of millions of opcodes: each is a few
// instructions wherever these are inlined.
inline bool PickleMachine::push(Node node) {
  if (graph_.nodes_.size() >= limits_.nodes) return too_many_nodes();
  graph_.nodes_.push_back(node);
  return push_id(static_cast<PickleId>(graph_.nodes_.size() - 1));
}

inline bool PickleMachine::take_mark(std::size_t& first) {
  if (marks_.empty()) return no_mark();
  first = floor_;
  marks_.cut(marks_.size() - 1);
  floor_ = marks_.empty() ? 0 : marks_.back();
  return true;
}

inline bool PickleMachine::pop_mark(std::span<const PickleId>& items) {
  std::size_t first = 0;
  if (!take_mark(first)) return false;
  items = stack_.from(first);
  stack_.cut(first);
  return true;
}

inline bool PickleMachine::put(std::uint64_t index) {
  PickleId value = kNoPickle;
  if (!top(value, "a memo store")) return false;
  if (index > memo_.size() + 1) return memo_gap(index);  // Python 2 began to count at 1
  if (index >= limits_.memo) return memo_full();
  while (index >= memo_.size()) memo_.push_back(kNoPickle);
  memo_[index] = value;
  return true;
}

inline bool PickleMachine::shared(PickleKind kind, std::uint8_t value) {
  const std::size_t place = kind == PickleKind::none      ? 0
                            : kind == PickleKind::tuple   ? 1
                            : kind == PickleKind::boolean ? 2 + std::size_t{value}
                                                          : 4 + std::size_t{value};
  if (shared_[place] != kNoPickle) return push_id(shared_[place]);
  if (!push({.kind = kind, .n = value})) return false;
  shared_[place] = stack_.back();
  return true;
}

inline bool PickleMachine::integer(std::int64_t value) {
  if (value >= 0 && value < 256)
    return shared(PickleKind::integer, static_cast<std::uint8_t>(value));
  const auto bits = std::bit_cast<std::uint64_t>(value);
  PickleId& last = recent(bits * kSpread);
  if (last != kNoPickle && graph_.is(last, PickleKind::integer) && graph_.nodes_[last].n == bits)
    return push_id(last);
  return remember(last, {.kind = PickleKind::integer, .n = bits});
}

inline bool PickleMachine::remember(PickleId& place, Node node) {
  if (!push(node)) return false;
  place = stack_.back();
  return true;
}

// What lies on the stack from `first` on becomes the items of a container.
inline bool PickleMachine::container_of_top(PickleKind kind, std::size_t first) {
  const std::span<const PickleId> items = stack_.from(first);
  const std::size_t at = graph_.pool_.size();
  if (at + items.size() > most_items) return too_many_items();
  for (const PickleId item : items) graph_.pool_.push_back(item);  // mostly one to five
  const auto count = static_cast<std::uint32_t>(items.size());
  stack_.cut(first);
  return push({.kind = kind,
               .a = count,
               .n = std::bit_cast<std::uint64_t>(Room{static_cast<std::uint32_t>(at), count})});
}

inline bool PickleMachine::tuple_from(std::size_t first) {
  const std::span<const PickleId> items = stack_.from(first);
  if (items.empty()) return shared(PickleKind::tuple, 0);
  std::uint64_t hash = items.size();
  for (const PickleId item : items) hash = (hash + item) * kSpread;
  PickleId& last = recent(hash);
  if (last != kNoPickle && graph_.is(last, PickleKind::tuple) &&
      std::ranges::equal(graph_.items(last), items)) {
    stack_.cut(first);
    return push_id(last);
  }
  if (!container_of_top(PickleKind::tuple, first)) return false;
  last = stack_.back();
  return true;
}

inline bool PickleMachine::tuple_of_top(std::size_t count) {
  if (stack_.size() - floor_ < count) return few_values(count);
  return tuple_from(stack_.size() - count);
}

}  // namespace ebb::formats
