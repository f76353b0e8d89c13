// ebb-exchange memory|network WORLD BYTES REPEATS: seconds a round in which each of WORLD
// processes has BYTES for all, in equal parts, itself included; over all rounds, until all are
// done.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/libmuon/support/processes.h"

namespace ebb {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_a_round(libmuon::Communicator& ranks, std::size_t bytes, int repeats) {
  const std::size_t part = bytes / ranks.world();
  std::vector<std::byte> out(part * ranks.world(), std::byte{1}), in(out.size());
  std::vector<libmuon::SendBuffer> sends;
  std::vector<libmuon::ReceiveBuffer> receives;
  for (std::uint32_t peer = 0; peer < ranks.world(); ++peer) {
    sends.push_back(
        {Rank{peer}, libswap::buffer_of(std::span(std::as_const(out)).subspan(peer * part, part))});
    receives.push_back({Rank{peer}, libswap::buffer_of(std::span(in).subspan(peer * part, part))});
  }
  EBB_CHECK(ranks.exchange(sends, receives));  // touches the memory
  EBB_CHECK(ranks.agree(0));
  const auto begin = Clock::now();
  for (int repeat = 0; repeat < repeats; ++repeat) EBB_CHECK(ranks.exchange(sends, receives));
  EBB_CHECK(ranks.agree(0));
  return std::chrono::duration<double>(Clock::now() - begin).count() / repeats;
}

int exchange(const std::vector<std::string>& words) {
  if (words.size() != 4) return 2;
  const libmuon::Reach reach = words[0] == "network" ? test::across_a_network() : libmuon::Reach{};
  const auto world = static_cast<std::uint32_t>(std::stoul(words[1]));
  const auto answers = test::run_processes(
      world, libmuon::kPeerLimit,
      [&](std::unique_ptr<libmuon::Communicator> ranks) {
        const double seconds = seconds_a_round(*ranks, std::stoull(words[2]), std::stoi(words[3]));
        if (ranks->rank() == Rank{0}) std::printf("%.9f\n", seconds);
        return 0;
      },
      reach);
  return std::ranges::all_of(answers, [](int answer) { return answer == 0; }) ? 0 : 1;
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) { return ebb::exchange({argv + 1, argv + argc}); }
