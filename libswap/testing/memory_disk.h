// The insides of MemoryDisk: files as blocks with their unsynced versions, directories with the
// names not yet synced. Every function expects the state's mutex to be held.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/testing/memory_backend.h"

namespace ebb::libswap {

constexpr std::uint64_t kMemoryBlock = 4096;
constexpr std::uint64_t kMemorySector = 512;

struct MemoryFile {
  using Block = std::array<std::byte, kMemoryBlock>;
  using Version = std::shared_ptr<const Block>;  // null: zeros
  // Oldest first: the durable version, then one for each write since.
  std::map<std::uint64_t, std::vector<Version>> blocks;
  std::vector<std::uint64_t> sizes{0};

  std::uint64_t size() const { return sizes.back(); }
  void read(std::uint64_t offset, std::span<std::byte> into) const;  // REQUIRES: inside the file
  void write(std::uint64_t offset, std::span<const std::byte> from);
  void resize(std::uint64_t bytes);
  void sync();
};

struct MemoryNode {
  enum class Kind : std::uint8_t { file, directory };
  using Names = std::map<std::string, std::shared_ptr<MemoryNode>>;

  explicit MemoryNode(Kind what) : kind(what) {}
  Kind kind;
  MemoryFile file;
  Names names;    // as every process sees them
  Names durable;  // as they are after a power loss that kept nothing else
  const void* locked_by = nullptr;
};

// One change of names, not durable yet. A removal has no `to`, a creation no `from`.
struct NameChange {
  struct End {
    std::shared_ptr<MemoryNode> directory;
    std::string name;
  };
  std::optional<End> from;
  std::optional<End> to;
  std::shared_ptr<MemoryNode> node;

  bool touches(const MemoryNode* directory) const;
  void apply_durably() const;
};

struct MemoryDisk::State {
  explicit State(std::uint64_t bytes) : capacity(bytes) {}

  // The end a path names; its directory must exist. nullopt otherwise.
  std::optional<NameChange::End> end_of(const fs::path& path) const EBB_REQUIRES(mutex);
  // nullptr: none.
  std::shared_ptr<MemoryNode> node_at(const fs::path& path) const EBB_REQUIRES(mutex);
  void change(NameChange change) EBB_REQUIRES(mutex);
  void sync_names(const MemoryNode* directory) EBB_REQUIRES(mutex);
  std::uint64_t free_bytes() const EBB_REQUIRES(mutex);
  // False when the disk would be fuller than its capacity.
  bool resize(MemoryFile& file, std::uint64_t bytes) EBB_REQUIRES(mutex);

  mutable Mutex mutex;
  const std::uint64_t capacity;
  std::shared_ptr<MemoryNode> root EBB_GUARDED_BY(mutex) =
      std::make_shared<MemoryNode>(MemoryNode::Kind::directory);
  std::vector<NameChange> changes EBB_GUARDED_BY(mutex);  // in their order
};

}  // namespace ebb::libswap
