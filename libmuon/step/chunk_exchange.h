// ChunkExchange: what travels between this rank and the others for a chunk of a step: gradients to
// who keeps the state, with masters, or their high halves, that are bound; in Placement::shard U
// to who computes it, and O back; new weights to the trainer.
//
// Owns the room of what is on its way, and U and O; borrows all that make() is given.
// Threading: what is marked [C] is collective, on the one thread on which the ranks meet.
// gradient(), weight(), bound() and begin_weights() are for the thread that sweeps: their chunk's
// room is its own until it has swept it (Staging, Updates), Flow publishes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ebb/libmuon/step/gradients.h"
#include "ebb/libmuon/step/named_states.h"
#include "ebb/libmuon/step/staging.h"
#include "ebb/libmuon/step/updates.h"
#include "ebb/libmuon/step/weights.h"
#include "ebb/libmuon/step/wire.h"

namespace ebb::libmuon {

class ChunkExchange {
 public:
  // Allocates the rooms.
  static Result<std::unique_ptr<ChunkExchange>> make(const Setup& setup, const Computing& computing,
                                                     const Gradients& gradients, Weights& weights);
  // Sets over which ranks all travels: once, before anything does. Borrowed.
  void connect(Communicator& ranks);

  // [C] Each of these brings something of a chunk, and answers how many bytes this rank sent.
  using Sent = Result<std::uint64_t>;
  // Gradients, or the sums of what are parts of them (HandIn::partial).
  enum class Of : std::uint8_t { all, matrices, others };
  Sent gradients_in(std::size_t chunk, Of of);
  // Of these parameters, to where there is room already: before the step, too.
  Sent bring_gradients(std::size_t chunk, const Travels& travels);
  // What the trainer has bound, to who keeps the state: as masters, or high halves, beside
  // gradients, or in the place of weights on their way out, where weight() finds it.
  enum class As : std::uint8_t { bound, weights };
  Sent weights_in(std::size_t chunk, As as, const Travels& travels);
  Sent gather_updates(std::size_t chunk);
  Sent scatter_results(std::size_t chunk);
  Sent weights_out(std::size_t chunk, const Travels& travels);
  // [C] A portion of states: to the trainer, or from it.
  Sent states_out(const NamedStates& states, std::size_t portion);
  Sent states_in(const NamedStates& states, std::size_t portion);
  // Whether U, or O, of some matrix travels with the chunk, to or from any rank.
  bool has_updates(std::size_t chunk) const { return !setup_.chunks().updates(chunk).empty(); }
  bool has_results(std::size_t chunk) const { return !setup_.chunks().results(chunk).empty(); }

  // Selects the parameters that take part in the present step.
  Travels touched() const;

  // Find the memory of a range that this rank owns: the staged copy, or its part of the trainer's
  // buffer.
  libswap::Buffer gradient(std::size_t chunk, const Transit& transit);  // empty: there is none
  libswap::Buffer weight(std::size_t chunk, const Transit& transit);    // empty: nobody asked
  libswap::Buffer bound(std::size_t chunk, const Transit& transit);
  void begin_weights(std::size_t chunk) { staging_.begin(Staging::Kind::weights, chunk); }
  // Where a portion's range of state i is that this rank owns; begin_states() makes room for what
  // comes from here.
  libswap::Buffer state(const NamedStates& states, std::size_t i, std::size_t portion,
                        const Transit& transit);
  void begin_states(const NamedStates& states, std::size_t portion) {
    staging_.begin_portion(portion, states.portion(portion), states.count());
  }
  // The most that portions stage of this rank.
  std::uint64_t portion_bytes() const { return staging_.portion_bytes(); }
  // Lists the sums of the parts that came with the chunk; each element lies at one rank.
  std::vector<LookRange> sums(std::size_t chunk);
  Updates* updates() const { return updates_.get(); }  // null in Placement::owner

 private:
  struct Rooms {
    Staging staging;
    libswap::DeviceMemory bounce, parts;  // of the wire; of parts of gradients on their way
    std::unique_ptr<Updates> updates;
  };
  ChunkExchange(const Setup& setup, const Computing& computing, const Gradients& gradients,
                Weights& weights, Rooms rooms);
  void wait_for_gradients(std::size_t chunk, const Travels& travels) const;

  // Constant after construction.
  const Setup& setup_;
  const Computing& computing_;
  const libswap::DeviceMemory bounce_;  // of the wire

  // Synchronises itself.
  const Gradients& gradients_;

  // Of the thread that meets, but for the places of a chunk that is swept.
  Weights& weights_;
  Staging staging_;  // what the trainer's buffers hold lies nowhere else
  const std::unique_ptr<Updates> updates_;
  const libswap::DeviceMemory part_room_;  // of parts of gradients on their way
  std::optional<Wire> wire_;
};

}  // namespace ebb::libmuon
