#include "ebb/libswap/device/device_queue.h"

#include <utility>

#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {

DeviceMark::~DeviceMark() {
  const MutexLock lock(mutex_);
  if (mark_ != nullptr) plugin_->tables->device->release_mark(plugin_->device, mark_);
}

void* DeviceMark::known() const {
  const MutexLock lock(mutex_);
  while (!set_) changed_.wait(mutex_);
  return mark_;
}

void DeviceMark::set(void* mark) {
  const MutexLock lock(mutex_);
  set_ = true;
  mark_ = mark;
  changed_.notify_all();
}

Result<> follow(OpenPlugin& plugin, void* stream, std::span<const Event> events) {
  for (const Event& event : events) {
    if (event.passed()) continue;
    const auto* const mark = dynamic_cast<const DeviceMark*>(event.origin());
    if (mark == nullptr || mark->plugin().get() != &plugin) {
      event.wait();
      continue;
    }
    void* const known = mark->known();
    if (known == nullptr) continue;
    PluginWhy why;
    EBB_TRY(plugin.checked(plugin.tables->device->follow(plugin.device, stream, known, &why), why));
  }
  return {};
}

Result<std::unique_ptr<DeviceQueue>> DeviceQueue::open(PluginHandle plugin) {
  std::unique_ptr<DeviceQueue> queue(new DeviceQueue(std::move(plugin)));
  OpenPlugin& opened = *queue->plugin_;
  PluginWhy why;
  EBB_TRY(opened.checked(opened.tables->device->open_stream(opened.device, &queue->stream_, &why),
                         why));
  EBB_TRY_ASSIGN(queue->giver_, start_thread([raw = queue.get()] { raw->give(); }));
  EBB_TRY_ASSIGN(queue->completer_, start_thread([raw = queue.get()] { raw->complete(); }));
  return queue;
}

DeviceQueue::~DeviceQueue() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    was_asked_.notify_all();
  }
  for (std::thread* thread : {&giver_, &completer_})
    if (thread->joinable()) thread->join();
  if (stream_ != nullptr) plugin_->tables->device->close_stream(plugin_->device, stream_);
}

Event DeviceQueue::add(std::vector<Event> after, Work work) {
  auto mark = std::make_shared<DeviceMark>(plugin_);
  EventSource done(mark);
  const Event event = done.event();
  const MutexLock lock(mutex_);
  asked_.push_back({std::move(after), std::move(work), std::move(mark), std::move(done)});
  was_asked_.notify_all();
  return event;
}

// The caller's stream is marked before this returns: what it is given later does not count.
Event DeviceQueue::behind(void* foreign) {
  auto mark = std::make_shared<DeviceMark>(plugin_);
  EventSource done(mark);
  const Event event = done.event();
  void* known = nullptr;
  PluginWhy why;
  const auto answer = plugin_->tables->device->mark(plugin_->device, foreign, &known, &why);
  if (!plugin_->checked(answer, why)) known = nullptr;
  mark->set(known);
  const MutexLock lock(mutex_);
  given_.push_back({std::move(mark), std::move(done)});
  was_given_.notify_all();
  return event;
}

void DeviceQueue::give() {
  while (true) {
    Asked next;
    {
      const MutexLock lock(mutex_);
      while (asked_.empty() && !ending_) was_asked_.wait(mutex_);
      if (asked_.empty()) {
        all_given_ = true;
        was_given_.notify_all();
        return;
      }
      next = std::move(asked_.front());
      asked_.pop_front();
    }
    next.mark->set(give(next));
    const MutexLock lock(mutex_);
    add_when_memory(given_, {std::move(next.mark), std::move(next.done)});
    was_given_.notify_all();
  }
}

// Null where the device failed. What was given to it before is waited for all the same: whoever is
// let go by an event may free what the work uses.
void* DeviceQueue::give(const Asked& asked) {
  const DeviceTable& table = *plugin_->tables->device;
  PluginWhy why;
  void* mark = nullptr;
  if (plugin_->status() && follow(*plugin_, stream_, asked.after) &&
      plugin_->checked(asked.work(stream_, why), why) &&
      plugin_->checked(table.mark(plugin_->device, stream_, &mark, &why), why))
    return mark;
  table.drain(plugin_->device, stream_);
  for (const Event& event : asked.after) event.wait();
  return nullptr;
}

void DeviceQueue::complete() {
  while (true) {
    Given next;
    {
      const MutexLock lock(mutex_);
      while (given_.empty() && !all_given_) was_given_.wait(mutex_);
      if (given_.empty()) return;
      next = std::move(given_.front());
      given_.pop_front();
    }
    if (void* const mark = next.mark->known(); mark != nullptr) {
      PluginWhy why;
      const auto answer = plugin_->tables->device->wait(plugin_->device, mark, &why);
      static_cast<void>(plugin_->checked(answer, why));
    }
    next.done.pass();
  }
}

}  // namespace ebb::libswap
