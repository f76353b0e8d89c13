// StreamedUpdate: U and O of the item that is streamed, in a ring of panels (Streaming), and its
// Newton-Schulz (StreamedMatrix), for one step. On the host.
#pragma once

#include <array>
#include <vector>

#include "ebb/libmuon/kernels/streamed.h"
#include "ebb/libmuon/plan/state_plan.h"
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
    NonFinite non_finite;
  };
  StreamedUpdate(const Of& of, libswap::Pool& pool);
  ~StreamedUpdate();  // waits for what it began

  // Where those of a visit's elements lie that it makes or applies; of what comes in strips, a
  // piece of each row.
  struct Piece {
    FlatRange elems;  // of the item
    libswap::Buffer update;
  };
  std::vector<Piece> pieces(const Visit& visit, const FlatRange& elems) const;
  // Of a visit's elements, in order, as many at a time as there is room for: each is settled,
  // prepared and made before the next.
  std::vector<FlatRange> turns(const Visit& visit, const FlatRange& elems) const;
  // Waits until O of the visit's elements is there, or nobody else uses their room.
  void settle(const Visit& visit, const FlatRange& elems);
  // U of the visit's elements is there: in order, in each pass.
  void made(const Visit& visit, const FlatRange& elems);

  static std::uint64_t scratch_bytes(const ModelSpec& model, const Item& item);

 private:
  static StreamedMatrix::Panels panels_of(const ModelSpec& model, const Item& item);
  bool in_strips(const Visit& visit) const {
    return streaming_.wide() && visit.action != Action::prepare;
  }
  // Of a strip.
  std::uint32_t pass_of(const Visit& visit) const {
    return streaming_.made_in(visit.action, visit.pass);
  }
  libswap::Buffer room_of_strip(std::uint32_t pass) const;
  std::vector<Piece> in_ring(const FlatRange& elems) const;
  void made_of_strip(std::uint32_t pass, const FlatRange& elems);
  libswap::Event& event_of(std::uint64_t panel) { return busy_[panel % busy_.size()]; }
  libswap::Event& event_of_strip(std::uint32_t pass) {
    return busy_[pass % Streaming::kStripsAtOnce];
  }

  const Streaming streaming_;
  const std::uint64_t elems_;
  const libswap::Buffer room_;
  libswap::Pool& pool_;
  StreamedMatrix matrix_;
  std::array<libswap::Event, Streaming::kPanels> busy_;  // of the ring's panels, or strips
};

}  // namespace ebb::libmuon
