// StateStore: an optimizer's state as tensors on disk, visited once a step. For a trainer with its
// own update rule: describe the tensors and their states, give each visit a function, snapshot from
// time to time; a run that is started again goes on at its last snapshot. examples/swap_minimal is
// such a trainer.
//
// Each rank keeps its own part of every tensor. While one tensor is visited the next ones are read
// and those before are written, within a byte budget; the part of the state that fits stays in
// memory.
//
// Threading: one thread, all calls. Calls marked [C] are collective: all ranks, same order. In a
// child made by fork() calls that answer a Result answer Code::state.
// Errors: nothing is lost by one. for_each() called again with the same step goes on where it was
// cut.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/layout/layout.h"
#include "ebb/libswap/space/swap_space.h"

namespace ebb::libswap {

struct StoredState {
  std::string name;  // "master", "momentum_buffer", ...: any
  DType dtype = DType::f32;
};
struct StoredTensor {
  std::string name;
  Shape shape;
  std::vector<StoredState> states;  // each of the tensor's shape
};

struct StateStoreConfig {
  std::filesystem::path directory;          // made if absent; one for all ranks, or one each
  std::uint64_t budget_bytes = 256u << 20;  // of state in memory, this rank
  std::uint64_t tile_bytes = 1u << 20;
  std::uint32_t threads = 1;  // beside the caller's: none
  Ranks* ranks = nullptr;     // borrowed; null: this process is alone
  // How tensors are cut over the ranks, so that each element is kept once.
  Layout::Spec partition = {};
  // Directories of a run of another number of ranks, of which this rank may reach any part.
  std::vector<std::filesystem::path> sources = {};
};

class StateStore {
 private:
  struct Impl;

 public:
  // One tensor's part on this rank, while it is visited.
  class Visit {
   public:
    std::size_t tensor() const { return tensor_; }  // its place in the list that was described
    const std::string& name() const;
    FlatRange range() const;  // of the row-major tensor
    // The elements of a state. Code::usage: no such state, or its elements are of another size.
    template <typename T>
    Result<std::span<T>> state(std::string_view name) const {
      EBB_TRY_ASSIGN(const auto bytes, bytes_of(name, sizeof(T)));
      return std::span<T>(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T));
    }

   private:
    friend class StateStore;
    Result<std::span<std::byte>> bytes_of(std::string_view state, std::size_t elem_bytes) const;

    const Impl* impl_ = nullptr;
    std::size_t tensor_ = 0;
    std::span<std::byte> bytes_;
  };
  using Visitor = std::function<Result<>(const Visit& visit)>;

  // [C] Resumes what lies in the directory, also where it was made by another number of ranks, its
  // parts in their directories (Ranks that pass bytes bring them to whom they do not reach); or
  // makes a store, whose zeros `initial` changes.
  static Result<std::unique_ptr<StateStore>> open(const StateStoreConfig& config,
                                                  std::vector<StoredTensor> tensors,
                                                  const Visitor& initial);
  ~StateStore();  // what no snapshot committed is lost

  // The last one that for_each() finished; 0 for a new store.
  std::uint64_t step() const;
  const std::string& origin() const;  // "created", "resumed the store at step 12", ...

  // [C] Visits every tensor once, in the order they were described, to change it; the state is at
  // `step` then, which is above step(). An error of a visit leaves that tensor as it was.
  Result<> for_each(std::uint64_t step, const Visitor& update);
  // The same without changing anything; no other rank takes part.
  Result<> read_each(const Visitor& look);

  // SwapSpace's: what is wanted back beside the state.
  Result<> set_blob(std::string key, ByteVector bytes);
  const ByteVector* blob(std::string_view key) const;

  // [C] Makes the present state a generation. It is written behind the next steps and committed by
  // one of them, or by wait_snapshot(). False: the one before is not written yet.
  Result<bool> snapshot();
  // [C] Waits for that; its number. Its error where it was abandoned.
  Result<std::uint64_t> wait_snapshot();

  const std::filesystem::path& store_directory() const;  // what ckpt-inspect reads
  SwapSpaceStats stats() const;

 private:
  explicit StateStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ebb::libswap

namespace ebb {
using libswap::StateStore;
}  // namespace ebb
