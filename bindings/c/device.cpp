#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include "bindings/c/arguments.h"
#include "bindings/c/guarded.h"
#include "bindings/c/open_device.h"
#include "ebb/libswap/sys/shared_library.h"

namespace ebb::c {

Result<std::shared_ptr<OpenDevice>> OpenDevice::open(const std::string& plugin,
                                                     std::int32_t index) {
  std::shared_ptr<OpenDevice> made(new OpenDevice(index));
  EBB_TRY_ASSIGN(made->device_, libswap::PluginDevice::open(plugin, index));
  EBB_TRY_ASSIGN(made->accelerator_, libmuon::make_plugin_accelerator(*made->device_));
  return made;
}

OpenDevice::~OpenDevice() {
  process_.let_go(std::move(accelerator_));
  process_.let_go(std::move(device_));
}

Handles<DeviceObject>& devices() {
  static auto* const all = new Handles<DeviceObject>("device");
  return *all;
}

std::string plugin_beside() {
  const auto file = libswap::SharedLibrary::file_of(reinterpret_cast<const void*>(&ebb_about));
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  const std::array places = {folder / "ebb-cuda.so",
                             (folder / "../bin/ebb-cuda.so").lexically_normal()};
  for (const std::filesystem::path& place : places)
    if (std::error_code none; std::filesystem::exists(place, none)) return place.string();
  return "";
}

namespace {

Result<std::string> plugin_named(const char* given) {
  std::string plugin = given != nullptr ? given : plugin_beside();
  if (!plugin.empty()) return plugin;
  return Error{Code::io, "there is no plugin ebb-cuda.so beside this library",
               "./dev build cuda makes it in Ebb's tree, the wheel ebb-cuda brings it; or name the "
               "one that there is"};
}

Result<> open_device(const char* given, std::int32_t index, ebb_device** place) {
  EBB_TRY(check_place(place, "ebb_device_open: device"));
  EBB_TRY_ASSIGN(const std::string plugin, plugin_named(given));
  auto object = std::make_shared<DeviceObject>();
  EBB_TRY_ASSIGN(object->opened, OpenDevice::open(plugin, index));
  return devices().add(std::move(object), place);
}

}  // namespace
}  // namespace ebb::c

using ebb::c::guarded;

ebb_status ebb_device_open(const char* plugin, int32_t index, ebb_device** device) noexcept {
  return guarded([&] { return ebb::c::open_device(plugin, index, device); });
}

ebb_status ebb_device_name(ebb_device* device, char** name) noexcept {
  return guarded([&]() -> ebb::Result<> {
    EBB_TRY_ASSIGN(const auto object, ebb::c::devices().find(device));
    return ebb::c::answer_text(name, object->opened->device().name(), "ebb_device_name: name");
  });
}

ebb_status ebb_device_close(ebb_device* device) noexcept {
  return guarded([&]() -> ebb::Result<> {
    EBB_TRY(ebb::c::devices().remove(device));
    return {};
  });
}
