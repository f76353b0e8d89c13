// What happens to processes only: peers that are killed, stopped or cut off, strangers at the door,
// children that outlive their rank. Over shared memory and as between machines.
#include "ebb/libmuon/comm/socket_ranks.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "ebb/libswap/sys/process.h"
#include "tests/libmuon/comm/kinds.h"
#include "tests/libmuon/comm/ranks_contract.h"
#include "tests/support/longer_limits.h"

namespace ebb::libmuon {
namespace {

using Ranks = std::unique_ptr<Communicator>;

// What the processes of a test tell each other beside their ranks: made before they are.
struct Shared {
  std::atomic<pid_t> pid = 0;
  std::atomic<int> others = 0;  // that saw what they were to
  std::atomic<int> agreed = 0;  // that have agreed once
  std::atomic<bool> link_is_down = false;

  static Shared* make() {
    void* const place =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EBB_CHECK(place != MAP_FAILED);
    return new (place) Shared;
  }
};

class SocketRanks : public testing::TestWithParam<OneMachine> {
 protected:
  Shared& shared() { return *shared_; }
  static std::vector<int> run(std::uint32_t world, milliseconds limit, const RankBody& body) {
    return answers_of(world, limit, body, reach());
  }
  static Reach reach() {
    return GetParam() == OneMachine::memory ? Reach{} : test::across_a_network();
  }

