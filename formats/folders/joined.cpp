#include "ebb/formats/folders/joined.h"

#include <algorithm>
#include <optional>

#include "ebb/formats/catalog/key_path.h"

namespace ebb::formats::folders {
namespace {

using Path = std::vector<PathItem>;

// Gives paths their place in the whole.
class Placing {
 public:
  Placing(const Below& below, const Catalog& part) : below_(below) {
    const auto begins = [&](const auto& entry) {
      return !entry.path.empty() && is_word(entry.path.front(), below.instead_of);
    };
    replaces_ = !below.instead_of.empty() && std::ranges::all_of(part.tensors, begins) &&
                std::ranges::all_of(part.values, begins) &&
                std::ranges::all_of(part.unread, begins) &&
                std::ranges::all_of(part.containers, begins);
  }

  // `key`: of what has no path.
  void place(Path& path, const std::string& key) const {
    if (path.empty() && !key.empty()) path = {key};
    if (replaces_)
      path.front() = below_.key;
    else if (!below_.key.empty())
      path.insert(path.begin(), below_.key);
  }

 private:
  const Below& below_;
  bool replaces_ = false;
};

}  // namespace

void JoinedCheckpoint::add(std::unique_ptr<Checkpoint> part, const Below& below) {
  Catalog from = part->catalog();
  const Placing placing(below, from);
  const auto first_file = static_cast<std::uint32_t>(catalog_.files.size());
  for (FileEntry& file : from.files) {
    if (!below.folder.empty()) file.name = compose("{}/{}", below.folder, file.name);
    catalog_.files.push_back(std::move(file));
  }
  for (TensorEntry& tensor : from.tensors) {
    placing.place(tensor.path, tensor.key.value_or(tensor.name));
    tensor.key = joined(tensor.path);
    for (Chunk& chunk : tensor.chunks) chunk.file += first_file;
    catalog_.tensors.push_back(std::move(tensor));
  }
  for (ValueEntry& value : from.values) {
    placing.place(value.path, value.key);
    value.key = joined(value.path);
    catalog_.values.push_back(std::move(value));
  }
  for (UnreadEntry& unread : from.unread) {
    placing.place(unread.path, unread.key);
    unread.key = joined(unread.path);
    catalog_.unread.push_back(std::move(unread));
  }
  for (ContainerEntry& container : from.containers) {
    placing.place(container.path, "");
    catalog_.containers.push_back(std::move(container));
  }
  catalog_.world = std::max(catalog_.world, from.world);
  parts_.push_back({first_file, std::move(part)});
}

void JoinedCheckpoint::add_file(FileEntry file) {
  if (std::ranges::find(catalog_.files, file.name, &FileEntry::name) == catalog_.files.end())
    catalog_.files.push_back(std::move(file));
}

Result<> JoinedCheckpoint::read_chunk(const TensorEntry& tensor, const Chunk& chunk,
                                      std::uint64_t first, std::span<std::byte> into) const {
  const auto behind = std::ranges::upper_bound(parts_, chunk.file, {}, &Held::first_file);
  const Held& part = *std::prev(behind);
  Chunk its = chunk;
  its.file -= part.first_file;
  return part.checkpoint->read(tensor, its, first, into);
}

}  // namespace ebb::formats::folders
