#include "ebb/formats/hdf5/file_set.h"

#include <algorithm>
#include <array>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/hdf5/naming.h"

namespace ebb::formats::hdf5 {
namespace {

constexpr std::size_t kMaxFiles = 100'000;
constexpr std::size_t kMaxJumps = 64;  // soft links on the way to one object

Error refused(const File& file, Code code, const std::string& why, std::string hint = {}) {
  return {code, compose("{}: {}", file.shown(), why), std::move(hint)};
}

// Follows soft links; what they lead to is named by its hard path.
class SoftLinks {
 public:
  explicit SoftLinks(const File& file) : file_(file) {
    for (const Link& link : file.description.links)
      if (link.kind == Link::Kind::soft) targets_.emplace(link.path, link.target);
  }

  Result<std::string> resolve(const std::string& from) const {
    std::vector<std::string> seen;
    std::vector<std::string> rest = parts_of(from);
    std::string path;
    for (std::size_t next = 0; next < rest.size();) {
      const std::string part = rest[next++];
      if (part == ".") continue;
      path += "/" + part;
      const auto link = targets_.find(path);
      if (link == targets_.end()) continue;
      if (const auto again = std::find(seen.begin(), seen.end(), path); again != seen.end())
        return loop({again, seen.end()});
      seen.push_back(path);
      if (seen.size() > kMaxJumps) return loop(seen);
      std::vector<std::string> parts = parts_of(link->second);
      if (!link->second.starts_with('/')) {
        const std::vector<std::string> folder = parts_of(path.substr(0, path.rfind('/')));
        parts.insert(parts.begin(), folder.begin(), folder.end());
      }
      parts.insert(parts.end(), rest.begin() + static_cast<std::ptrdiff_t>(next), rest.end());
      rest = std::move(parts);
      path.clear();
      next = 0;
    }
    return path;
  }

 private:
  Error loop(std::vector<std::string> links) const {
    std::rotate(links.begin(), std::min_element(links.begin(), links.end()), links.end());
    std::string chain;
    for (const std::string& link : links) chain += printable(link) + " -> ";
    return refused(file_, Code::corrupt,
                   "soft links form a loop: " + chain + printable(links.front()));
  }

  const File& file_;
  std::map<std::string, std::string> targets_;
};

bool is_inside(std::string_view path, std::string_view group) {
  return group == "/" || (path.starts_with(group) && path.substr(group.size()).starts_with('/'));
}

Result<> settle_link(const Link& link, const SoftLinks& soft, File& file) {
  const std::string path = printable(link.path);
  switch (link.kind) {
    case Link::Kind::external:
      return refused(file, Code::unsupported,
                     path + " is an external link to another file: " + printable(link.file));
    case Link::Kind::other:
      return refused(file, Code::unsupported, path + " is a link of a kind of somebody's own");
    case Link::Kind::group_again:
      if (is_inside(link.path, link.target))
        return refused(file, Code::corrupt,
                       compose("hard links form a cycle: {} is {}", path, printable(link.target)));
      file.notes.push_back(
          compose("{} is the group {}: listed there", path, printable(link.target)));
      return {};
    case Link::Kind::soft:
      break;
  }
  EBB_TRY_ASSIGN(const std::string target, soft.resolve(link.path));
  if (const auto found = file.datasets.find(target); found != file.datasets.end()) {
    file.listed.emplace_back(link.path, found->second);
    return {};
  }
  const auto& groups = file.description.groups;
  if (std::ranges::find(groups, target, &Group::path) == groups.end())
    return refused(file, Code::incomplete,
                   compose("soft link {} leads to {}, where nothing is", path, printable(target)));
  file.notes.push_back(
      compose("{} is a soft link to the group {}: listed there", path, printable(target)));
  return {};
}

Result<> settle_names(File& file) {
  for (std::size_t i = 0; i < file.description.datasets.size(); ++i) {
    const std::string& path = file.description.datasets[i].path;
    if (!path.starts_with('/') || !file.datasets.emplace(path, i).second)
      return refused(file, Code::corrupt, "two datasets are called " + printable(path));
    file.listed.emplace_back(path, i);
  }
  const SoftLinks soft(file);
  for (const Link& link : file.description.links) EBB_TRY(settle_link(link, soft, file));
  return {};
}

// "%%" stands for '%' in a stored file name; other uses of '%' number a series of files.
std::optional<std::string> unescaped(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '%' && name.substr(i + 1, 1) != "%") return std::nullopt;
    if (name[i] == '%') ++i;
    out += name[i];
  }
  return out;
}

}  // namespace

