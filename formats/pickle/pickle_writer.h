// The one writer of Python objects: protocol 2 pickles with only the opcodes that torch's
// weights_only reader knows. A container is opened, filled by a function of the caller's, and
// closed, so that nothing is held but the bytes: an index of a million entries streams.
//   pickle.dict([&] {
//     pickle.entry("step", 3);
//     pickle.list("names", [&] { for (const auto& name : names) pickle.string(name); });
//   });
// torch/file_writer.h adds tensors and Values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats {

class PickleWriter {
 public:
  PickleWriter();

  void none();
  void boolean(std::int64_t value);  // 0 or not
  void integer(std::int64_t value);
  void big_integer(std::string_view decimal);  // REQUIRES: digits, perhaps with a '-' in front
  void real(double value);
  void string(std::string_view text);  // written once, referred to afterwards
  void bytes(ByteView value);
  void global(std::string_view module, std::string_view name);  // written once as well
  void torch_size(const Shape& shape);
  void int_tuple(std::span<const std::uint64_t> values);

  void empty_list() { op(']'); }
  void list(auto fill) {
    op(']');
    op('(');
    fill();
    op('e');
  }
  void tuple(auto fill) {
    op('(');
    const std::size_t empty = out_.size();
    fill();
    if (out_.size() > empty)
      op('t');
    else
      out_.back() = std::byte{')'};
  }
  void empty_dict() { op('}'); }
  void dict(auto fill) {  // of keys and values in turn
    op('}');
    set_items(fill);
  }
  void ordered_dict(auto fill) {
    call("collections", "OrderedDict");
    set_items(fill);
  }

  // Entries of a dict: a whole number, a text, None (nullptr), or what a function writes.
  template <typename T>
  void entry(std::string_view key, const T& value) {
    static_assert(!std::is_same_v<T, bool>);
    string(key);
    if constexpr (std::is_null_pointer_v<T>)
      none();
    else if constexpr (std::is_integral_v<T>)
      integer(static_cast<std::int64_t>(value));
    else if constexpr (std::is_invocable_v<const T&>)
      value();
    else
      string(value);
  }
  void list(std::string_view key, auto fill) {
    string(key);
    list(fill);
  }
  void dict(std::string_view key, auto fill) {
    string(key);
    dict(fill);
  }

  // What a function returns for no argument, for one, for those that `arguments` writes.
  void call(std::string_view module, std::string_view name);
  void call1(std::string_view module, std::string_view name, auto argument) {
    global(module, name);
    argument();
    op('\x85');
    op('R');
  }
  void call(std::string_view module, std::string_view name, auto arguments) {
    global(module, name);
    tuple(arguments);
    op('R');
  }

  // An object of a class, made without arguments; with attributes, which `fill` writes as a dict's
  // entries.
  void object(std::string_view module, std::string_view name);
  void object(std::string_view module, std::string_view name, auto fill) {
    object(module, name);
    build([&] { dict(fill); });
  }
  // Gives the object that was written last the state that `state` writes.
  void build(auto state) {
    state();
    op('b');
  }
  // What `write` writes the first time, referred to by this name afterwards.
  void shared(std::string_view name, auto write) {
    const std::string what = std::string("o").append(name);
    if (refer(what)) return;
    write();
    remember(what);
  }
  // What stands for something outside the pickle, by what `id` writes.
  void persistent(auto id) {
    id();
    op('Q');
  }

  // Ends the stream; call once, last.
  ByteVector finish();

 private:
  void op(char code) { out_.push_back(static_cast<std::byte>(code)); }
  void set_items(auto& fill) {
    op('(');
    fill();
    op('u');
  }
  // True when `what` was already written and a reference to it was emitted instead.
  bool refer(const std::string& what);
  void remember(std::string what);

  ByteVector out_;
  std::unordered_map<std::string, std::uint32_t> memo_;
};

}  // namespace ebb::formats
