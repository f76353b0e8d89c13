// The machine behind PickleGraph::parse. Internal to formats/torch.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/torch/pickle.h"

namespace formats {

// A stack that grows out of line: a push is a few instructions wherever it is inlined.
template <typename T>
class PickleStack {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  const T& back() const { return items_[size_ - 1]; }  // REQUIRES: !empty()
  std::span<const T> from(std::size_t first) const {   // REQUIRES: first <= size()
    return std::span(items_).subspan(first, size_ - first);
  }
  void push(T item) {
    if (size_ == items_.size()) grow();
    items_[size_++] = item;
  }
  void cut(std::size_t size) { size_ = size; }  // REQUIRES: size <= size()

 private:
  [[gnu::noinline]] void grow() { items_.resize(std::max<std::size_t>(256, 2 * items_.size())); }

  std::vector<T> items_;
  std::size_t size_ = 0;
};

class PickleMachine {
 public:
  PickleMachine(PickleGraph& graph, PickleLimits limits)
      : graph_(graph), limits_(limits), reader_(graph.bytes_) {
    shared_.fill(kNoPickle);
  }

  Result<> run();        // the whole of the bytes
  Result<> run_front();  // up to the first STOP
  std::uint64_t position() const { return reader_.position(); }
  bool ran_out() const { return ran_out_; }

 private:
  using Node = PickleGraph::Node;
  using Room = PickleGraph::Room;
  using Built = PickleGraph::Built;
  // Containers that old protocols spell as calls.
  enum class Fold : std::uint8_t { none, mapping, empty_mapping, latin1, bytes, bytearray, set };
  static Fold fold_of(std::string_view name);
  // Handlers return false after fail(); run() then returns the stored error.
  using Handler = bool (PickleMachine::*)();

  bool fail(Code code, std::string_view why);
  bool cut_off(std::string_view what);
  void make_room();
  bool run_opcodes();  // up to STOP
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
  template <typename Length>
  bool counted(PickleKind kind);
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
  bool pop_mark();                     // what lies above the newest mark goes to marked_
  bool take_mark(std::size_t& first);  // where on the stack the newest mark lies
  bool too_many_nodes();
  bool nothing_there(std::string_view what);
  bool never_set(std::uint64_t index);

  // Building nodes.
  bool integer(std::int64_t value);
  bool long_bytes(std::uint64_t length);
  bool shared(PickleKind kind, std::uint8_t value);
  bool tuple_of_top(std::size_t count);
  bool container_of_top(PickleKind kind, std::size_t first);
  bool too_many_items();
  bool container_of(PickleKind kind, std::span<const PickleId> items);
  bool empty_container(PickleKind kind) { return container_of(kind, {}); }
  bool extend(PickleId container, std::span<const PickleId> items);
  bool own_bytes(std::string bytes);
  bool global(std::string_view module, std::string_view name);
  bool object(PickleId callee, PickleId args);
  bool extend_list(std::span<const PickleId> items);
  bool extend_dict(std::span<const PickleId> items);
  bool inert_target(PickleId target) const;
  bool copy(std::uint64_t count);
  bool call(PickleId callee, PickleId args);
  bool fold(Fold how, PickleId callee, PickleId args);
  bool fold_mapping(std::span<const PickleId> args);
  bool fold_latin1(std::string_view text);

  // One handler per opcode.
  bool op_proto();
  bool op_frame();
  bool op_none();
  bool op_true();
  bool op_false();
  bool op_binint();
  bool op_binint1();
  bool op_binint2();
  bool op_long1();
  bool op_long4();
  bool op_binfloat();
  bool op_binunicode();
  bool op_short_binunicode();
  bool op_binunicode8();
  bool op_binstring();
  bool op_short_binstring();
  bool op_binbytes();
  bool op_short_binbytes();
  bool op_binbytes8();
  bool op_empty_tuple();
  bool op_tuple1();
  bool op_tuple2();
  bool op_tuple3();
  bool op_tuple();
  bool op_empty_list();
  bool op_append();
  bool op_appends();
  bool op_empty_dict();
  bool op_setitem();
  bool op_setitems();
  bool op_empty_set();
  bool op_additems();
  bool op_frozenset();
  bool op_mark();
  bool op_pop();
  bool op_pop_mark();
  bool op_binput();
  bool op_long_binput();
  bool op_memoize();
  bool op_binget();
  bool op_long_binget();
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
  std::vector<PickleId> marked_;
  std::vector<PickleId> memo_;
  // None, the empty tuple, False and True, and the integers of one byte: each is one node, however
  // often it is used.
  std::array<PickleId, 4 + 256> shared_;
  std::unordered_map<std::string, std::uint32_t> names_;
  std::vector<Fold> folds_;   // of PickleGraph::names_
  std::uint64_t copied_ = 0;  // ids and bytes that calls made again out of what was there
  std::optional<Error> failure_;
  bool ran_out_ = false;  // failed because the bytes end too early
};

}  // namespace formats
