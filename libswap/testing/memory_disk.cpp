#include "ebb/libswap/testing/memory_disk.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {
namespace {

// splitmix64: small, seeded, the same on every machine.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t bound) {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (z ^ (z >> 31)) % bound;
  }

 private:
  std::uint64_t state_;
};

// Chooses among what a power loss may leave.
class Survivor {
 public:
  explicit Survivor(const PowerLoss& loss) : loss_(loss), draw_(loss.seed), number_(loss.seed) {}

  // Of `count` versions, oldest and durable first: the index of the one that survives.
  std::size_t version(std::size_t count) {
    choices_ *= count;
    if (loss_.unsynced == PowerLoss::Unsynced::lost) return 0;
    if (loss_.unsynced == PowerLoss::Unsynced::kept) return count - 1;
    if (loss_.unsynced == PowerLoss::Unsynced::numbered) {
      const auto chosen = static_cast<std::size_t>(number_ % count);
      number_ /= count;
      return chosen;
    }
    return static_cast<std::size_t>(draw_.below(count));
  }
  // How many leading sectors of a block come from another version.
  std::uint64_t torn_bytes() {
    if (loss_.unsynced != PowerLoss::Unsynced::drawn || draw_.below(4) != 0) return 0;
    return draw_.below(kMemoryBlock / kMemorySector) * kMemorySector;
  }
  std::uint64_t choices() const { return choices_; }

 private:
  PowerLoss loss_;
  Draw draw_;
  std::uint64_t number_ = 0;   // what is left of it
  std::uint64_t choices_ = 1;  // so far
};

MemoryFile::Version survivor_of(const std::vector<MemoryFile::Version>& versions,
                                Survivor& survivor) {
  MemoryFile::Version chosen = versions[survivor.version(versions.size())];
  const std::uint64_t torn = versions.size() > 1 ? survivor.torn_bytes() : 0;
  if (torn == 0) return chosen;
  MemoryFile::Block mixed{};
  if (chosen != nullptr) mixed = *chosen;
  const MemoryFile::Version& other = versions[survivor.version(versions.size())];
  for (std::uint64_t i = 0; i < torn; ++i) mixed[i] = other == nullptr ? std::byte{0} : (*other)[i];
  return std::make_shared<const MemoryFile::Block>(mixed);
}

MemoryFile survivor_of(const MemoryFile& file, Survivor& survivor) {
  MemoryFile left;
  for (const auto& [index, versions] : file.blocks) {
    left.blocks[index] = {survivor_of(versions, survivor)};
  }
  const std::uint64_t size = file.sizes[survivor.version(file.sizes.size())];
  // Longest first: what lay behind the length that survived is not there to be found again.
  left.sizes = {std::numeric_limits<std::uint64_t>::max()};
  left.resize(size);
  left.sync();
  return left;
}

// Copies a tree as its durable names show it; a node that has two names stays one node.
class TreeCopy {
 public:
  explicit TreeCopy(Survivor& survivor) : survivor_(survivor) {}

  std::shared_ptr<MemoryNode> copy(const std::shared_ptr<MemoryNode>& node,
                                   const std::map<const MemoryNode*, MemoryNode::Names>& names) {
    auto& made = copies_[node.get()];
    if (made != nullptr) return made;
    const auto result = std::make_shared<MemoryNode>(node->kind);
    made = result;
    if (node->kind == MemoryNode::Kind::file) result->file = survivor_of(node->file, survivor_);
    const auto changed = names.find(node.get());
    for (const auto& [name, child] : changed == names.end() ? node->durable : changed->second) {
      result->names[name] = copy(child, names);
    }
    result->durable = result->names;
    return result;
  }

 private:
  Survivor& survivor_;
  std::map<const MemoryNode*, std::shared_ptr<MemoryNode>> copies_;
};

using NamesByDirectory = std::map<const MemoryNode*, MemoryNode::Names>;

MemoryNode::Names& names_of(NamesByDirectory& names, const MemoryNode* directory) {
  return names.try_emplace(directory, directory->durable).first->second;
}

// The durable names plus, for each directory, the first few of its later changes.
NamesByDirectory surviving_names(const std::vector<NameChange>& changes, Survivor& survivor) {
  std::map<const MemoryNode*, std::size_t> left;  // changes of a directory that survive
  for (const NameChange& change : changes) {
    if (change.from) ++left[change.from->directory.get()];
    if (change.to && !(change.from && change.from->directory == change.to->directory)) {
      ++left[change.to->directory.get()];
    }
  }
  for (auto& [directory, count] : left) count = survivor.version(count + 1);
  NamesByDirectory names;
  for (const NameChange& change : changes) {
    bool survives = false;
    for (auto& [directory, count] : left) {
      if (!change.touches(directory) || count == 0) continue;
      --count;
      survives = true;
    }
    if (!survives) continue;
    if (change.from) names_of(names, change.from->directory.get()).erase(change.from->name);
    if (change.to) names_of(names, change.to->directory.get())[change.to->name] = change.node;
  }
  return names;
}

std::uint64_t charged(const MemoryNode& node) {
  std::uint64_t bytes = formats::align_up(node.file.size(), kMemoryBlock);
  for (const auto& [name, child] : node.names) bytes += charged(*child);
  return bytes;
}

}  // namespace

void MemoryFile::read(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const std::uint64_t start = offset % kMemoryBlock;
    const std::uint64_t count = std::min<std::uint64_t>(into.size(), kMemoryBlock - start);
    const auto found = blocks.find(offset / kMemoryBlock);
    const Version version = found == blocks.end() ? nullptr : found->second.back();
    if (version == nullptr) {
      std::memset(into.data(), 0, count);
    } else {
      std::memcpy(into.data(), version->data() + start, count);
    }
    into = into.subspan(count);
    offset += count;
  }
}

