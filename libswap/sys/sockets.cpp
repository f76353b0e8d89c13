#include "ebb/libswap/sys/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "ebb/libswap/sys/errno_error.h"

namespace ebb::libswap {
namespace {

constexpr int kBacklog = 4096;

struct LocalPlace {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t size = 0;

  // A name that begins with a zero has no file.
  explicit LocalPlace(const std::string& name) {
    const std::size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Descriptor stream_socket(int family, int protocol) {
  return Descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol));
}

struct Freed {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Found = std::unique_ptr<addrinfo, Freed>;

Result<Found> look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int failure = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      failure != 0)
    return Error{Code::usage, compose("host \"{}\": {}", host, ::gai_strerror(failure))};
  return Found(found);
}

// Where it listens, as others name it.
void name_of(const Descriptor& socket, std::string& host, std::uint16_t& port) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  auto* const address = reinterpret_cast<sockaddr*>(&bound);
  std::array<char, NI_MAXHOST> name{};
  std::array<char, NI_MAXSERV> number{};
  if (::getsockname(socket.get(), address, &size) != 0 ||
      ::getnameinfo(address, size, name.data(), name.size(), number.data(), number.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return;
  host = name.data();
  port = static_cast<std::uint16_t>(std::strtoul(number.data(), nullptr, 10));
}

// A message's room for one descriptor beside its words.
class Message {
 public:
  explicit Message(std::span<std::byte> words) : place_{words.data(), words.size()} {
    header.msg_iov = &place_;
    header.msg_iovlen = 1;
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  void make_room() {
    header.msg_control = control_.data();
    header.msg_controllen = control_.size();
  }
  void attach(int descriptor) {
    make_room();
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(descriptor));
    std::memcpy(CMSG_DATA(part), &descriptor, sizeof(descriptor));
  }
  Descriptor attached() {
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    if (part == nullptr || part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
      return {};
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(part), sizeof(descriptor));
    return Descriptor(descriptor);
  }

  msghdr header{};

 private:
  iovec place_;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control_{};
};

}  // namespace

Result<Descriptor> listen_locally(const std::string& name) {
  Descriptor socket = stream_socket(AF_UNIX, 0);
  const LocalPlace place(name);
  if (!socket || ::bind(socket.get(), place.get(), place.size) != 0 ||
      ::listen(socket.get(), kBacklog) != 0)
    return errno_error(errno, "listening to processes of this machine");
  return socket;
}

Result<Descriptor> listen_to_network(std::string& host, std::uint16_t& port) {
  constexpr const char* kHint = "name an address of this machine by which the others reach it";
  auto found = look_up(host, /*port=*/0, /*flags=*/0);
  if (!found) return Error{found.error().code, found.error().message, kHint};
  Descriptor socket = stream_socket((*found)->ai_family, IPPROTO_TCP);
  if (!socket) return errno_error(errno, "socket(TCP)");
  if (::bind(socket.get(), (*found)->ai_addr, (*found)->ai_addrlen) != 0 ||
      ::listen(socket.get(), kBacklog) != 0)
    return Error{Code::usage, compose("host \"{}\": {}", host, errno_text(errno)), kHint};
  name_of(socket, host, port);
  return socket;
}

Descriptor accept_one(const Descriptor& listener) {
  return Descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Result<Descriptor> connect_locally(const std::string& name) {
  Descriptor socket = stream_socket(AF_UNIX, 0);
  const LocalPlace place(name);
  if (!socket || ::connect(socket.get(), place.get(), place.size) != 0)
    return Error{Code::peer, errno_text(errno)};
  return socket;
}

Result<Descriptor> begin_to_connect(const std::string& host, std::uint16_t port) {
  EBB_TRY_ASSIGN(const Found found, look_up(host, port, AI_NUMERICHOST | AI_NUMERICSERV));
  Descriptor socket = stream_socket(found->ai_family, IPPROTO_TCP);
  if (!socket ||
      (::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS))
    return Error{Code::peer, errno_text(errno)};
  return socket;
}

Result<> connection_failure(const Descriptor& socket) {
  int failure = 0;
  socklen_t size = sizeof(failure);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failure, &size);
  if (failure != 0) return Error{Code::peer, errno_text(failure)};
  return {};
}

Result<> send_words(const Descriptor& socket, ByteView words, const Descriptor& attached) {
  ByteVector copy(words.begin(), words.end());  // a message's words are not const
  Message message(copy);
  if (attached) message.attach(attached.get());
  const ssize_t count = ::sendmsg(socket.get(), &message.header, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count == static_cast<ssize_t>(words.size())) return {};
  return Error{Code::peer, errno_text(count < 0 ? errno : EAGAIN)};
}

bool receive_words(const Descriptor& socket, std::size_t wanted, ByteVector& words,
                   Descriptor& attached) {
  const std::size_t before = words.size();
  words.resize(wanted);
  const std::span<std::byte> place = std::span(words).subspan(before);
  Message message(place);
  message.make_room();
  const ssize_t count = ::recvmsg(socket.get(), &message.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const bool waits = count < 0 && (errno == EAGAIN || errno == EINTR);
  words.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (count < 0) return waits;
  if (Descriptor came = message.attached()) attached = std::move(came);
  return count > 0;
}

void wait_for_any(std::span<Awaited> sockets, int milliseconds) {
  std::vector<pollfd> polled;
  for (const Awaited& each : sockets)
    polled.push_back({each.socket, static_cast<short>(each.readable ? POLLIN : POLLOUT), 0});
  ::poll(polled.data(), polled.size(), milliseconds);
  for (std::size_t i = 0; i < sockets.size(); ++i) sockets[i].ready = polled[i].revents != 0;
}

}  // namespace ebb::libswap
