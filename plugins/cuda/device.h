// What the plugin's parts share: the device that it opened, and answers. Declarations of the plugin
// alone; nothing here is a symbol of anybody else.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "ebb/libmuon/comm/plugin_ranks.h"
#include "ebb/libmuon/kernels/plugin_kernels.h"
#include "ebb/libswap/device/plugin.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::cuda {

using Answer = libswap::PluginAnswer;
using Why = libswap::PluginWhy;

// A device by its primary context, which is made current for one call at a time: not by
// cudaSetDevice(), which would make a context on whatever device a thread has by default.
struct CudaDevice {
  int index = 0;
  std::string name;
  unsigned processors = 1;
  bool hopper = false;  // has the instructions of symmetric.cu
  CUcontext context = nullptr;
  CUresult (*push)(CUcontext) = nullptr;
  CUresult (*pop)(CUcontext*) = nullptr;
  cudaStream_t zeroing = nullptr;
  libswap::Mutex mutex;
  std::vector<cudaEvent_t> spare EBB_GUARDED_BY(mutex);  // marks that nobody needs any more
};

// The device is current in this thread while it lives, and what was before is afterwards.
class Current {
 public:
  explicit Current(const CudaDevice& device) : device_(device) { device.push(device.context); }
  ~Current() {
    CUcontext was = nullptr;
    device_.pop(&was);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const CudaDevice& device_;
};

inline CudaDevice& device_of(void* device) { return *static_cast<CudaDevice*>(device); }
inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

Answer because(Why* why, Answer answer, const std::string& text);
// `doing` names the call that answered.
Answer answer_of(cudaError_t error, const char* doing, Why* why);

extern const libswap::DeviceTable kDeviceTable;
extern const libmuon::KernelsTable kKernelsTable;
extern const libmuon::RanksTable kRanksTable;

}  // namespace ebb::cuda
