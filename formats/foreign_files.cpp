#include "ebb/formats/foreign_files.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace ebb::formats {
namespace {

constexpr std::uint64_t kFirstBytes = 64;
constexpr std::size_t kMostFiles = 4096;  // looked at
constexpr std::string_view kEndings[] = {".safetensors", ".bin", ".pt",   ".pth",  ".ckpt",
                                         ".distcp",      ".h5",  ".hdf5", ".json", ".metadata"};

bool is_of_a_checkpoint(std::string_view name) {
  return std::ranges::any_of(kEndings,
                             [&](std::string_view ending) { return name.ends_with(ending); });
}

std::string head_of(const SourceTree& tree, const SourceTree::Entry& entry) {
  const auto source = tree.open(entry.name);
  if (!source) return {};
  const std::uint64_t count = std::min(entry.size, kFirstBytes);
  const auto bytes = read_bytes(**source, 0, count, count);
  return bytes ? std::string(text_of(*bytes)) : std::string();
}

bool is_page(std::string head) {
  head.erase(0, std::min(head.find_first_not_of(" \t\r\n"), head.size()));
  std::ranges::transform(head, head.begin(), [](unsigned char c) { return std::tolower(c); });
  return head.starts_with("<!doctype html") || head.starts_with("<html") ||
         head.starts_with("<?xml");
}

}  // namespace

std::optional<Error> foreign_file_in(const SourceTree& tree) {
  std::size_t looked_at = 0;
  for (const SourceTree::Entry& entry : tree.entries()) {
    if (tree.entries().size() > 1 && !is_of_a_checkpoint(entry.name)) continue;
    if (++looked_at > kMostFiles) break;
    const std::string head = head_of(tree, entry);
    const std::string root(tree.root());
    const std::string path = root.ends_with(entry.name) ? root : root + "/" + entry.name;
    if (head.starts_with("version https://git-lfs.github.com/spec/"))
      return Error{Code::incomplete,
                   path + " is a git-lfs pointer: the file that it stands for was not fetched",
                   "git lfs pull"};
    if (is_page(head))
      return Error{Code::corrupt,
                   path +
                       " is a web page (HTML or XML): what a download answered with, not a file "
                       "of a checkpoint",
                   "download it again; a page is what comes where one has to log in first"};
  }
  return std::nullopt;
}

}  // namespace ebb::formats
