// OpenDevice: a plugin's device and what computes steps on it, while a handle or an engine has it.
// Any thread. In a child made by fork() nothing of it is called, and it stays as it is for the
// parent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bindings/c/handles.h"
#include "ebb/libmuon/kernels/plugin_kernels.h"
#include "ebb/libswap/sys/home_process.h"

namespace ebb::c {

class OpenDevice {
 public:
  // Errors: as PluginDevice::open().
  static Result<std::shared_ptr<OpenDevice>> open(const std::string& plugin, std::int32_t index);
  ~OpenDevice();
  OpenDevice(const OpenDevice&) = delete;
  OpenDevice& operator=(const OpenDevice&) = delete;

  std::int32_t index() const { return index_; }
  libswap::PluginDevice& device() { return *device_; }
  libmuon::Accelerator& accelerator() { return *accelerator_; }

 private:
  explicit OpenDevice(std::int32_t index) : index_(index) {}

  const std::int32_t index_;
  const libswap::HomeProcess process_{"device"};
  std::unique_ptr<libswap::PluginDevice> device_;
  std::unique_ptr<libmuon::Accelerator> accelerator_;
};

// What a handle leads to: it can be closed while an engine has the device.
struct DeviceObject {
  std::shared_ptr<OpenDevice> opened;
};
Handles<DeviceObject>& devices();

// The path of ebb-cuda.so beside this library, or in a build tree's bin; "" where there is none.
std::string plugin_beside();

}  // namespace ebb::c
