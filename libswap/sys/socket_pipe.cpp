#include "ebb/libswap/sys/socket_pipe.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <thread>
#include <utility>

#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/fork_lock.h"

namespace ebb::libswap {
namespace {

// Sockets that a child made by fork() closes.
class OfThisProcess {
 public:
  static OfThisProcess& all() {
    static auto* const sockets = new OfThisProcess;  // forks may come at the very end
    return *sockets;
  }
  void add(int socket) {
    const ForkLock lock;
    sockets_.insert(socket);
  }
  void close(Descriptor& socket) {
    const ForkLock lock;
    sockets_.erase(socket.get());
    socket.reset();
  }

 private:
  // No other thread of a child is there to change them.
  OfThisProcess() {
    ::pthread_atfork(nullptr, nullptr, [] {
      for (const int socket : all().sockets_) ::close(socket);
    });
  }

  std::set<int> sockets_;
};

void set_option(int socket, int level, int name, int value) {
  ::setsockopt(socket, level, name, &value, sizeof(value));
}

// A connection over which nothing comes is asked for; one whose bytes nobody confirms ends.
void set_up(int socket) {
  constexpr int kIdleSeconds = 20, kBetweenSeconds = 10, kAsked = 4, kUnconfirmed = 60'000;
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kBetweenSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kAsked);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnconfirmed);
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
}

bool is_tcp(int socket) {
  int protocol = 0;
  socklen_t size = sizeof(protocol);
  return ::getsockopt(socket, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 &&
         protocol == IPPROTO_TCP;
}

bool waits(int number) { return number == EAGAIN || number == EWOULDBLOCK || number == EINTR; }

}  // namespace

SocketPipe::SocketPipe(Descriptor socket)
    : socket_(std::move(socket)), is_tcp_(is_tcp(socket_.get())) {
  if (is_tcp_) set_up(socket_.get());
  OfThisProcess::all().add(socket_.get());
}

SocketPipe::~SocketPipe() { OfThisProcess::all().close(socket_); }

Result<std::size_t> SocketPipe::write(ByteView bytes) {
  const ssize_t count =
      ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count >= 0) return static_cast<std::size_t>(count);
  return waits(errno) ? 0 : bytes.size();
}

Result<std::size_t> SocketPipe::read(std::span<std::byte> into) {
  const ssize_t count = ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
  if (count > 0) return static_cast<std::size_t>(count);
  int none = 0;
  if (count < 0 && !waits(errno)) failure_.compare_exchange_strong(none, errno);
  return std::size_t{0};
}

std::optional<std::string> SocketPipe::over() const {
  std::byte next{};
  const ssize_t count = ::recv(socket_.get(), &next, 1, MSG_DONTWAIT | MSG_PEEK);
  if (count > 0 || (count < 0 && waits(errno))) return std::nullopt;
  int failure = 0;
  if (count < 0) failure_.compare_exchange_strong(failure, errno);
  failure = failure_;
  // A process that ended with bytes unread resets the connection.
  if (failure == 0 || failure == ECONNRESET || failure == EPIPE) return "its process ended";
  return "its connection ended with " + errno_text(failure);
}

void SocketPipe::settle(std::chrono::milliseconds most) const {
  if (!is_tcp_) return;
  const auto end = std::chrono::steady_clock::now() + most;
  const auto is_closed = [this] {
    pollfd closed{socket_.get(), 0, 0};
    return ::poll(&closed, 1, 0) != 0;
  };
  for (int left = 0; !is_closed() && ::ioctl(socket_.get(), SIOCOUTQ, &left) == 0 && left > 0;) {
    if (std::chrono::steady_clock::now() >= end) return;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace ebb::libswap
