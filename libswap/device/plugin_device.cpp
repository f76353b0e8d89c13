#include "ebb/libswap/device/plugin_device.h"

#include <array>
#include <utility>

#include "ebb/libswap/device/device_queue.h"

namespace ebb::libswap {
Result<std::unique_ptr<PluginDevice>> PluginDevice::open(const std::string& plugin,
                                                         std::int32_t index, MemorySource memory) {
  std::unique_ptr<PluginDevice> device(new PluginDevice());
  EBB_TRY_ASSIGN(device->plugin_, open_plugin(plugin, index));
  std::array<char, 256> name{};
  device->plugin_->tables->device->name(device->plugin_->device, name.data(), name.size() - 1);
  device->name_ = device->plugin_->name = name.data();
  device->memory_ = std::move(memory);
  for (auto* queue : {&device->up_, &device->down_, &device->inside_, &device->callers_}) {
    EBB_TRY_ASSIGN(*queue, DeviceQueue::open(device->plugin_));
  }
  return device;
}

PluginDevice::~PluginDevice() = default;

Result<DeviceMemory> PluginDevice::allocate(std::uint64_t bytes) {
  EBB_TRY(status());
  const DeviceTable& table = *plugin_->tables->device;
  const std::string what = compose("{}: no {} bytes of memory", name_, bytes);
  PluginWhy why;
  std::shared_ptr<std::byte> memory;
  if (memory_.allocate != nullptr) {
    std::byte* const raw = memory_.allocate(bytes);
    if (raw == nullptr) return Error{Code::no_memory, what + " from the trainer's source"};
    memory = {raw, memory_.free};
  } else {
    void* raw = nullptr;
    const PluginAnswer answer = table.allocate(plugin_->device, bytes, &raw, &why);
    if (answer == PluginAnswer::no_memory)
      return Error{Code::no_memory, compose("{}: {}", what, why.text)};
    EBB_TRY(plugin_->checked(answer, why));
    memory = {static_cast<std::byte*>(raw), [plugin = plugin_](std::byte* allocated) {
                plugin->tables->device->release(plugin->device, allocated);
              }};
  }
  EBB_TRY(plugin_->checked(table.zero(plugin_->device, memory.get(), bytes, &why), why));
  return DeviceMemory(std::move(memory), bytes, this);
}

Event PluginDevice::copy(const Buffer& from, const Buffer& to, const Event& after) {
  EBB_CHECK(from.device == this || to.device == this);
  EBB_CHECK(from.size() == to.size());
  const std::unique_ptr<DeviceQueue>& queue = from.device == nullptr ? up_
                                              : to.device == nullptr ? down_
                                                                     : inside_;
  return queue->add({after}, [plugin = plugin_, from, to](void* stream, PluginWhy& why) {
    return plugin->tables->device->copy(plugin->device, stream, from.data, to.data, from.size(),
                                        &why);
  });
}

Result<Pinned> PluginDevice::pin(std::span<std::byte> host) {
  PluginWhy why;
  const DeviceTable& table = *plugin_->tables->device;
  const PluginAnswer answer = table.pin(plugin_->device, host.data(), host.size(), &why);
  if (answer == PluginAnswer::no_memory)
    return Error{
        Code::no_memory,
        compose("{}: cannot pin {} bytes of the host's memory: {}", name_, host.size(), why.text),
        "ulimit -l says how much may be locked"};
  EBB_TRY(plugin_->checked(answer, why));
  return Pinned(host.data(), [plugin = plugin_](std::byte* memory) {
    plugin->tables->device->unpin(plugin->device, memory);
  });
}

Result<> PluginDevice::status() const { return plugin_->status(); }

Result<Event> PluginDevice::recorded(void* stream) {
  const Event event = callers_->behind(stream);
  EBB_TRY(status());
  return event;
}

Result<> PluginDevice::hold(void* stream, const Event& event) {
  return follow(*plugin_, stream, {&event, 1});
}

}  // namespace ebb::libswap
