// Ranks over what a plugin for a device joins (libswap/device/plugin.h): a trainer's own NCCL
// communicators. Nothing is created: where the engine needs another communicator of the same ranks,
// it takes the next of those that the trainer made for it, because two threads must not share one.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libswap/device/plugin.h"
#include "ebb/libswap/device/plugin_device.h"

namespace ebb::libmuon {

enum class Reduction : std::uint32_t { smallest, sum };

// Of a round, in the device's memory.
struct PlainMessage {
  std::uint32_t peer = 0;
  void* data = nullptr;
  std::uint64_t bytes = 0;
};

inline constexpr std::uint32_t kRanksTableVersion = 1;

// `group`: in the plugin's terms, for CUDA an ncclComm_t. Calls give `stream` work and return.
struct RanksTable {
  using Answer = libswap::PluginAnswer;
  using Why = libswap::PluginWhy;

  libswap::TableHead head;
  Answer (*open)(void* device, void* group, void** ranks, std::uint32_t* rank, std::uint32_t* world,
                 Why* why);
  void (*close)(void* ranks);
  // In place, over numbers in the device's memory.
  Answer (*reduce)(void* ranks, void* stream, std::int64_t* numbers, std::uint64_t count,
                   Reduction reduction, Why* why);
  // Between two ranks the k-th sent is the k-th received.
  Answer (*exchange)(void* ranks, void* stream, const PlainMessage* sends, std::uint64_t send_count,
                     const PlainMessage* receives, std::uint64_t receive_count, Why* why);
  // Whether work that was given fails, of which no call has told.
  Answer (*trouble)(void* ranks, Why* why);
};

// `groups`: of the same ranks on every rank, in the same order: the first for calls on the
// communicator that is answered, one more for each duplicate() (an Engine makes one). All are
// borrowed. Behind Code::peer the caller has to end them (ncclCommAbort) before this is destroyed:
// what waits in a stream for a rank that does not come ends in no other way. Who was silent, NCCL
// does not tell. Code::unsupported where the plugin's table is of another version.
Result<std::unique_ptr<Communicator>> make_plugin_ranks(
    libswap::PluginDevice& device, std::vector<void*> groups,
    std::chrono::milliseconds limit = kPeerLimit);

}  // namespace ebb::libmuon
