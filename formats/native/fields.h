// Fields of the store's files, numbers and identifiers one behind the other, little-endian and
// without gaps: one list of them serves writing and reading. Internal to formats/native.
#pragma once

#include <tuple>

#include "ebb/formats/core/bytes.h"

namespace ebb::formats::native {

template <typename... Fields>
void append_fields(ByteVector& out, const std::tuple<Fields...>& fields) {
  std::apply([&](const auto&... field) { (append_le(out, field), ...); }, fields);
}

// False where too few bytes are left; the fields before are read then.
template <typename... Fields>
bool take_fields(ByteReader& in, const std::tuple<Fields&...>& fields) {
  const auto take = [&]<typename Field>(Field& field) {
    const auto taken = in.number<Field>();
    if (taken) field = *taken;
    return taken.has_value();
  };
  return std::apply([&](auto&... field) { return (take(field) && ...); }, fields);
}

}  // namespace ebb::formats::native
