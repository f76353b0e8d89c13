// OpenPlugin: a plugin that was loaded, and its device, which fails once and for all.
//
// Every call from any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/device/plugin.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/shared_library.h"

namespace ebb::libswap {

struct OpenPlugin {
  ~OpenPlugin();
  // The answer of a call, as a result. One that is not well is the device's failure.
  Result<> checked(PluginAnswer answer, const PluginWhy& why);
  Result<> status() const;

  SharedLibrary library;
  const PluginTables* tables = nullptr;
  void* device = nullptr;
  std::string name;  // for errors
  mutable Mutex mutex;
  std::optional<Error> failure EBB_GUARDED_BY(mutex);
};

// A plugin's device as its adapters share it; lives until the last of them has gone.
using PluginHandle = std::shared_ptr<OpenPlugin>;

// Whether a plugin's table is the one that was compiled against; Code::unsupported says how not.
Result<> check_table(const std::string& plugin, const char* table, const TableHead* found,
                     const TableHead& wanted);

// Loads it and opens the device of that number; errors are PluginDevice::open()'s.
Result<PluginHandle> open_plugin(const std::string& plugin, std::int32_t index);

}  // namespace ebb::libswap
