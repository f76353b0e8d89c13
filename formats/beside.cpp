#include "ebb/formats/beside.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "ebb/formats/catalog/known_files.h"
#include "ebb/formats/conversion/glob.h"
#include "ebb/formats/core/folder_tree.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/registry.h"

namespace ebb::formats {
namespace {

using Role = BesideEntry::Role;

constexpr std::size_t kMostNamed = 1000;     // different names; the others are counted
constexpr std::size_t kMostLooks = 64;       // files of which the first bytes are read
constexpr std::size_t kLooksInFolder = 8;    // of those, in one folder
constexpr std::size_t kMostFolders = 64;     // folders that are looked at
constexpr std::size_t kMostInFolder = 4096;  // their entries
constexpr std::uint64_t kHead = 256 * KiB;   // the first bytes: a pickle or a header lies there

bool head_speaks_of_states(const SourceTree& tree, const std::string& name) {
  constexpr std::string_view kWords[] = {"param_groups", "exp_avg", "momentum_buffer"};
  const auto source = tree.open(name);
  if (!source) return false;
  const std::uint64_t count = std::min((*source)->size(), kHead);
  const auto head = read_bytes(**source, 0, count, kHead);
  return head && std::ranges::any_of(kWords, [&](std::string_view word) {
           return text_of(*head).find(word) != std::string_view::npos;
         });
}

// What files of tensors are called, and how people call them.
std::string_view kind_of_file(std::string_view name) {
  struct Kind {
    std::string_view ending;
    std::string_view what;
  };
  constexpr Kind kKinds[] = {{".safetensors", "a safetensors file"},
                             {".distcp", "a payload that the index does not name"},
                             {".metadata", "an index of torch.distributed.checkpoint"},
                             {".h5", "an HDF5 file"},
                             {".hdf5", "an HDF5 file"},
                             {".pt", "a torch.save file"},
                             {".pth", "a torch.save file"},
                             {".bin", "a torch.save file"},
                             {".ckpt", "a torch.save file"},
                             {".pkl", "a pickle"}};
  for (const auto& [ending, what] : kKinds)
    if (name.ends_with(ending)) return what;
  return {};
}

bool is_a_programs_own(std::string_view folder) {
  constexpr std::string_view kFolders[] = {".cache/", ".git/", "__pycache__/", "wandb/"};
  return std::ranges::find(kFolders, folder) != std::end(kFolders);
}

class Beside {
 public:
  Beside(const std::shared_ptr<const SourceTree>& tree, const Catalog& read)
      : tree_(tree), read_(read) {
    for (const auto& [name, size, rank] : read.files) {
      files_.insert(name);
      for (std::size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1))
        folders_.insert(name.substr(0, at + 1));
    }
  }

  std::vector<BesideEntry> run() {
    for (const SourceTree::Entry& entry : tree_->entries())
      if (!files_.contains(entry.name) && !belongs(entry.name)) add(entry);
    for (BesideEntry& entry : entries_) look_at(entry);
    if (left_out_ > 0)
      entries_.push_back({.path = "...", .what = "more names, not looked at", .count = left_out_});
    return std::move(entries_);
  }

 private:
  // What loaders use of this checkpoint; another one beside it has its own.
  bool belongs(const std::string& name) const {
    const std::size_t slash = name.find('/');
    const bool other = slash != std::string::npos && !folders_.contains(name.substr(0, slash + 1));
    return !other && is_loaders_own(read_, name);
  }

  // What is not read below a folder of which something is read is named there; another folder as
  // one thing.
  void add(const SourceTree::Entry& there) {
    std::string_view name = there.name;
    std::size_t end = name.find('/');
    while (end != std::string_view::npos && folders_.contains(name.substr(0, end + 1)))
      end = name.find('/', end + 1);
    if (end != std::string_view::npos) name = name.substr(0, end + 1);
    if (!entries_.empty() && name.ends_with('/') && name == last_) return;
    last_ = name;
    const auto [known, fresh] = alike_.emplace(without_numbers(name), entries_.size());
    if (!fresh) {
      BesideEntry& entry = entries_[known->second];
      ++entry.count;
      if (there.size > 0) empty_.erase(entry.path);
    } else if (entries_.size() < kMostNamed) {
      entries_.emplace_back().path = name;
      if (there.size == 0) empty_.insert(entries_.back().path);
    } else {
      alike_.erase(known);
      ++left_out_;
    }
  }