 private:
  Shared* const shared_ = Shared::make();
};
INSTANTIATE_TEST_SUITE_P(Both, SocketRanks,
                         testing::Values(OneMachine::memory, OneMachine::network),
                         [](const auto& each) {
                           return each.param == OneMachine::memory ? "Memory" : "Network";
                         });

TEST_P(SocketRanks, AKilledProcessIsAPeerErrorOnAllOthers) {
  for (int number = 0; number < 3; ++number) {
    const auto answers = run(3, kPeerLimit, [&](Communicator& comm) {
      EXPECT_TRUE(comm.agree(0));
      if (index_of(comm.rank()) == 2) ::kill(::getpid(), SIGKILL);
      expect_error(call(comm, number), Code::peer, "rank 2 is gone: its process ended");
      expect_error(call(comm, number), Code::peer, "rank 2 is gone: its process ended");
    });
    EXPECT_EQ(answers, (std::vector<int>{0, 0, -SIGKILL}));
  }
}

// At any moment: between and inside of calls, of which the others finish those that they can.
TEST_P(SocketRanks, AProcessThatIsKilledAtAnyMomentLeavesNobodyWaiting) {
  std::mt19937_64 draw(11);
  for (int repeat = 0; repeat < 12; ++repeat) {
    const std::uint64_t microseconds = draw() % 20'000;
    const auto answers = run(3, kPeerLimit, [&](Communicator& comm) {
      if (index_of(comm.rank()) == 1)
        std::thread([microseconds] {
          std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
          ::kill(::getpid(), SIGKILL);
        }).detach();
      Round round(comm, 64u << 10);
      Result<> answer;
      while (answer) answer = comm.exchange(round.sends, round.receives);
      EXPECT_EQ(answer.error().code, Code::peer);
      EXPECT_EQ(answer.error().message, "rank 1 is gone: its process ended");
    });
    EXPECT_EQ(answers, (std::vector<int>{0, -SIGKILL, 0}));
  }
}

TEST_P(SocketRanks, AStoppedProcessIsNamedSoonerThanInTwiceTheLimit) {
  const auto both_name_it = [&](milliseconds limit) {
    const auto named =
        compose("rank 2 kept the others waiting in exchange for {} ms, which is the limit",
                static_cast<std::uint64_t>(limit.count()));
    shared().others = 0;
    const auto answers = run(3, limit, [&](Communicator& comm) {
      if (index_of(comm.rank()) == 2) shared().pid = ::getpid();
      const bool begun = comm.agree(0).has_value();
      if (index_of(comm.rank()) == 2) {
        if (begun) ::raise(SIGSTOP);
        return;
      }
      const Alarm twice(2 * limit);
      Round round(comm, 1u << 20);
      const Result<> answer = comm.exchange(round.sends, round.receives);
      if (!answer && answer.error().message == named && !twice.rang()) ++shared().others;
      if (shared().pid > 0) ::kill(shared().pid, SIGKILL);
    });
    return shared().others == 2 && answers == std::vector<int>{0, 0, -SIGKILL};
  };
  EXPECT_TRUE(test_support::holds_within_some_limit(kLimit, both_name_it));
}

// A data loader's worker, say, has its parent's sockets for as long as it lives.
TEST_P(SocketRanks, ADeadRanksChildIsNotTakenForTheRank) {
  const auto answers = run(2, kPeerLimit, [&](Communicator& comm) {
    EXPECT_TRUE(comm.agree(0));
    if (index_of(comm.rank()) == 1) {
      const pid_t child = ::fork();
      if (child == 0) ::pause();
      shared().pid = child;
      ::kill(::getpid(), SIGKILL);
    }
    expect_error(agreed(comm, 0), Code::peer, "rank 1 is gone: its process ended");
    EXPECT_EQ(::kill(shared().pid, SIGKILL), 0);
  });
  EXPECT_EQ(answers, (std::vector<int>{0, -SIGKILL}));
}

TEST_P(SocketRanks, WhoLeavesBehindItsLastBytesHasDeliveredThem) {
  const auto answers = run(2, kPeerLimit, [&](Communicator& comm) {
    Round round(comm, 3u << 20);
    EXPECT_TRUE(comm.exchange(round.sends, round.receives));
    EXPECT_TRUE(round.arrived(comm));
    if (index_of(comm.rank()) == 1) expect_error(agreed(comm, 0), Code::peer, "rank 0 gave up");
  });
  EXPECT_EQ(answers, (std::vector<int>{0, 0}));
}

TEST_P(SocketRanks, SixteenProcessesAreAWorld) {
  const auto answers = run(16, kPeerLimit, [&](Communicator& comm) {
    for (int repeat = 0; repeat < 5; ++repeat) {
      const std::int64_t me = index_of(comm.rank());
      const auto smallest = comm.agree((me + repeat) % 16);
      ASSERT_TRUE(smallest);
      EXPECT_EQ(*smallest, 0);
      std::vector<std::int64_t> numbers = {1, me};
      ASSERT_TRUE(comm.sum(numbers));
      EXPECT_EQ(numbers, (std::vector<std::int64_t>{16, 120}));
      Round round(comm, 1000);
      ASSERT_TRUE(comm.exchange(round.sends, round.receives));
      EXPECT_TRUE(round.arrived(comm));
    }
  });
  EXPECT_EQ(answers, std::vector<int>(16, 0));
}

// What lies between two ranks does not grow with the round, however slow one of them is.
TEST_P(SocketRanks, ARoundTakesNoMemoryBesideWhatIsPromised) {
  const auto answers = run(2, kPeerLimit, [&](Communicator& comm) {
    std::vector<std::byte> out(96u << 20, std::byte{1}), in(96u << 20, std::byte{2});
    const Rank peer{1 - index_of(comm.rank())};
    const std::vector<SendBuffer> sends = {{peer, of(out)}};
    const std::vector<ReceiveBuffer> receives = {{peer, of(in)}};
    const std::uint64_t before = libswap::peak_resident_bytes();
    EXPECT_TRUE(comm.exchange(sends, receives));
    EXPECT_EQ(in, out);
    EXPECT_LE(libswap::peak_resident_bytes() - before, kMostRanksBytes);
  });
  EXPECT_EQ(answers, (std::vector<int>{0, 0}));
}

// Two threads of each rank, each with a communicator of its own and rounds of its own sizes.
TEST_P(SocketRanks, RoundsOfDuplicatesGoSideBySide) {
  const auto answers = run(3, kPeerLimit, [&](Communicator& comm) {
    auto other = comm.duplicate();
    ASSERT_TRUE(other);
    const auto rounds = [](Communicator& ranks, std::uint64_t seed) {
      std::mt19937_64 draw(seed);
      for (int repeat = 0; repeat < 40; ++repeat) {
        Round round(ranks, draw() % 3 == 0 ? draw() % 400'000 : draw() % 100);
        ASSERT_TRUE(ranks.exchange(round.sends, round.receives));
        ASSERT_TRUE(round.arrived(ranks)) << repeat;
      }
    };
    std::thread beside([&] { rounds(**other, 5); });
    rounds(comm, 6);
    beside.join();
  });
  EXPECT_EQ(answers, (std::vector<int>{0, 0, 0}));
}

// --- becoming a world --------------------------------------------------------------------------

struct Listening {
  std::vector<SocketListener> listeners;
  std::vector<std::string> addresses;
};
Listening listening(std::uint32_t world, const Reach& reach) {
  Listening all;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    auto listener = SocketListener::open(reach);
    EXPECT_TRUE(listener);
    all.addresses.push_back(listener->address());
    all.listeners.push_back(*std::move(listener));
  }
  return all;
}

// What rank `rank` is answered, alone.
Result<Ranks> alone(Listening all, std::uint32_t rank, milliseconds limit = kLimit) {
  return make_socket_ranks(std::move(all.listeners[rank]), Rank{rank}, all.addresses, limit);
}

void expect_refused(const Result<Ranks>& ranks, Code code, const std::string& message) {
  ASSERT_FALSE(ranks);
  EXPECT_EQ(ranks.error().code, code);
  EXPECT_EQ(ranks.error().message, message);
}

TEST_P(SocketRanks, WhoDoesNotComeIsNamed) {
  const Alarm twice(2 * kLimit);
  expect_refused(alone(listening(4, reach()), 1), Code::peer,
                 "ranks 0, 2, 3 did not connect with rank 1 within 400 ms, which is the limit");
  EXPECT_FALSE(twice.rang());
}

TEST_P(SocketRanks, WhoIsGoneBeforeItIsConnectedIsNamed) {
  Listening all = listening(2, reach());
  const std::string mine = all.addresses[1];
  SocketListener listener = std::move(all.listeners[1]);
  all.listeners.clear();
  const auto ranks = make_socket_ranks(std::move(listener), Rank{1}, all.addresses, kPeerLimit);
  ASSERT_FALSE(ranks);
  EXPECT_EQ(ranks.error().message.find("rank 1 cannot connect with rank 0: "), 0u)
      << ranks.error().message;
}

libswap::Descriptor knock(const SocketAddress& address) {
  if (address.machine.empty()) {
    libswap::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(address.port);
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&place), sizeof(place)), 0);
    return socket;
  }
  libswap::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un place{.sun_family = AF_UNIX, .sun_path = {}};
  address.local.copy(place.sun_path + 1, address.local.size());
  EXPECT_EQ(
      ::connect(socket.get(), reinterpret_cast<sockaddr*>(&place),
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.local.size())),
      0);
  return socket;
}

