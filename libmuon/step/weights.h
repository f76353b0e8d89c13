// Weights: where a trainer's weights are bound, and what of them was handed out. Where they are
// masters, or high halves of them, they are state that lies with the trainer.
//
// Borrows the buffers that are bound.
// Threading: of() and handed_out() are for the threads of a step, to which Flow::begin() publishes
// the rest; all else is for the thread that drives the engine, while no step is under way, and
// last_chunk() for any.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ebb/libmuon/step/computing.h"
#include "ebb/libmuon/step/handed_out.h"
#include "ebb/libmuon/step/setup.h"
#include "ebb/libmuon/step/state_buffer.h"

namespace ebb::libmuon {

class Weights {
 public:
  explicit Weights(const Setup& setup);  // borrowed

  // Binds them, as Engine::bind_weights() says.
  Result<> bind(std::uint32_t param, const libswap::Buffer& my_pieces);
  bool bound(std::uint32_t param) const { return bound_[param].has_value(); }
  // Code::usage where what is bound, where the trainer keeps it, is not finite.
  Result<> finite(std::uint32_t param, const Computing& computing) const;
  // Finds this rank's part of a range, where the trainer has it; empty if it is not bound.
  libswap::Buffer of(const Transit& transit) const;

  // Finds the last chunk of a step that hands out weights of the parameter. Code::usage if there is
  // no parameter of that number.
  Result<std::size_t> last_chunk(std::uint32_t param) const;
  // Whether updates are handed out, of some parameter, which no later call can do again.
  bool hands_out_updates() const;
  // Says what is to be done where weights, or updates, were not handed out to all ranks.
  std::string way_back() const;

  // Notes that a chunk's weights lie where they are bound, as far as they travelled.
  void handed_out(std::size_t chunk, const Travels& travels);
  // Where they are masters: Code::usage if they were not handed out yet. Where they are halves, of
  // these parameters, also Code::state if they are not what was handed out.
  Result<> unchanged(libswap::Pool& pool, const Travels& of = {}) const;
  // Whether all were: from the end of install_weights() until the state is another one.
  bool installed() const { return installed_; }
  void set_installed(bool all) { installed_ = all; }
  // Of these parameters, those of which this rank's weights are not what was handed out, where
  // masters are in halves. Code::usage where nothing was yet.
  Result<std::vector<std::uint32_t>> changed(libswap::Pool& pool, const Travels& of = {}) const;
  // Notes that masters are what is bound.
  void taken(const Travels& of);

  // Where masters are bound, of what this rank holds of a parameter as a weight. The bits of low
  // halves, in fp32 (OutRange), become masters; where these are whole nothing is read of it.
  void join(const StateBuffer& lows, libswap::Pool& pool) const;
  // Code::usage where nothing was handed out yet, Code::unsupported for what is not finite.
  Result<> can_part(const StateBuffer& masters, const Computing& computing) const;
  // What is bound becomes these masters, or their high halves.
  void part(const StateBuffer& masters, libswap::Pool& pool) const;

  // Parameters whose masters have taken a part of their weights, if there are any.
  const std::set<std::uint32_t>& half_taken() const { return half_taken_; }
  void set_half_taken(std::set<std::uint32_t> params) { half_taken_ = std::move(params); }

  // The step whose bound masters lie in tiles, if there is one.
  std::optional<std::uint64_t> kept() const { return kept_; }
  void set_kept(std::optional<std::uint64_t> step) { kept_ = step; }

 private:
  libswap::Buffer whole_of(const StateBuffer& state) const;
  Result<> were_handed_out() const;  // REQUIRES: masters are bound

  // Constant after construction.
  const Setup& setup_;
  const std::vector<std::size_t> last_chunk_;  // by parameter

  // Of the thread that drives.
  std::vector<std::optional<libswap::Buffer>> bound_;  // by parameter
  std::optional<std::uint64_t> kept_;
  std::set<std::uint32_t> half_taken_;
  bool installed_ = false;

  // Of the thread that meets in a step, else of the one that drives.
  std::optional<HandedOut> handed_out_;  // where masters are in halves
};

}  // namespace ebb::libmuon
