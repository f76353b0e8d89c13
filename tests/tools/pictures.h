// The pages that the tools draw.
#pragma once

#include <string>

#include "tests/support/program.h"

namespace ebb {

// The block of JSON in a page; nothing where there is none.
inline std::string data_of_picture(const std::string& file) {
  const std::string page = test_support::text_of_file(file);
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const std::size_t at = page.find(begin);
  if (at == std::string::npos) return {};
  const std::size_t from = at + begin.size();
  return page.substr(from, page.find("</script>", from) - from);
}

inline std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

}  // namespace ebb
