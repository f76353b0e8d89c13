// Event: something that has happened or will, on whatever device. Who computes waits with the Pool
// (help_until), who does not with wait(), or nobody with a continuation. An event carries no error:
// what can fail says so elsewhere.
#pragma once

#include <functional>
#include <memory>
#include <span>

namespace ebb::libswap {

// What a device knows an event of its own by, so that its queues can follow it by themselves.
class EventOrigin {
 public:
  virtual ~EventOrigin() = default;
};

class Event {
 public:
  Event() = default;  // has passed
  bool passed() const;
  // Sleeps until it has.
  void wait() const;
  // Runs `next` once: at once if the event has passed, else on the thread that lets it pass.
  void then(std::function<void()> next) const;
  // Null: of the host, or of several devices.
  const EventOrigin* origin() const;

 private:
  friend class EventSource;
  struct State;
  std::shared_ptr<State> state_;
};

// Passes behind all of them.
Event all_of(std::span<const Event> events);

// Where an event comes from.
class EventSource {
 public:
  EventSource() : EventSource(nullptr) {}
  explicit EventSource(std::shared_ptr<const EventOrigin> origin);
  Event event() const { return event_; }
  void pass() const;  // once

 private:
  Event event_;
};

}  // namespace ebb::libswap
