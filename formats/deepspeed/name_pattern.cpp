#include "ebb/formats/deepspeed/name_pattern.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ebb/formats/core/json_text.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::size_t kMaxSteps = 1 << 14;
constexpr int kMaxNesting = 32;
constexpr unsigned kMaxRepeats = 256;

std::bitset<256> class_of(char letter) {
  std::bitset<256> chars;
  for (unsigned c = 0; c < 128; ++c) {
    const bool digit = c >= '0' && c <= '9';
    const bool word = digit || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    const char kind = static_cast<char>(letter | 0x20);
    chars[c] = kind == 'd' ? digit : kind == 'w' ? word : space;
  }
  return letter == 'D' || letter == 'W' || letter == 'S' ? ~chars : chars;
}

// REQUIRES: there is one.
std::size_t only_of(const std::bitset<256>& chars) {
  std::size_t c = 0;
  while (!chars[c]) ++c;
  return c;
}

bool is_class(char c) { return std::string_view("dDwWsS").find(c) != std::string_view::npos; }

}  // namespace

// Appends the steps of what it reads; a repeated part is copied.
class NamePattern::Parser {
 public:
  Parser(std::string_view pattern, std::vector<Step>& steps) : rest_(pattern), steps_(steps) {}

  // False: not of the language that is known here, or too large.
  bool run() {
    if (!alternatives(0) || !rest_.empty()) return false;
    return add({.op = Op::match});
  }

 private:
  bool add(Step step) {
    if (steps_.size() >= kMaxSteps) return false;
    steps_.push_back(step);
    return true;
  }
  bool take(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::vector<Step> cut_from(std::size_t first) {
    std::vector<Step> part(steps_.begin() + static_cast<std::ptrdiff_t>(first), steps_.end());
    steps_.resize(first);
    return part;
  }
  // Targets inside a part are relative to where it begins.
  bool put(const std::vector<Step>& part, std::size_t was_at) {
    const std::size_t now = steps_.size();
    for (Step step : part) {
      step.to += now - was_at;
      step.also += now - was_at;
      if (!add(step)) return false;
    }
    return true;
  }

  bool alternatives(int depth) {
    if (depth > kMaxNesting) return false;
    const std::size_t first = steps_.size();
    if (!sequence(depth)) return false;
    while (take('|')) {
      const std::vector<Step> before = cut_from(first);
      if (!add({.op = Op::split, .to = first + 1, .also = first + before.size() + 2}) ||
          !put(before, first))
        return false;
      const std::size_t jump = steps_.size();
      if (!add({.op = Op::jump}) || !sequence(depth)) return false;
      steps_[jump].to = steps_.size();
    }
    return true;
  }

  bool sequence(int depth) {
    while (!rest_.empty() && rest_.front() != '|' && rest_.front() != ')') {
      const std::size_t first = steps_.size();
      if (!atom(depth)) return false;
      while (const auto times = repeats())
        if (!repeat(first, times->first, times->second)) return false;
      if (bad_) return false;
    }
    return true;
  }

  bool atom(int depth) {
    if (take('(')) {
      if (take('?') && !take(':')) {
        if (!take('P') || !take('<')) return false;
        const std::size_t end = rest_.find('>');
        if (end == std::string_view::npos) return false;
        rest_.remove_prefix(end + 1);
      }
      return alternatives(depth + 1) && take(')');
    }
    if (take('^')) return add({.op = Op::at_start});
    if (take('$')) return add({.op = Op::at_end});
    if (take('[')) return set();
    const auto chars = one();
    return chars && add({.op = Op::chars, .chars = *chars});
  }

  // A character, or an escape that stands for some.
  std::optional<Chars> one() {
    Chars chars;
    const char c = rest_.front();
    if (std::string_view("*+?{").find(c) != std::string_view::npos) return std::nullopt;
    rest_.remove_prefix(1);
    if (c == '.') {
      chars = ~chars;
      chars.reset('\n');
      return chars;
    }
    if (c != '\\') return chars.set(static_cast<unsigned char>(c));
    return escaped();
  }

  std::optional<Chars> escaped() {
    if (rest_.empty()) return std::nullopt;
    const char c = rest_.front();
    rest_.remove_prefix(1);
    if (is_class(c)) return class_of(c);
    if (c == 'A' || c == 'Z' || c == 'b' || c == 'B' || (c >= '0' && c <= '9')) return std::nullopt;
    return Chars().set(static_cast<unsigned char>(c == 't' ? '\t' : c == 'n' ? '\n' : c));
  }

  bool set() {
    const bool inverted = take('^');
    Chars chars;
    for (bool first = true; first || !take(']'); first = false) {
      if (rest_.empty()) return false;
      const auto from = member();
      if (!from) return false;
      chars |= *from;
      if (from->count() != 1 || rest_.size() < 2 || rest_[0] != '-' || rest_[1] == ']') continue;
      rest_.remove_prefix(1);
      const auto to = member();
      if (!to || to->count() != 1) return false;
      for (std::size_t c = only_of(*from); c <= only_of(*to); ++c) chars.set(c);
    }
    return add({.op = Op::chars, .chars = inverted ? ~chars : chars});
  }

  std::optional<Chars> member() {
    if (take('\\')) return escaped();
    const auto c = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return Chars().set(c);
  }

  std::optional<unsigned> number() {
    std::optional<unsigned> value;
    while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9') {
      value = value.value_or(0) * 10 + static_cast<unsigned>(rest_.front() - '0');
      if (*value > kMaxRepeats) bad_ = true;
      if (bad_) return std::nullopt;
      rest_.remove_prefix(1);
    }
    return value;
  }