// Silent ones, ones that say too little, other things, or almost the secret, and ones that go.
TEST_P(SocketRanks, StrangersAtTheDoorTakeNobodysPlace) {
  Listening all = listening(3, reach());
  const auto address = SocketAddress::parse(all.addresses[0], 0);
  ASSERT_TRUE(address);
  std::string almost = address->asked;
  almost.back() = almost.back() == '0' ? '1' : '0';
  const std::string from_1("\1\0\0\0\0\0\0\0", 8);  // its words
  std::vector<libswap::Descriptor> strangers;
  for (const std::string& said :
       {std::string(), std::string("GET / HTTP/1.1\r\n"), std::string(4000, 'x'), almost + from_1,
        address->asked.substr(0, 20), address->asked + std::string(8, '\x7f')}) {
    strangers.push_back(knock(*address));
    ASSERT_EQ(::send(strangers.back().get(), said.data(), said.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(said.size()));
  }
  strangers.push_back(knock(*address));
  strangers.pop_back();
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      const auto comm =
          make_socket_ranks(std::move(all.listeners[rank]), Rank{rank}, all.addresses, kPeerLimit);
      ASSERT_TRUE(comm) << comm.error().message;
      Round round(**comm);
      EXPECT_TRUE((*comm)->exchange(round.sends, round.receives));
      EXPECT_TRUE(round.arrived(**comm));
    });
  for (std::thread& rank : ranks) rank.join();
}

