// The one symbol that ebb-cuda.so exports.
#include "plugins/cuda/device.h"

extern "C" __attribute__((visibility("default"))) const ebb::libswap::PluginTables* ebb_plugin() {
  static constexpr ebb::libswap::PluginTables kTables = {
      .head = {sizeof(ebb::libswap::PluginTables), ebb::libswap::kPluginVersion},
      .device = &ebb::cuda::kDeviceTable,
      .kernels = &ebb::cuda::kKernelsTable.head,
      .communicator = &ebb::cuda::kRanksTable.head};
  return &kTables;
}
