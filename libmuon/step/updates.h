// Updates: in Placement::shard, U and O of a chunk's matrices on their way, as they travel, in the
// memory of the device that computes: this rank's parts of them, and whole those that it computes.
// A turn's U is gathered behind its sweep, becomes O beside the next sweeps, and O is back before
// the sweep of its masters: there is one chunk's room for each.
//
// Two threads: the one that sweeps works on parts; all else is the other's, which all ranks meet
// on.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ebb/libmuon/kernels/table.h"
#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libmuon/step/absent_gradients.h"
#include "ebb/libmuon/step/matrix_updates.h"
#include "ebb/libmuon/step/places.h"

namespace ebb::libmuon {

class Updates final : public MatrixUpdates {
 public:
  enum class Kind : std::uint8_t { update, result };  // U, O

  struct Parts {  // all are borrowed
    const ModelSpec& model;
    const StatePlan& plan;
    const Chunks& chunks;
    const Accelerator* accelerator = nullptr;  // null: the host
  };
  // What they take where they are computed; nothing in Placement::owner.
  static std::uint64_t bytes(const Parts& parts);
  // REQUIRES: Placement::shard. The kernels are those of the thread that calls orthogonalize().
  static Result<std::unique_ptr<Updates>> make(const Parts& parts, libswap::Pool& pool,
                                               std::unique_ptr<Kernels> kernels);
  ~Updates() override;  // waits for Newton-Schulz

  // Memory of a range that lies on this rank's shard, or of a matrix that it computes; of U in the
  // turn of its momentum, of O in that of its masters.
  libswap::Buffer part(Kind kind, std::size_t turn, const Transit& transit) const;
  libswap::Buffer whole(Kind kind, std::size_t turn, const Transit& transit) const;

  // Those of a sweep, whose chunks are turns.
  std::vector<Piece> update(const Visited& visit, const StatePlan::Span& span,
                            const FlatRange& portion) override;
  void prepared(const Visited&, const FlatRange&, const libswap::Event&) override {}
  libswap::Buffer decay(const Visited& visit, const StatePlan::Span& span) override;
  libswap::Buffer separate_decay(const Visited& visit, const StatePlan::Span& span) override;
  libswap::Event move_moments(const Visited& visit) override;
  // What comes back to a shard was looked at before (made()).
  Result<> check(const Visit&) override { return {}; }
  std::vector<Piece> result(const Visited& visit, const StatePlan::Span& span) override;

  // How its kernels multiply (Kernels::choose).
  void choose(std::uint32_t choice) { kernels_->choose(choice); }

  // Begins to make O of what was gathered behind the turn.
  void orthogonalize(std::size_t turn, const AbsentGradients& absent, Bf16 bf16);
  // Waits for that. Code::state where what was made is not finite: it must reach no shard.
  Result<> made();
  // Waits, too: the step is abandoned, and what it made is not looked at.
  void forget();

 private:
  // Room for ranges, of one chunk at a time.
  struct Room {
    std::vector<Places> places;  // by turn
    std::vector<DType> dtypes;   // by parameter
    std::uint64_t bytes = 0;
    libswap::DeviceMemory memory;

    libswap::Buffer at(std::size_t turn, const Transit& transit) const;
  };
  using Lists = std::span<const Transit> (Chunks::*)(std::size_t chunk) const;
  struct Rooms {
    Room part_u, part_o, whole_u, whole_o, moments, decays;
    template <typename Self>
    static auto all(Self& self) {
      return std::array{&self.part_u,  &self.part_o,  &self.whole_u,
                        &self.whole_o, &self.moments, &self.decays};
    }
    std::uint64_t wide = 0, scratch = 0;  // bytes
    std::uint64_t bytes() const;
  };
  Updates(const Parts& parts, libswap::Pool& pool, std::unique_ptr<Kernels> kernels)
      : parts_(parts), pool_(pool), kernels_(std::move(kernels)), rooms_(rooms_of(parts)) {}
  static Rooms rooms_of(const Parts& parts);
  // Of second moments of a matrix that it computes, in the turn of its momentum or of its masters:
  // from the first until the second they are here. Empty: of no matrix of that turn.
  libswap::Buffer moments(std::size_t turn, const Transit& moments) const;
  void wait();
  // What lies here of what `layout` cuts, as what `types` says; `wanted`: of these parameters, or
  // of all where it is empty.
  static Room room_of(const Parts& parts, Lists lists, const ModelLayout& layout,
                      const ModelLayout& types,
                      const std::function<bool(std::uint32_t param)>& wanted = {});
  // Twice, since those of a chunk are there until the next ones have come.
  static Room moments_room(const Parts& parts, const Room& whole_u);
  // One matrix range of this rank's.
  static Item item_of(const Place& place);

  const Parts parts_;
  libswap::Pool& pool_;
  const std::unique_ptr<Kernels> kernels_;
  Rooms rooms_;
  libswap::DeviceMemory wide_, scratch_;  // of one batch at a time: U and O in fp32
  libswap::DeviceMemory flag_;            // a matrix that is not finite, numbered from 1
  // Of the last turn, ascending: the number behind a batch' matrices, and their parameter.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> numbered_;
  libswap::Event made_;  // passes when all of the last turn's are O
};

}  // namespace ebb::libmuon
