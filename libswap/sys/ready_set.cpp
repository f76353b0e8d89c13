#include "ebb/libswap/sys/ready_set.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>

#include "ebb/libswap/sys/errno_error.h"

namespace ebb::libswap {

Result<ReadySet> ReadySet::make() {
  ReadySet made;
  made.set_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!made.set_) return errno_error(errno, "epoll_create1");
  return made;
}

Result<> ReadySet::add(int descriptor, std::uint32_t number) {
  epoll_event readable{.events = EPOLLIN, .data = {.u32 = number}};
  if (::epoll_ctl(set_.get(), EPOLL_CTL_ADD, descriptor, &readable) == 0) return {};
  return errno_error(errno, "epoll_ctl");
}

void ReadySet::remove(int descriptor) {
  ::epoll_ctl(set_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

std::vector<std::uint32_t> ReadySet::readable() const {
  std::array<epoll_event, 64> events{};
  const int count =
      ::epoll_wait(set_.get(), events.data(), static_cast<int>(events.size()), /*timeout=*/0);
  std::vector<std::uint32_t> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(events[static_cast<std::size_t>(i)].data.u32);
  return numbers;
}

}  // namespace ebb::libswap
