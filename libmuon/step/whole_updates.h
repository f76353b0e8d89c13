// WholeUpdates: U and O of matrices that lie whole on this rank. Momentum tiles make an item's U,
// which becomes O in the same place while the tiles of its neighbours are paged; master tiles apply
// it. There is room for the updates of two items, or of one (StepOrder), or for a part of one that
// is streamed.
//
// Owns its rooms; borrows all that With has, and what begin() is given until the next one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ebb/libmuon/kernels/table.h"
#include "ebb/libmuon/step/absent_gradients.h"
#include "ebb/libmuon/step/matrix_updates.h"
#include "ebb/libmuon/step/streamed_update.h"

namespace ebb::libmuon {

class WholeUpdates final : public MatrixUpdates {
 public:
  // Bytes where it is computed; none in Placement::shard.
  struct Need {
    std::uint64_t updates = 0, newton_schulz = 0, flags = 0;
    std::uint64_t all() const { return updates + newton_schulz + flags; }
  };
  static Need need(const ModelSpec& model, const StatePlan& plan, const Accelerator* accelerator);

  struct With {
    const ModelSpec& model;
    const StatePlan& plan;
    libswap::Pool& pool;
    Kernels& kernels;
    Bf16 bf16 = Bf16::emulated;
  };
  static Result<std::unique_ptr<WholeUpdates>> make(const With& with, const Need& need);
  ~WholeUpdates() override;  // waits for its kernels

  // Of a step: what is untouched in it has no update.
  void begin(const AbsentGradients& absent) { absent_ = &absent; }

  std::vector<FlatRange> portions(const Visited& visit) override;
  std::vector<Piece> update(const Visited& visit, const StatePlan::Span& span,
                            const FlatRange& portion) override;
  void prepared(const Visited& visit, const FlatRange& portion,
                const libswap::Event& made) override;
  libswap::Buffer decay(const Visited& visit, const StatePlan::Span& span) override;
  libswap::Buffer separate_decay(const Visited&, const StatePlan::Span&) override { return {}; }
  libswap::Event move_moments(const Visited& visit) override;
  Result<> check(const Visit& visit) override;
  std::vector<Piece> result(const Visited& visit, const StatePlan::Span& span) override;

 private:
  explicit WholeUpdates(const With& with) : with_(with) {}
  const Item& item(std::uint32_t number) const { return with_.plan.items()[number]; }
  libswap::Buffer room_of(std::uint32_t item) const;
  // Where kernels say that a matrix of it is not finite.
  libswap::Buffer flag_of(std::uint32_t item) const;
  bool untouched(std::uint32_t item) const;
  void begin_streaming(std::uint32_t item);
  // Of elements of an item that is streamed.
  std::vector<Piece> streamed(const Visit& visit, const FlatRange& elems) const;
  // An item's batches but what is untouched, as kernels take them; matrices are numbered from 1.
  struct Batch {
    ItemBatch of;
    MatrixBatch matrices;
  };
  std::vector<Batch> touched_batches(std::uint32_t item) const;
  // Whose part of an item's update the matrix of that number is.
  const ParamSpec& owner_of_matrix(std::uint32_t item, std::uint32_t number) const;

  // Constant after make(), but for what lies in the memory.
  const With with_;
  libswap::DeviceMemory room_;     // U of an item, later its O
  libswap::DeviceMemory scratch_;  // of one Newton-Schulz at a time
  libswap::DeviceMemory flags_;    // by i % 2: a matrix of item i that is not finite

  // Of the thread that sweeps.
  std::array<libswap::Event, 2> orthogonal_;  // item i uses i % 2: passes when its O may be used
  std::optional<StreamedUpdate> streamed_;    // in all three memories
  const AbsentGradients* absent_ = nullptr;
};

}  // namespace ebb::libmuon
