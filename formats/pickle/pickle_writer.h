// Writes protocol 2 pickles with only the opcodes that torch's weights_only reader knows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
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

  void empty_tuple() { op(')'); }
  void empty_list() { op(']'); }
  void empty_dict() { op('}'); }
  void mark() { op('('); }
  void tuple() { op('t'); }      // of everything since mark()
  void tuple1() { op('\x85'); }  // of the last value
  void appends() { op('e'); }    // list, mark, values
  void setitems() { op('u'); }   // dict, mark, key, value, ...
  void reduce() { op('R'); }     // callable, tuple
  void newobj() { op('\x81'); }  // class, tuple
  void build() { op('b'); }      // object, state
  void persistent() { op('Q'); }

  void torch_size(const Shape& shape);
  void int_tuple(std::span<const std::uint64_t> values);

  // Ends the stream; call once, last.
  ByteVector finish();

 private:
  void op(char code) { out_.push_back(static_cast<std::byte>(code)); }
  // True when `what` was already written and a reference to it was emitted instead.
  bool refer(const std::string& what);
  void remember(std::string what);

  ByteVector out_;
  std::unordered_map<std::string, std::uint32_t> memo_;
};

}  // namespace ebb::formats
