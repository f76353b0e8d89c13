#include "ebb/libmuon/comm/socket_listener.h"

#include <sstream>
#include <utility>

#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/sys/sockets.h"

namespace ebb::libmuon {
namespace {

constexpr std::string_view kFirstWord = "ebb-ranks-1";
constexpr std::string_view kNone = "-";

std::string or_none(const std::string& word) { return word.empty() ? std::string(kNone) : word; }

bool is_secret(std::string_view word) {
  return word.size() == SocketAddress::kSecretDigits &&
         word.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::string SocketAddress::text() const {
  return compose("{} {} {} {} {} {} {}", kFirstWord, or_none(machine), or_none(local),
                 or_none(host), port, asked, answered);
}

Result<SocketAddress> SocketAddress::parse(const std::string& text, std::uint32_t rank) {
  std::istringstream words(text);
  SocketAddress address;
  std::string first, more;
  words >> first >> address.machine >> address.local >> address.host >> address.port >>
      address.asked >> address.answered;
  if (!words || first != kFirstWord || (words >> more) || !is_secret(address.asked) ||
      !is_secret(address.answered))
    return Error{Code::usage, compose("the address of rank {} is none: \"{}\"", rank, first),
                 "pass on what SocketListener::address() gave there, of the same build"};
  for (std::string* const word : {&address.machine, &address.local, &address.host})
    if (*word == kNone) word->clear();
  return address;
}

Result<SocketListener> SocketListener::open(const Reach& reach) {
  SocketListener made;
  SocketAddress& address = made.address_;
  EBB_TRY_ASSIGN(address.asked, libswap::random_digits(SocketAddress::kSecretDigits));
  EBB_TRY_ASSIGN(address.answered, libswap::random_digits(SocketAddress::kSecretDigits));
  if (reach.one_machine == OneMachine::memory) address.machine = libswap::machine_word();
  if (!address.machine.empty()) {
    // Whoever reads the name among the machine's sockets lacks the secret.
    EBB_TRY_ASSIGN(address.local, libswap::random_digits(SocketAddress::kSecretDigits));
    EBB_TRY_ASSIGN(made.local_, libswap::listen_locally(address.local));
  }
  if (!reach.host.empty()) {
    address.host = reach.host;
    EBB_TRY_ASSIGN(made.network_, libswap::listen_to_network(address.host, address.port));
  }
  if (made.local_ || made.network_) return made;
  return Error{Code::usage, "nobody could reach this rank: it has no host",
               "name the address by which the other machines reach it"};
}

}  // namespace ebb::libmuon
