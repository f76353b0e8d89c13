// Start: what an engine begins from. Values, which borrow until Engine::open() returns what they
// point to; weights for as long as they are bound.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/native/manifest.h"
#include "ebb/libmuon/plan/model.h"
#include "ebb/libswap/device/device.h"

namespace ebb::libmuon {

// Which goes first: the store that lies in the swap directory, or what the trainer gives.
enum class Begin : std::uint8_t {
  store_or_given,  // the directory's current store, where there is one
  store,           // that store; Code::usage where there is none
  given,           // what is given; the store is superseded when the new one is committed
};

// The store that a trainer means to resume. What is not said may be any.
struct ExpectedStore {
  std::optional<formats::native::Uuid> uuid;
  std::optional<std::uint64_t> generation, step;
  bool any() const { return uuid || generation || step; }
};

// Of Begin::given: when the directory's store goes. Both have room on the disk, or it goes first,
// and a run that ends before the new one is committed has neither.
enum class OldStore : std::uint8_t { kept_until_committed, dropped_first };

// Elements [range.first, + count) of a parameter's fp32 initial weights, the same on every rank.
// Called from one thread at a time, not always the one that opens the engine.
using InitialWeights =
    std::function<void(std::uint32_t param, FlatRange range, std::span<float> into)>;

// The same on all ranks, but for what lies in `weights`.
struct Start {
  Begin begin = Begin::store_or_given;
  // Code::state, before anything changes, where the store is another one, or there is none.
  ExpectedStore expected = {};
  OldStore old_store = OldStore::kept_until_committed;

  // What is given: a checkpoint of any format that describes, for what it has; the rest begins with
  // what is bound, if `weights` are there, else with `initial`.
  const Checkpoint* checkpoint = nullptr;
  // By parameter, as Engine::bind_weights() takes them, which all are bound then; nothing of what
  // this rank does not hold. Each rank is asked for what it has, and for nothing else. Copies must
  // be alike: the lowest counts. Parameters with Out::update have no masters here: what is bound is
  // where updates go.
  std::span<const libswap::Buffer> weights = {};
  InitialWeights initial = {};
};

}  // namespace ebb::libmuon
