#include "examples/gpt/files.h"

namespace ebb::gpt {

namespace fs = std::filesystem;

Result<std::string> read_text(libswap::IoQueue& io, const fs::path& path, std::uint64_t most) {
  EBB_TRY_ASSIGN(const libswap::FileId file, io.backend().open(path, {}));
  auto content = [&]() -> Result<std::string> {
    EBB_TRY_ASSIGN(const libswap::FileInfo info, io.backend().info(file));
    if (info.size > most)
      return Error{Code::limit,
                   compose("{}: {} bytes, the limit is {}", path.string(), info.size, most)};
    std::string text(static_cast<std::size_t>(info.size), '\0');
    EBB_TRY(io.read(file, 0, std::as_writable_bytes(std::span(text))));
    return text;
  }();
  EBB_TRY(io.backend().close(file));
  return content;
}

}  // namespace ebb::gpt
