// What a plugin for a device and we have in common: tables of functions over plain memory. A plugin
// is a shared library that imports no symbol of ours and exports one, kPluginEntry, which answers
// three tables, each with its size and version first: the device here, the kernels and the
// communicator where they are used (libmuon/kernels/plugin_kernels.h, comm/plugin_ranks.h).
//
// Threading: any function from any thread, unless it says otherwise. None waits for work of the
// device unless it says so, none leaves another device current in its caller's thread.
#pragma once

#include <cstdint>

namespace ebb::libswap {

inline constexpr const char* kPluginEntry = "ebb_plugin";

struct TableHead {
  std::uint64_t size = 0;  // bytes of the whole table
  std::uint32_t version = 0;
};

enum class PluginAnswer : std::int32_t {
  done = 0,
  no_memory = 1,
  failed = 2,       // and so will all that comes, if the device itself failed
  unavailable = 3,  // no such device, no driver
};
// Why an answer is not `done`: one line, ended by a zero.
struct PluginWhy {
  char text[256] = {};
};

inline constexpr std::uint32_t kDeviceTableVersion = 1;

// Streams are queues of the device: work on one takes place in order. A mark stands behind what a
// stream was given before it.
struct DeviceTable {
  TableHead head;
  PluginAnswer (*open)(std::int32_t index, void** device, PluginWhy* why);
  void (*close)(void* device);  // behind all that is below
  void (*name)(void* device, char* text, std::uint64_t size);
  // Aligned to 256 bytes at least; not zeroed.
  PluginAnswer (*allocate)(void* device, std::uint64_t bytes, void** memory, PluginWhy* why);
  void (*release)(void* device, void* memory);
  // Waits until it is done.
  PluginAnswer (*zero)(void* device, void* memory, std::uint64_t bytes, PluginWhy* why);
  // Of the host's memory: so that copies need no memory of their own.
  PluginAnswer (*pin)(void* device, void* memory, std::uint64_t bytes, PluginWhy* why);
  void (*unpin)(void* device, void* memory);
  PluginAnswer (*open_stream)(void* device, void** stream, PluginWhy* why);
  void (*close_stream)(void* device, void* stream);  // its work is done
  // Waits until nothing of the stream is under way any more, whatever became of it.
  void (*drain)(void* device, void* stream);
  // Of the host's memory or any device's of the kind.
  PluginAnswer (*copy)(void* device, void* stream, const void* from, void* to, std::uint64_t bytes,
                       PluginWhy* why);
  PluginAnswer (*mark)(void* device, void* stream, void** mark, PluginWhy* why);
  // What `stream` is given next begins behind the mark.
  PluginAnswer (*follow)(void* device, void* stream, void* mark, PluginWhy* why);
  // Waits, asleep, until it is passed.
  PluginAnswer (*wait)(void* device, void* mark, PluginWhy* why);
  void (*release_mark)(void* device, void* mark);
};

inline constexpr std::uint32_t kPluginVersion = 1;

struct PluginTables {
  TableHead head;
  const DeviceTable* device;
  const TableHead* kernels;
  const TableHead* communicator;
};

using PluginEntry = const PluginTables* (*)();

}  // namespace ebb::libswap
