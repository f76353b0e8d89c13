#include "ebb/formats/pickle/pickle_writer.h"

#include <bit>
#include <limits>
#include <vector>

namespace ebb::formats {
namespace {

// Two's complement, little-endian, of decimal digits.
std::vector<std::uint8_t> twos_complement(std::string_view decimal) {
  const bool negative = decimal.starts_with('-');
  if (negative) decimal.remove_prefix(1);
  std::vector<std::uint8_t> bytes;
  for (const char digit : decimal) {
    auto carry = static_cast<unsigned>(digit - '0');
    for (std::uint8_t& byte : bytes) {
      carry += byte * 10u;
      byte = static_cast<std::uint8_t>(carry & 0xffu);
      carry >>= 8;
    }
    if (carry != 0) bytes.push_back(static_cast<std::uint8_t>(carry));
  }
  bytes.push_back(0);
  if (!negative) return bytes;
  unsigned carry = 1;
  for (std::uint8_t& byte : bytes) {
    carry += byte ^ 0xffu;
    byte = static_cast<std::uint8_t>(carry & 0xffu);
    carry >>= 8;
  }
  return bytes;
}

}  // namespace

PickleWriter::PickleWriter() {
  op('\x80');
  op(2);
}

void PickleWriter::none() { op('N'); }

void PickleWriter::boolean(std::int64_t value) { op(value != 0 ? '\x88' : '\x89'); }

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value < 256) {
    op('K');
    append_le(out_, static_cast<std::uint8_t>(value));
  } else if (value >= 0 && value < 65536) {
    op('M');
    append_le(out_, static_cast<std::uint16_t>(value));
  } else if (value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max()) {
    op('J');
    append_le(out_, static_cast<std::int32_t>(value));
  } else {
    op('\x8a');
    op(8);
    append_le(out_, value);
  }
}

void PickleWriter::big_integer(std::string_view decimal) {
  const std::vector<std::uint8_t> bytes = twos_complement(decimal);
  if (bytes.size() < 256) {
    op('\x8a');
    append_le(out_, static_cast<std::uint8_t>(bytes.size()));
  } else {
    op('\x8b');
    append_le(out_, static_cast<std::int32_t>(bytes.size()));
  }
  for (const std::uint8_t byte : bytes) append_le(out_, byte);
}

void PickleWriter::real(double value) {
  op('G');
  append_le(out_, __builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
}

bool PickleWriter::refer(const std::string& what) {
  const auto found = memo_.find(what);
  if (found == memo_.end()) return false;
  if (found->second < 256) {
    op('h');
    append_le(out_, static_cast<std::uint8_t>(found->second));
  } else {
    op('j');
    append_le(out_, found->second);
  }
  return true;
}

void PickleWriter::remember(std::string what) {
  const auto index = static_cast<std::uint32_t>(memo_.size());
  memo_.emplace(std::move(what), index);
  if (index < 256) {
    op('q');
    append_le(out_, static_cast<std::uint8_t>(index));
  } else {
    op('r');
    append_le(out_, index);
  }
}

void PickleWriter::string(std::string_view text) {
  std::string key(1, 's');
  key += text;
  if (refer(key)) return;
  op('X');
  append_le(out_, static_cast<std::uint32_t>(text.size()));
  append_text(out_, text);
  remember(std::move(key));
}

// Protocol 2 has no bytes: Python spells them as text of the code points 0..255.
void PickleWriter::bytes(ByteView value) {
  std::string text;
  for (const std::byte byte : value) {
    const auto code = std::to_integer<unsigned>(byte);
    if (code >= 0x80) text += static_cast<char>(0xc0u | (code >> 6));
    text += static_cast<char>(code >= 0x80 ? (0x80u | (code & 0x3fu)) : code);
  }
  call("_codecs", "encode", [&] {
    string(text);
    string("latin1");
  });
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  std::string key(1, 'c');
  ((key += module) += '\n');
  ((key += name) += '\n');
  if (refer(key)) return;
  append_text(out_, key);
  remember(std::move(key));
}

void PickleWriter::int_tuple(std::span<const std::uint64_t> values) {
  tuple([&] {
    for (const std::uint64_t value : values) integer(static_cast<std::int64_t>(value));
  });
}

void PickleWriter::torch_size(const Shape& shape) {
  call1("torch", "Size", [&] { int_tuple(shape); });
}

void PickleWriter::call(std::string_view module, std::string_view name) {
  global(module, name);
  op(')');
  op('R');
}

void PickleWriter::object(std::string_view module, std::string_view name) {
  global(module, name);
  op(')');
  op('\x81');
}

ByteVector PickleWriter::finish() {
  op('.');
  return std::move(out_);
}

}  // namespace ebb::formats
