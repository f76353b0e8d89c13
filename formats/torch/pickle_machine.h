// The machine behind PickleGraph::parse. Internal to formats/torch.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/torch/pickle.h"

namespace formats {

class PickleMachine {
 public:
  PickleMachine(PickleGraph& graph, PickleLimits limits)
      : graph_(graph), limits_(limits), reader_(graph.bytes_) {}

  Result<> run();        // the whole of the bytes
  Result<> run_front();  // up to the first STOP
  std::uint64_t position() const { return reader_.position(); }
  bool ran_out() const { return ran_out_; }

 private:
  using Node = PickleGraph::Node;
  // Handlers return false after fail(); run() then returns the stored error.
  using Handler = bool (PickleMachine::*)();
  static const Handler* handlers();  // 256 of them; nullptr: refused

  bool fail(Code code, std::string_view why);
  bool cut_off(std::string_view what);
  bool step(std::uint8_t opcode);

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
  bool push_id(PickleId id);
  bool pop(PickleId& into, std::string_view what);
  bool top(PickleId& into, std::string_view what);
  bool pop_mark(std::vector<PickleId>& into);
  bool put(std::uint64_t index);
  bool get(std::uint64_t index);

  // Building nodes.
  bool integer(std::int64_t value);
  bool long_bytes(std::uint64_t length);
  bool tuple_of(const std::vector<PickleId>& items);
  bool tuple_of_top(std::size_t count);
  bool empty_box(PickleKind kind);
  bool box_of(PickleKind kind, std::vector<PickleId> items);
  bool own_bytes(std::string bytes);
  bool global(std::string_view module, std::string_view name);
  bool extend_list(const std::vector<PickleId>& items);
  bool extend_dict(const std::vector<PickleId>& items);
  bool inert_target(PickleId target) const;
  bool call(PickleId callee, PickleId args);
  bool fold(std::string_view name, PickleId callee, PickleId args);
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
  std::vector<PickleId> stack_;
  std::vector<std::size_t> marks_;
  std::vector<PickleId> memo_;
  std::unordered_map<std::string, std::uint32_t> names_;
  std::optional<Error> failure_;
  bool ran_out_ = false;  // failed because the bytes end too early
};

}  // namespace formats