bool looks_like_hdf5(std::string_view name) {
  constexpr std::array<std::string_view, 3> kEndings = {".h5", ".hdf5", ".hdf"};
  return std::ranges::any_of(kEndings,
                             [&](std::string_view ending) { return name.ends_with(ending); });
}

Result<FileSet> FileSet::open(std::shared_ptr<const SourceTree> tree) {
  FileSet set;
  const bool alone = tree->entries().size() == 1;
  set.single_ = alone && tree->root().ends_with(tree->entries().front().name);
  for (const SourceTree::Entry& entry : tree->entries()) {
    if (!alone && !looks_like_hdf5(entry.name)) continue;
    if (set.files_.size() == kMaxFiles)
      return Error{Code::limit, compose("{}: more than {} HDF5 files", tree->root(), kMaxFiles)};
    EBB_TRY(set.add(*tree, entry.name));
  }
  EBB_TRY(set.find_sources());
  return set;
}

Result<> FileSet::add(const SourceTree& tree, const std::string& name) {
  File file{.name = name};
  EBB_TRY_ASSIGN(file.source, tree.open(name));
  EBB_TRY_ASSIGN(file.superblock, read_superblock(*file.source));
  const FromByte visible(file.source, file.superblock.at);
  EBB_TRY_ASSIGN(const ByteVector report, tree.probe(kReaderProgram, visible));
  auto description = decode(report);
  if (!description) return std::move(description).error().within(file.shown());
  file.description = std::move(*description);
  EBB_TRY(settle_names(file));
  files_.push_back(std::move(file));
  return {};
}

Result<> FileSet::find_sources() {
  for (std::size_t i = 0; i < files_.size(); ++i)
    for (const Dataset& dataset : files_[i].description.datasets)
      for (const Mapping& mapping : dataset.mappings) {
        if (mapping.source.kind == Selection::Kind::none) continue;
        EBB_TRY_ASSIGN(const Source source, source_of(i, dataset, mapping));
        sources_.emplace(source.file, source.dataset->path);
      }
  return {};
}

Result<FileSet::Source> FileSet::source_of(std::size_t from, const Dataset& dataset,
                                           const Mapping& mapping) const {
  const File& file = files_[from];
  const auto bad = [&](Code code, const std::string& why, std::string hint = {}) {
    return refused(file, code,
                   compose("{}: virtual dataset's source file {} {}", printable(dataset.path),
                           printable(mapping.file), why),
                   std::move(hint));
  };
  const std::optional<std::string> plain = unescaped(mapping.file);
  const std::optional<std::string> path = unescaped(mapping.dataset);
  if (!plain || !path)
    return bad(Code::unsupported, "is a numbered series, which is not read by this version");
  const std::string name = *plain == "." ? file.name : beside(file.name, *plain);
  if (name.empty()) return bad(Code::unsupported, "lies outside the checkpoint");
  const auto found = std::ranges::find(files_, name, &File::name);
  if (found == files_.end())
    return bad(Code::incomplete,
               single_ ? "was not opened (the library alone would read NaN)"
                       : "does not exist (the library alone would read NaN)",
               single_ ? "name the folder that holds all files" : "");
  const std::string absolute = (path->starts_with('/') ? "" : "/") + *path;
  const auto number = found->datasets.find(absolute);
  if (number == found->datasets.end())
    return bad(Code::incomplete, "has no dataset " + printable(absolute));
  return Source{static_cast<std::size_t>(found - files_.begin()),
                &found->description.datasets[number->second]};
}

}  // namespace ebb::formats::hdf5
