// One spelling of "file:offset: why", with the place as data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ebb/formats/core/error.h"

namespace ebb::formats {

inline Error refuse(Code code, std::string_view file, std::uint64_t offset, std::string_view why,
                    std::string hint = {}) {
  std::string message(file);
  message += ':';
  message += std::to_string(offset);
  message += ": ";
  message += why;
  return Error{
      code, std::move(message), std::move(hint), {.file = std::string(file), .offset = offset}};
}

}  // namespace ebb::formats