  // How often the atom before comes at least, and at most if there is a most.
  std::optional<std::pair<unsigned, std::optional<unsigned>>> repeats() {
    std::pair<unsigned, std::optional<unsigned>> times;
    if (take('*')) {
      times = {0, std::nullopt};
    } else if (take('+')) {
      times = {1, std::nullopt};
    } else if (take('?')) {
      times = {0, 1};
    } else if (take('{')) {
      const auto least = number();
      times = {least.value_or(0), least};
      if (take(',')) times.second = number();
      if (!take('}') || (times.second && *times.second < times.first)) bad_ = true;
    } else {
      return std::nullopt;
    }
    take('?');  // as few as possible: whether it matches is the same
    if (bad_) return std::nullopt;
    return times;
  }

  bool repeat(std::size_t first, unsigned least, std::optional<unsigned> most) {
    const std::vector<Step> part = cut_from(first);
    for (unsigned i = 0; i < least; ++i)
      if (!put(part, first)) return false;
    if (!most) {
      const std::size_t split = steps_.size();
      if (!add({.op = Op::split, .to = split + 1, .also = split + part.size() + 2}) ||
          !put(part, first))
        return false;
      return add({.op = Op::jump, .to = split});
    }
    for (unsigned i = least; i < *most; ++i) {
      const std::size_t split = steps_.size();
      if (!add({.op = Op::split, .to = split + 1, .also = split + part.size() + 1}) ||
          !put(part, first))
        return false;
    }
    return true;
  }

  std::string_view rest_;
  std::vector<Step>& steps_;
  bool bad_ = false;
};

// The places in the pattern where a name that was read so far may be.
class NamePattern::Threads {
 public:
  Threads(const std::vector<Step>& steps, std::string_view name)
      : steps_(steps), name_(name), seen_(steps.size(), kNever) {}

  // True when the pattern's end is among them.
  bool add(std::size_t first, std::size_t at) {
    waiting_.push_back(first);
    while (!waiting_.empty()) {
      const std::size_t place = waiting_.back();
      waiting_.pop_back();
      if (place >= steps_.size() || seen_[place] == at) continue;
      seen_[place] = at;
      const Step& step = steps_[place];
      if (step.op == Op::match) return true;
      if (step.op == Op::chars) places_.push_back(place);
      if (step.op == Op::jump || step.op == Op::split) waiting_.push_back(step.to);
      if (step.op == Op::split) waiting_.push_back(step.also);
      if ((step.op == Op::at_start && at == 0) || (step.op == Op::at_end && at == name_.size()))
        waiting_.push_back(place + 1);
    }
    return false;
  }

  std::vector<std::size_t> take() { return std::exchange(places_, {}); }

 private:
  static constexpr std::size_t kNever = ~std::size_t{0};
  const std::vector<Step>& steps_;
  std::string_view name_;
  std::vector<std::size_t> seen_;  // where in the name
  std::vector<std::size_t> places_;
  std::vector<std::size_t> waiting_;
};

Result<NamePattern> NamePattern::open(std::string_view pattern) {
  NamePattern opened;
  if (Parser(pattern, opened.steps_).run()) return opened;
  return Error{Code::unsupported,
               compose("the pattern {} of names is none that is read here", json_string(pattern))};
}

bool NamePattern::matches(std::string_view name) const {
  Threads threads(steps_, name);
  if (threads.add(0, 0)) return true;
  for (std::size_t at = 0; at < name.size(); ++at)
    for (const std::size_t place : threads.take())
      if (steps_[place].chars[static_cast<unsigned char>(name[at])] &&
          threads.add(place + 1, at + 1))
        return true;
  return false;
}

}  // namespace ebb::formats::deepspeed
