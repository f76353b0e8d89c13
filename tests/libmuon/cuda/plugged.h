// The plugin over the stub, and what tests ask of the stub. Where EBB_CUDA_TEST_PLUGIN names
// another plugin, it is that one on a real device, of which nothing can be asked: suites whose name
// has "Stub" in it are not for it (tests/gpu/run).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "ebb/libmuon/kernels/plugin_kernels.h"
#include "ebb/libswap/sys/shared_library.h"
#include "tests/libmuon/cuda/stub_control.h"

namespace ebb::test {

inline std::string tested_plugin() {
  const char* const named = std::getenv("EBB_CUDA_TEST_PLUGIN");
  return named != nullptr ? named : EBB_CUDA_STUB;
}

class Plugged {
 public:
  // `symmetric_from`: rows from which on the device's own symmetric products are faster; 0: it has
  // none.
  explicit Plugged(std::uint32_t late_us = 0, std::uint64_t symmetric_from = 0) {
    make_symmetric(symmetric_from);
    auto opened = libswap::PluginDevice::open(tested_plugin(), 0);
    EBB_CHECK(opened.has_value());
    device_ = *std::move(opened);
    auto made = libmuon::make_plugin_accelerator(*device_);
    EBB_CHECK(made.has_value());
    accelerator_ = *std::move(made);
    call(ebb_stub_late, "ebb_stub_late", late_us);
  }
  ~Plugged() {
    fail(nullptr);
    make_symmetric(0);
    accelerator_.reset();
    device_.reset();
    EXPECT_EQ(allocated(), 0u);
    EXPECT_EQ(pinned(), 0u);
    EXPECT_EQ(call(ebb_stub_contexts, "ebb_stub_contexts"), 0u);
  }

  libswap::PluginDevice& device() { return *device_; }
  libmuon::Accelerator& accelerator() { return *accelerator_; }

  void fail(const char* name, std::uint32_t calls = 0) {
    call(ebb_stub_fail, "ebb_stub_fail", name, calls);
  }
  std::uint64_t calls(const char* name) { return call(ebb_stub_calls, "ebb_stub_calls", name); }
  std::uint64_t allocated() { return call(ebb_stub_allocated, "ebb_stub_allocated"); }
  std::uint64_t pinned() { return call(ebb_stub_pinned, "ebb_stub_pinned"); }
  void make_symmetric(std::uint64_t from, bool wrong = false) {
    call(ebb_stub_symmetric, "ebb_stub_symmetric", from, wrong ? 1u : 0u);
  }

  // A function of the stub's, found in the plugin by its name; the first argument gives its type.
  template <typename Answer, typename... Arguments, typename... Given>
  Answer call(Answer (*)(Arguments...), const char* name, Given... arguments) {
    auto* const function = reinterpret_cast<Answer (*)(Arguments...)>(library_.symbol(name));
    return function != nullptr ? function(arguments...) : Answer();
  }

 private:
  libswap::SharedLibrary library_ = *libswap::SharedLibrary::open(tested_plugin());
  std::unique_ptr<libswap::PluginDevice> device_;
  std::unique_ptr<libmuon::Accelerator> accelerator_;
};

// Numbers of the host, and their copy on the device.
template <typename T>
struct There {
  There(libswap::Device& device, std::vector<T> values, DType dtype)
      : here(std::move(values)),
        memory(*device.allocate(std::max<std::uint64_t>(here.size(), 1) * sizeof(T))),
        type(dtype) {
    libswap::copy(host(), buffer(), {}).wait();
  }
  libswap::Buffer host() {
    return libswap::buffer_of(std::as_writable_bytes(std::span(here))).as(type);
  }
  libswap::Buffer buffer() { return memory.buffer().as(type).sub(0, here.size()); }
  // What the device has behind `done`.
  const std::vector<T>& back(const libswap::Event& done) {
    libswap::copy(buffer(), host(), done).wait();
    return here;
  }

  std::vector<T> here;
  libswap::DeviceMemory memory;
  DType type;
};

}  // namespace ebb::test