// A process that got a rank's port after that ended, say.
TEST_P(SocketRanks, WhoListensInARanksPlaceIsFoundOut) {
  Listening all = listening(2, reach());
  const auto impostor = SocketListener::open(reach());
  ASSERT_TRUE(impostor);
  auto address = SocketAddress::parse(all.addresses[0], 0);
  ASSERT_TRUE(address);
  address->local = impostor->about().local;
  address->port = impostor->about().port;
  all.addresses[0] = address->text();
  const int door =
      GetParam() == OneMachine::memory ? impostor->local().get() : impostor->network().get();
  std::thread beside([&] {
    pollfd somebody{door, POLLIN, 0};
    ::poll(&somebody, 1, /*timeout=*/60'000);
    const libswap::Descriptor socket(::accept(door, nullptr, nullptr));
    const std::string said(SocketAddress::kSecretDigits, 'a');
    ::send(socket.get(), said.data(), said.size(), MSG_NOSIGNAL);
    std::string heard(1000, ' ');
    while (::recv(socket.get(), heard.data(), heard.size(), 0) > 0) {
    }
  });
  expect_refused(alone(std::move(all), 1, kPeerLimit), Code::peer,
                 "rank 1 cannot connect with rank 0: somebody else listens there");
  beside.join();
}

TEST_P(SocketRanks, WhatIsNoAddressIsRefusedBeforeAnythingIsConnected) {
  const auto with = [](const std::function<void(Listening&)>& change) {
    Listening all = listening(3, reach());
    change(all);
    return alone(std::move(all), 2);
  };
  expect_refused(with([](Listening& all) { all.addresses[1] = "10.0.0.7:29500"; }), Code::usage,
                 "the address of rank 1 is none: \"10.0.0.7:29500\"");
  expect_refused(with([](Listening& all) { all.addresses[1] += " more"; }), Code::usage,
                 "the address of rank 1 is none: \"ebb-ranks-1\"");
  expect_refused(with([](Listening& all) { all.addresses[1] = all.addresses[0]; }), Code::usage,
                 "ranks 0 and 1 have the same address");
  expect_refused(with([](Listening& all) { std::swap(all.addresses[1], all.addresses[2]); }),
                 Code::usage,
                 "the address of rank 2 is not that of the listener which is to be rank 2");
  expect_refused(with([](Listening& all) { all.addresses.resize(2); }), Code::usage,
                 "rank 2 in a world of 2 addresses");
}

TEST_P(SocketRanks, LimitsThatDifferAreRefusedOnAll) {
  Listening all = listening(2, reach());
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      expect_refused(make_socket_ranks(std::move(all.listeners[rank]), Rank{rank}, all.addresses,
                                       milliseconds(60'000 + rank)),
                     Code::usage, "rank 0 waits 60000 ms for its peers, rank 1 60001 ms");
    });
  for (std::thread& rank : ranks) rank.join();
}

TEST(SocketListeners, RanksOfTwoMachinesNeedAHost) {
  Listening all = listening(2, {});
  auto other = SocketAddress::parse(all.addresses[0], 0);
  ASSERT_TRUE(other);
  other->machine = "another";
  all.addresses[0] = other->text();
  expect_refused(alone(std::move(all), 1), Code::usage,
                 "rank 0 listens on its machine alone, and rank 1 is on another");
}

TEST(SocketListeners, AHostThatIsNotThisMachinesIsRefused) {
  for (const char* const host : {"192.0.2.77", "no such name"}) {
    const auto listener = SocketListener::open({.host = host});
    ASSERT_FALSE(listener);
    EXPECT_EQ(listener.error().code, Code::usage);
    EXPECT_NE(listener.error().message.find(host), std::string::npos) << listener.error().message;
  }
}

TEST(SocketListeners, TooFewDescriptorsAreSaidBefore) {
  const auto said = test_support::in_child([] {
    const rlimit few{40, 40};
    ::setrlimit(RLIMIT_NOFILE, &few);
    const auto ranks = alone(listening(4, {}), 0);
    return ranks ? "made" : ranks.error().message;
  });
  EXPECT_NE(said.find(" open descriptors are wanted, and this process may have 40"),
            std::string::npos)
      << said;
}

// --- a machine that vanishes -------------------------------------------------------------------

// The state of the loopback device of this process's network.
bool set_loopback(bool up) {
  const libswap::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq device{};
  std::string_view("lo").copy(device.ifr_name, IFNAMSIZ - 1);
  if (::ioctl(socket.get(), SIOCGIFFLAGS, &device) != 0) return false;
  const int flags = up ? device.ifr_flags | IFF_UP : device.ifr_flags & ~IFF_UP;
  device.ifr_flags = static_cast<short>(flags);
  return ::ioctl(socket.get(), SIOCSIFFLAGS, &device) == 0;
}

// Waits for what others do beside their ranks. False: not within the limit.
bool happens(const std::function<bool()>& what, milliseconds limit) {
  for (const auto end = Clock::now() + limit; !what();) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

// Rank 0 takes the link down when all have agreed once: a rank that is still about to has failed
// for another reason. Counts who named the others, and soon enough.
void lose_the_link(Communicator& comm, milliseconds limit, Shared& shared) {
  static const std::string others[] = {"ranks 1, 2", "ranks 0, 2", "ranks 0, 1"};
  if (!comm.agree(0)) return;
  ++shared.agreed;
  if (!happens([&] { return shared.agreed == 3; }, limit)) return;
  if (index_of(comm.rank()) == 0) shared.link_is_down = set_loopback(false);
  if (!happens([&] { return shared.link_is_down.load(); }, limit)) return;
  const auto named =
      compose("{} kept the others waiting in agree for {} ms, which is the limit",
              others[index_of(comm.rank())], static_cast<std::uint64_t>(limit.count()));
  const Alarm twice(2 * limit);
  const auto answer = comm.agree(0);
  if (answer || answer.error().code != Code::peer || twice.rang()) return;
  if (answer.error().message == named)
    ++shared.others;
  else
    std::fprintf(stderr, "%s\n", answer.error().message.c_str());
}

TEST(SocketRanksOfANetwork, WhoseLinkGoesDownAreNamedSoonerThanInTwiceTheLimit) {
  const auto said = test_support::in_child([]() -> std::string {
    if (::unshare(::geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) != 0 ||
        !set_loopback(true))
      return "this system allows no network of a process's own";
    const auto all_name_the_others = [](milliseconds limit) {
      Shared& shared = *Shared::make();
      EBB_CHECK(set_loopback(true));
      answers_of(
          3, limit, [&](Communicator& comm) { lose_the_link(comm, limit, shared); },
          test::across_a_network());
      return shared.others == 3;
    };
    return test_support::holds_within_some_limit(kLimit, all_name_the_others)
               ? ""
               : "a rank did not name the others in time";
  });
  if (said.starts_with("this system")) GTEST_SKIP() << said;
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace ebb::libmuon
