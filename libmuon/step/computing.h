// Computing: what a rank's engine computes with, its threads and its kernels, and how these make
// products: chosen once, kept with the state, told.
//
// Threading: choose() is of the thread that drives the engine, while nothing is under way; what it
// chose is published to a step's threads by Flow::begin(). All else is constant after make().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ebb/libmuon/kernels/table.h"
#include "ebb/libmuon/step/setup.h"
#include "ebb/libswap/pool.h"

namespace ebb::libmuon {

class Computing {
 public:
  // Starts the threads. Borrows the setup.
  static Result<std::unique_ptr<Computing>> make(const Setup& setup);

  libswap::Pool& pool() const { return *pool_; }
  Kernels& kernels() const { return device_ ? *device_ : *host_; }  // where the state is computed
  Kernels& host() const { return *host_; }
  Kernels& adding() const { return *adding_; }  // for the thread that adds parts of gradients up
  // Those of what a trainer keeps on that side.
  Kernels& near(Side side) const { return side == Side::device ? kernels() : *host_; }
  // Looks at what lies there.
  Look look(std::span<const LookRange> ranges, Side side) const;
  // Makes more of those that compute the state, for a thread of their own.
  Result<std::unique_ptr<Kernels>> more_kernels() const;

  // [C] Decides how products are made from now on: as the configuration says, else as the state's
  // kernels did (`kept`, their fingerprint, or nothing), else as is measured.
  Result<> choose(std::string_view kept);
  std::optional<Bf16> chosen_bf16() const { return bf16_; }  // null: the host multiplies nothing so
  Bf16 bf16() const { return bf16_.value_or(Bf16::emulated); }
  std::uint32_t choice() const { return choice_; }
  const std::string& note() const { return note_; }  // on the choice, for people
  std::string fingerprint() const;

 private:
  Computing(const Setup& setup, std::unique_ptr<libswap::Pool> pool);
  Result<> choose_bf16(std::optional<Bf16> kept);
  Result<> choose_of_device(std::string_view kept);

  // Constant after construction.
  const Setup& setup_;
  const std::unique_ptr<libswap::Pool> pool_;
  const std::unique_ptr<Kernels> host_, adding_;
  std::unique_ptr<Kernels> device_;  // with an accelerator
  libswap::DeviceMemory look_room_;  // there, for what is found of what a trainer keeps there

  // Of the thread that drives.
  std::optional<Bf16> bf16_;
  std::uint32_t choice_ = 0;  // of an accelerator's products
  std::string note_;
};

}  // namespace ebb::libmuon
