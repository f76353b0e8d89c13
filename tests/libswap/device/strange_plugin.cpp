// A plugin of another version or size, as the build says.
#include "ebb/libswap/device/plugin.h"

extern "C" const ebb::libswap::PluginTables* ebb_plugin() {
  static ebb::libswap::DeviceTable device{};
  device.head = {EBB_DEVICE_SIZE, ebb::libswap::kDeviceTableVersion};
  static ebb::libswap::PluginTables tables{};
  tables.head = {sizeof(tables), EBB_VERSION};
  tables.device = &device;
  return &tables;
}
