// ebb-make-checkpoint DIRECTORY FORMAT BYTES RANKS: writes a synthetic checkpoint, for benchmarks.
#include <charconv>
#include <cstdio>
#include <string>

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/write/write_checkpoint.h"
#include "tests/bench/synthetic_checkpoint.h"

namespace ebb {

namespace {

Result<> make(const std::string& directory, const std::string& format, std::uint64_t bytes,
              std::uint32_t ranks) {
  const formats::Format* to = formats::format_named(format);
  if (to == nullptr) return Error{Code::usage, "no format is called " + format};
  const bench::SyntheticCheckpoint source(bytes);
  EBB_TRY_ASSIGN(const auto conversion,
                 formats::plan_conversion(source, {.from = formats::format_of(source.catalog()),
                                                   .to = *to,
                                                   .world = ranks,
                                                   .policy = to->traits().default_policy}));
  EBB_TRY_ASSIGN(auto backend, libswap::open_backend(libswap::BackendChoice::automatic));
  EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(backend.backend), {}));
  EBB_TRY_ASSIGN(const auto report,
                 libswap::write_checkpoint(*io, *conversion.content, conversion.plan, directory,
                                           {.derived = libswap::Derivation::assumed,
                                            .priority = libswap::Priority::step}));
  std::printf("%s: %.2f GB in %.1f s\n", directory.c_str(), static_cast<double>(report.bytes) / 1e9,
              report.seconds);
  return {};
}

}  // namespace

int program_main(int argc, char** argv) {
  std::uint64_t bytes = 0;
  std::uint32_t ranks = 0;
  const auto number = [](std::string_view text, auto& into) {
    return std::from_chars(text.data(), text.data() + text.size(), into).ec == std::errc();
  };
  if (argc != 5 || !number(argv[3], bytes) || !number(argv[4], ranks)) {
    std::fputs("usage: ebb-make-checkpoint DIRECTORY FORMAT BYTES RANKS\n", stderr);
    return 2;
  }
  if (const auto made = make(argv[1], argv[2], bytes, ranks); !made) {
    std::fprintf(stderr, "ebb-make-checkpoint: %s\n", made.error().message.c_str());
    return 1;
  }
  return 0;
}

}  // namespace ebb

int main(int argc, char** argv) { return ebb::program_main(argc, argv); }
