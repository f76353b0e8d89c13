// Beginning: what a new store's state begins from: an earlier store, wherever its parts lie, else a
// checkpoint, else initial weights, or those that the trainer has bound.
//
// Owns the earlier store's files, which it never changes; borrows all else.
// Threading: one thread. What is marked [C] is collective.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/libmuon/step/setup.h"
#include "ebb/libmuon/step/start.h"
#include "ebb/libmuon/step/stored_state.h"
#include "ebb/libmuon/step/sweep.h"
#include "ebb/libswap/store/scattered_store.h"

namespace ebb::libmuon {

class Beginning {
 public:
  Beginning(const Setup& setup, const Start& start);  // borrowed
  ~Beginning();

  // [C] Begins from the store of which this rank may find parts in `folders`.
  Result<> open_store(const std::vector<std::filesystem::path>& folders);
  // [C] Long work of this rank, which may read what others reach of that store.
  Result<> work(std::string_view doing, const std::function<Result<>()>& mine);

  // What is known before a tile is filled.
  struct Known {
    std::uint64_t step = 0;
    std::map<std::string, std::int64_t> taken;  // by parameter, where it is not `step`
    std::string notes;                          // for people, on what differs
  };
  // Reads that, inside work(). All that can be refused without a new store is refused here.
  Result<Known> read();
  // Null where initial weights are all there is; there once read() has answered.
  const Checkpoint* checkpoint() const { return checkpoint_; }
  // The kernels that wrote it, or nothing.
  std::string_view fingerprint() const;
  // Fills the tiles of a new store, inside work(). Masters of which takes_bound() is true are 0.
  Result<> fill(Sweep& sweep, std::uint64_t step) const;
  // Whether the masters of a parameter begin with its bound weights.
  bool takes_bound(std::uint32_t param) const;

 private:
  Result<> check_store() const;  // it is the expected one
  Result<> fill_from_initial(Sweep& sweep, std::uint64_t step) const;

  const Setup& setup_;
  const Start& start_;
  const InitialWeights initial_;  // empty where what is bound is what there is
  const Checkpoint* checkpoint_;
  std::unique_ptr<libswap::ScatteredStore> scattered_;
  std::unique_ptr<Checkpoint> previous_;  // what that store holds
  std::vector<Held> held_;                // of the checkpoint, by parameter
};

}  // namespace ebb::libmuon
