// StreamedUpdate: U and O of the item that is streamed, in a ring of panels (Streaming), and its
// Newton-Schulz (StreamedMatrix), for one step. On the host.
#pragma once

#include <array>
#include <vector>

#include "ebb/libmuon/kernels/streamed.h"
#include "ebb/libmuon/plan/owner_order.h"
#include "ebb/libswap/device/device.h"
#include "ebb/libswap/pool.h"

namespace ebb::libmuon {

class StreamedUpdate {
 public:
  // All borrowed; `room` is the ring.
  struct Of {
    const ModelSpec& model;
    const Item& item;
    Bf16 bf16 = Bf16::emulated;
    libswap::Buffer room, scratch;
    Spoiled spoiled;
  };
  StreamedUpdate(const Of& of, libswap::Pool& pool);
  ~StreamedUpdate();  // waits for what it began

  // Where elements of the item lie now: one piece, or two.
  struct Piece {
    FlatRange elems;
    libswap::Buffer update;
  };
  std::vector<Piece> pieces(const FlatRange& elems) const;
  // Waits until O of the elements is there and nobody else uses their room.
  void settle(const FlatRange& elems);
  // U of the elements is there: in order, in each pass.
  void made(std::uint32_t pass, const FlatRange& elems);

  static std::uint64_t scratch_bytes(const ModelSpec& model, const Item& item);

 private:
  static std::uint64_t cols_of(const ModelSpec& model, const Item& item);
  libswap::Event& event_of(std::uint64_t panel) { return busy_[panel % busy_.size()]; }

  const Streaming streaming_;
  const std::uint64_t elems_;
  const libswap::Buffer room_;
  libswap::Pool& pool_;
  StreamedMatrix matrix_;
  std::array<libswap::Event, Streaming::kPanels> busy_;  // of the ring's panels
};

}  // namespace ebb::libmuon
