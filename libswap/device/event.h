// Event: something that has happened or will, on whatever device. Waiting is the Pool's
// (help_until) or a continuation; an event carries no error: what can fail says so elsewhere.
#pragma once

#include <functional>
#include <memory>

namespace ebb::libswap {

class Event {
 public:
  Event() = default;  // has passed
  bool passed() const;
  // Runs `next` once: at once if the event has passed, else on the thread that lets it pass.
  void then(std::function<void()> next) const;

 private:
  friend class EventSource;
  struct State;
  std::shared_ptr<State> state_;
};

// Where an event comes from.
class EventSource {
 public:
  EventSource();
  Event event() const { return event_; }
  void pass() const;  // once

 private:
  Event event_;
};

}  // namespace ebb::libswap
