// ebb-synthetic: writes a checkpoint of zeros with any number of tensors, for ./dev bench inspect.
#include <charconv>
#include <cstdio>
#include <string_view>
#include <vector>

#include "tests/support/synthetic.h"

namespace ebb {

namespace {

bool read_count(std::string_view text, std::uint64_t& into) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), into);
  return error == std::errc{} && end == text.data() + text.size() && into != 0;
}

}  // namespace

int program_main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv, argv + argc);
  test_support::Synthetic wanted;
  std::uint64_t world = 0;
  if (words.size() < 6 || !read_count(words[2], wanted.params) || !read_count(words[3], world) ||
      !read_count(words[4], wanted.rows) || (words.size() == 7 && words[6] != "holes") ||
      words.size() > 7) {
    std::fprintf(stderr, "usage: ebb-synthetic FORMAT PARAMETERS RANKS ROWS DIRECTORY [holes]\n");
    return 2;
  }
  wanted.format = words[1];
  wanted.world = static_cast<std::uint32_t>(world);
  if (words.size() == 7) wanted.payload = test_support::Payload::holes;
  const auto made = test_support::make_synthetic(wanted, std::string(words[5]));
  if (made) return 0;
  std::fprintf(stderr, "ebb-synthetic: %s\n", made.error().message.c_str());
  return 1;
}

}  // namespace ebb

int main(int argc, char** argv) { return ebb::program_main(argc, argv); }