  void look_at(BesideEntry& entry) {
    if (entry.path.ends_with('/')) return look_at_folder(entry);
    if (const auto known = known_file(entry.path)) {
      entry.role = known->role;
      entry.what = known->what;
      entry.holds_states = known->role == Role::states;
      return;
    }
    if (empty_.contains(entry.path)) {
      entry.role = Role::harmless;
      entry.what = "empty";
      return;
    }
    entry.what = kind_of_file(entry.path);
    if (entry.what.empty()) return;
    if (looks_++ >= kMostLooks || !head_speaks_of_states(*tree_, entry.path)) return;
    entry.role = Role::states;
    entry.what += " with an optimizer's states";
    entry.holds_states = true;
  }

  void look_at_folder(BesideEntry& entry) {
    if (is_a_programs_own(entry.path)) {
      entry.role = Role::harmless;
      entry.what = "a program's own";
      return;
    }
    if (folders_looked_at_++ >= kMostFolders) return;
    const auto folder = folder_of(tree_, entry.path.substr(0, entry.path.size() - 1));
    const auto& inside = folder->entries();
    std::set<Role> roles;
    for (std::size_t i = 0; i < std::min(inside.size(), kMostInFolder); ++i) {
      const auto known = known_file(entry.path + inside[i].name);
      roles.insert(known                             ? known->role
                   : is_pointer_file(inside[i].name) ? Role::harmless
                                                     : Role::unknown);
    }
    const std::string files = "a folder of " + plural(inside.size(), "file");
    entry.what = files;
    if (roles == std::set{Role::harmless}) {
      entry.role = Role::harmless;
    } else if (!roles.contains(Role::unknown) && !roles.contains(Role::states) &&
               !roles.contains(Role::weights)) {
      entry.role = Role::job;
      entry.what = files + " that a job keeps";
    } else {
      name_checkpoint(entry, *folder, roles.contains(Role::states));
    }
  }

  void name_checkpoint(BesideEntry& entry, const SourceTree& folder, bool told_of_states) {
    if (const Format* format = format_at(folder)) {
      entry.role = Role::checkpoint;
      entry.what = compose("a {} checkpoint of its own", format->name());
    }
    entry.holds_states = told_of_states || holds_states(folder);
    if (entry.holds_states) entry.what += ", with an optimizer's states";
    if (entry.holds_states && entry.role == Role::unknown) entry.role = Role::states;
  }

  bool holds_states(const SourceTree& folder) {
    std::size_t here = 0;
    for (const SourceTree::Entry& file : folder.entries()) {
      if (file.name.ends_with(".distcp") || kind_of_file(file.name).empty()) continue;
      if (known_file(file.name)) continue;
      if (++here > kLooksInFolder || looks_++ >= kMostLooks) return false;
      if (head_speaks_of_states(folder, file.name)) return true;
    }
    return false;
  }

  std::shared_ptr<const SourceTree> tree_;
  const Catalog& read_;
  std::set<std::string, std::less<>> files_;    // that were read
  std::set<std::string, std::less<>> folders_;  // in which such lie, with their '/'
  std::map<std::string, std::size_t> alike_;    // number of the entry
  std::vector<BesideEntry> entries_;
  std::set<std::string> empty_;  // of those
  std::string last_;             // that was added
  std::uint64_t left_out_ = 0;
  std::size_t looks_ = 0;
  std::size_t folders_looked_at_ = 0;
};

}  // namespace

std::vector<BesideEntry> what_lies_beside(const std::shared_ptr<const SourceTree>& tree,
                                          const Catalog& read) {
  if (tree->entries().size() < 2) return {};
  return Beside(tree, read).run();
}

bool is_loaders_own(const Catalog& read, std::string_view path) {
  struct Own {
    std::string_view format;
    std::string_view path;  // a glob
  };
  // A universal checkpoint repeats the model file's values, and each buffer, frozen and tied
  // parameter.
  constexpr Own kOwn[] = {{"megatron", "*modelopt_state*"},
                          {"deepspeed-universal", "*mp_rank_*_model_states.pt"},
                          {"deepspeed-universal", "*zero/*.pt"}};
  return is_pointer_file(path) || std::ranges::any_of(kOwn, [&](const Own& own) {
           return own.format == read.format && glob_match(own.path, path);
         });
}

}  // namespace ebb::formats
