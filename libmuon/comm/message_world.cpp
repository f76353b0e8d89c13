#include "ebb/libmuon/comm/message_world.h"

#include <algorithm>
#include <utility>

#include "ebb/libmuon/comm/meeting.h"

namespace ebb::libmuon {
namespace {

using formats::append_le;
using libswap::MutexLock;

constexpr std::uint32_t kNoticeTag = 0;  // channels use the others, two each

}  // namespace

MessageWorld::MessageWorld(std::unique_ptr<Transport> transport, std::chrono::milliseconds limit)
    : transport_(std::move(transport)), limit_(limit) {}

// Whoever sees that this rank has left before it hears, by another way, of whom that was the end
// hears it from here.
MessageWorld::~MessageWorld() {
  end(gave_up(rank()));  // where nobody else has before
  const MutexLock lock(mutex_);
  if (ended_by_) tell_all(*ended_by_);
}

template <typename T>
Result<T> MessageWorld::or_end(Result<T> answer) {
  if (!answer) return end(std::move(answer).error());
  return answer;
}

Result<> MessageWorld::send(Rank to, std::uint32_t tag, ByteVector message) {
  return or_end(transport_->send(to, tag, std::move(message)));
}

Result<std::vector<Rank>> MessageWorld::unsent(std::uint32_t tag) {
  return or_end(transport_->unsent(tag));
}

Result<std::optional<Transport::Arrived>> MessageWorld::receive(std::uint32_t tag) {
  return or_end(transport_->receive(tag));
}

Result<bool> MessageWorld::move(std::uint32_t tag, Transport::Lanes& out, Transport::Lanes& in) {
  return or_end(transport_->move(tag, out, in));
}

Result<std::uint32_t> MessageWorld::open_channel() {
  const MutexLock lock(mutex_);
  if (const End* end = over()) return end->why;
  const std::uint32_t channel = channels_;
  if (2 * (std::uint64_t{channel} + 1) >= transport_->tags())
    return Error{Code::limit, compose("{} communicators of one world: its tags go to {}",
                                      channel + 1, transport_->tags() - 1)};
  ++channels_;
  next_[channel] = 1;
  return channel;
}

void MessageWorld::close_channel(std::uint32_t channel, const Error& why) {
  const MutexLock lock(mutex_);
  const std::uint64_t next = next_[channel];
  if (over() == nullptr) tell_all({rank(), Scope::channel, {{channel, next}}, why});
  next_.erase(channel);
  std::erase_if(ends_, [&](const End& end) {
    return end.scope == Scope::channel && end.first.contains(channel);
  });
}

void MessageWorld::enter(std::uint32_t channel, std::uint64_t meeting) {
  const MutexLock lock(mutex_);
  next_[channel] = meeting;
}

Result<> MessageWorld::still_on(std::uint32_t channel, std::uint64_t meeting) {
  EBB_TRY(listen());
  const MutexLock lock(mutex_);
  for (const End& end : ends_) {
    if (!hits(end, channel, meeting)) continue;
    if (end.scope == Scope::world && end.from != rank()) ended_by_ = end;
    return end.why;
  }
  return {};
}

// A world that ended hits the channels that its end does not name: the sender never had them. Those
// that it had closed before have an end of their own.
bool MessageWorld::hits(const End& end, std::uint32_t channel, std::uint64_t meeting) const {
  const auto known = end.first.find(channel);
  if (known != end.first.end()) return meeting >= known->second;
  return end.scope == Scope::world && std::ranges::none_of(ends_, [&](const End& other) {
           return other.scope == Scope::channel && other.from == end.from &&
                  other.first.contains(channel);
         });
}

Error MessageWorld::end(Error why) {
  const MutexLock lock(mutex_);
  if (const End* end = over()) return end->why;
  tell_all({rank(), Scope::world, next_, why});
  ends_.insert(ends_.begin(), {rank(), Scope::world, {}, why});
  return why;
}

const MessageWorld::End* MessageWorld::over() const {
  const auto end = std::ranges::find(ends_, Scope::world, &End::scope);
  return end == ends_.end() ? nullptr : &*end;
}

// What cannot be told any more is known by the transport's silence.
void MessageWorld::tell_all(const End& end) {
  const ByteVector notice = encode(end);
  for (std::uint32_t peer = 0; peer < size(); ++peer)
    if (Rank{peer} != rank() && !transport_->send(Rank{peer}, kNoticeTag, notice)) return;
}

// A notice about a channel that was closed here concerns nobody.
Result<> MessageWorld::listen() {
  for (;;) {
    EBB_TRY_ASSIGN(const auto arrived, receive(kNoticeTag));
    if (!arrived) return {};
    End end = decode(arrived->from, arrived->message);
    const MutexLock lock(mutex_);
    if (end.scope == Scope::world || !is_closed(end.first.begin()->first))
      ends_.push_back(std::move(end));
  }
}

bool MessageWorld::is_closed(std::uint32_t channel) const {
  return channel < channels_ && !next_.contains(channel);
}

ByteVector MessageWorld::encode(const End& end) {
  ByteVector out;
  append_le(out, end.scope);
  append_le(out, static_cast<std::uint64_t>(end.first.size()));
  for (const auto& [channel, meeting] : end.first) {
    append_le(out, channel);
    append_le(out, meeting);
  }
  append_le(out, static_cast<std::uint64_t>(end.why.message.size()));
  formats::append_text(out, end.why.message);
  formats::append_text(out, end.why.hint);
  return out;
}

MessageWorld::End MessageWorld::decode(Rank from, ByteView notice) {
  formats::ByteReader in(notice);
  End end{.from = from};
  end.scope = in.number<Scope>().value();
  for (auto count = in.number<std::uint64_t>().value(); count > 0; --count) {
    const auto channel = in.number<std::uint32_t>().value();
    end.first[channel] = in.number<std::uint64_t>().value();
  }
  const auto size = in.number<std::uint64_t>().value();
  const auto message = in.take(size).value();
  const auto hint = in.take(in.left()).value();
  end.why = {Code::peer, std::string(formats::text_of(message)),
             std::string(formats::text_of(hint))};
  return end;
}

}  // namespace ebb::libmuon
