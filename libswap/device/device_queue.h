// DeviceQueue: one stream of a plugin's device and the two threads that serve it. One gives it
// work, in the order of the calls, each piece behind the events it was given; the other lets
// events pass.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "ebb/libswap/device/event.h"
#include "ebb/libswap/device/open_plugin.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

// What the device knows an event of its own by.
class DeviceMark : public EventOrigin {
 public:
  explicit DeviceMark(PluginHandle plugin) : plugin_(std::move(plugin)) {}
  ~DeviceMark() override;
  const PluginHandle& plugin() const { return plugin_; }

  // The device's mark, as soon as there is one; null where nobody need wait for it any more.
  void* known() const;
  void set(void* mark);

 private:
  const PluginHandle plugin_;
  mutable Mutex mutex_;
  mutable Condition changed_;
  bool set_ EBB_GUARDED_BY(mutex_) = false;
  void* mark_ EBB_GUARDED_BY(mutex_) = nullptr;
};

class DeviceQueue {
 public:
  // Gives the stream work. Called by the queue's own thread.
  using Work = std::function<PluginAnswer(void* stream, PluginWhy& why)>;

  static Result<std::unique_ptr<DeviceQueue>> open(PluginHandle plugin);
  ~DeviceQueue();  // waits for its work
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  // The event passes behind the work.
  Event add(std::vector<Event> after, Work work);
  // The same of work that somebody else's stream was given.
  Event behind(void* foreign);

 private:
  struct Asked {
    std::vector<Event> after;
    Work work;
    std::shared_ptr<DeviceMark> mark;
    EventSource done;
  };
  struct Given {
    std::shared_ptr<DeviceMark> mark;
    EventSource done;
  };

  explicit DeviceQueue(PluginHandle plugin) : plugin_(std::move(plugin)) {}
  void give();
  void* give(const Asked& asked);
  void complete();

  const PluginHandle plugin_;
  void* stream_ = nullptr;
  Mutex mutex_;
  Condition was_asked_, was_given_;  // what the giver waits for, and the completer
  std::deque<Asked> asked_ EBB_GUARDED_BY(mutex_);
  std::deque<Given> given_ EBB_GUARDED_BY(mutex_);
  bool ending_ EBB_GUARDED_BY(mutex_) = false;
  bool all_given_ EBB_GUARDED_BY(mutex_) = false;
  std::thread giver_, completer_;
};

// Makes `stream` follow the events: those of the device on the device, others by waiting for them
// here.
Result<> follow(OpenPlugin& plugin, void* stream, std::span<const Event> events);

}  // namespace ebb::libswap