void MemoryFile::write(std::uint64_t offset, std::span<const std::byte> from) {
  if (offset + from.size() > size()) sizes.push_back(offset + from.size());
  while (!from.empty()) {
    const std::uint64_t start = offset % kMemoryBlock;
    const std::uint64_t count = std::min<std::uint64_t>(from.size(), kMemoryBlock - start);
    std::vector<Version>& versions = blocks[offset / kMemoryBlock];
    if (versions.empty()) versions.push_back(nullptr);
    Block block{};
    if (versions.back() != nullptr) block = *versions.back();
    std::memcpy(block.data() + start, from.data(), count);
    versions.push_back(std::make_shared<const Block>(block));
    from = from.subspan(count);
    offset += count;
  }
}

void MemoryFile::resize(std::uint64_t bytes) {
  if (bytes == size()) return;
  if (bytes < size() && bytes % kMemoryBlock != 0 && blocks.contains(bytes / kMemoryBlock)) {
    std::vector<Version>& versions = blocks[bytes / kMemoryBlock];
    Block block{};
    const std::uint64_t kept = bytes % kMemoryBlock;
    if (versions.back() != nullptr) std::memcpy(block.data(), versions.back()->data(), kept);
    versions.push_back(std::make_shared<const Block>(block));
  }
  const std::uint64_t behind = formats::div_ceil(bytes, kMemoryBlock);
  for (auto block = blocks.lower_bound(behind); block != blocks.end(); ++block) {
    block->second.push_back(nullptr);
  }
  sizes.push_back(bytes);
}

void MemoryFile::sync() {
  for (auto& [index, versions] : blocks) versions.erase(versions.begin(), versions.end() - 1);
  std::erase_if(blocks, [](const auto& entry) { return entry.second.back() == nullptr; });
  sizes = {sizes.back()};
}

bool NameChange::touches(const MemoryNode* directory) const {
  return (from && from->directory.get() == directory) || (to && to->directory.get() == directory);
}

void NameChange::apply_durably() const {
  if (from) from->directory->durable.erase(from->name);
  if (to) to->directory->durable[to->name] = node;
}

std::optional<NameChange::End> MemoryDisk::State::end_of(const fs::path& path) const {
  const fs::path normal = (fs::path("/") / path).lexically_normal();
  std::shared_ptr<MemoryNode> directory = root;
  std::string last;
  for (const fs::path& part : normal.relative_path()) {
    if (part.empty()) continue;  // a slash at the end
    if (!last.empty()) {
      const auto found = directory->names.find(last);
      if (found == directory->names.end()) return std::nullopt;
      if (found->second->kind != MemoryNode::Kind::directory) return std::nullopt;
      directory = found->second;
    }
    last = part.string();
  }
  return NameChange::End{directory, last};
}

std::shared_ptr<MemoryNode> MemoryDisk::State::node_at(const fs::path& path) const {
  const std::optional<NameChange::End> end = end_of(path);
  if (!end) return nullptr;
  if (end->name.empty()) return end->directory;
  const auto found = end->directory->names.find(end->name);
  return found == end->directory->names.end() ? nullptr : found->second;
}

void MemoryDisk::State::change(NameChange change) {
  if (change.from) change.from->directory->names.erase(change.from->name);
  if (change.to) change.to->directory->names[change.to->name] = change.node;
  changes.push_back(std::move(change));
}

void MemoryDisk::State::sync_names(const MemoryNode* directory) {
  for (const NameChange& change : changes) {
    if (change.touches(directory)) change.apply_durably();
  }
  std::erase_if(changes, [&](const NameChange& change) { return change.touches(directory); });
}

std::uint64_t MemoryDisk::State::free_bytes() const {
  const std::uint64_t used = charged(*root);
  return used < capacity ? capacity - used : 0;
}

bool MemoryDisk::State::resize(MemoryFile& file, std::uint64_t bytes) {
  if (bytes > file.size()) {
    const std::uint64_t more =
        formats::align_up(bytes, kMemoryBlock) - formats::align_up(file.size(), kMemoryBlock);
    if (more > free_bytes()) return false;
  }
  file.resize(bytes);
  return true;
}

MemoryDisk::MemoryDisk(std::unique_ptr<State> state) : state_(std::move(state)) {}
MemoryDisk::~MemoryDisk() = default;

std::shared_ptr<MemoryDisk> MemoryDisk::create(std::uint64_t capacity_bytes) {
  return std::shared_ptr<MemoryDisk>(new MemoryDisk(std::make_unique<State>(capacity_bytes)));
}

std::shared_ptr<MemoryDisk> MemoryDisk::after(const PowerLoss& loss) const {
  return lose_power(loss).first;
}

std::uint64_t MemoryDisk::choices() const {
  return lose_power({PowerLoss::Unsynced::numbered, 0}).second;
}

std::pair<std::shared_ptr<MemoryDisk>, std::uint64_t> MemoryDisk::lose_power(
    const PowerLoss& loss) const {
  const MutexLock lock(state_->mutex);
  Survivor survivor(loss);
  const NamesByDirectory names = surviving_names(state_->changes, survivor);
  std::shared_ptr<MemoryDisk> disk = create(state_->capacity);
  const MutexLock other(disk->state_->mutex);
  disk->state_->root = TreeCopy(survivor).copy(state_->root, names);
  return {std::move(disk), survivor.choices()};
}

}  // namespace ebb::libswap
