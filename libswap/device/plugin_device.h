// PluginDevice: a device that a plugin brings (plugin.h), such as a GPU through ebb-cuda.so. Work
// is asked for by calls that return at once; a thread for each queue gives it to the device when
// what it is behind is known to the device or has passed, and another lets its events pass.
//
// Work of the device that fails fails for good: its events pass, nothing more is computed, and
// status() says why.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ebb/libswap/device/device.h"
#include "ebb/libswap/device/open_plugin.h"

namespace ebb::libswap {

class DeviceQueue;

// Where a device's memory comes from, if not from the plugin: a trainer's own pool. `allocate`
// answers null where there is none.
struct MemorySource {
  std::function<std::byte*(std::uint64_t bytes)> allocate;
  std::function<void(std::byte* memory)> free;
};

class PluginDevice : public Device {
 public:
  // The one place where plugins are loaded. `index`: which of the devices that it sees. Code::io
  // where the plugin or a library it needs is missing, Code::unsupported where the driver or the
  // device is, and where it is no plugin or one of another version; one line says which.
  static Result<std::unique_ptr<PluginDevice>> open(const std::string& plugin, std::int32_t index,
                                                    MemorySource memory = {});
  ~PluginDevice() override;  // REQUIRES: its memory was freed; waits for its work

  std::string name() const override { return name_; }
  Result<DeviceMemory> allocate(std::uint64_t bytes) override;
  Event copy(const Buffer& from, const Buffer& to, const Event& after) override;
  Result<Pinned> pin(std::span<std::byte> host) override;
  Result<> status() const override;

  // A stream of the caller's own, in the device's terms (a cudaStream_t). The event passes behind
  // all that the stream was given before; what it is given after hold() begins behind `event`. An
  // event of another kind is waited for on the host.
  Result<Event> recorded(void* stream);
  Result<> hold(void* stream, const Event& event);

  // For adapters of the plugin's other tables.
  const PluginHandle& handle() const { return plugin_; }

 private:
  PluginDevice() = default;

  PluginHandle plugin_;
  std::string name_;
  MemorySource memory_;
  std::unique_ptr<DeviceQueue> up_, down_, inside_, callers_;
};

}  // namespace ebb::libswap
