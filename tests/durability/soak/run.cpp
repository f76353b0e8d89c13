#include "tests/durability/soak/run.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>
#include <utility>

namespace ebb::soak {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience(60);  // for what should take milliseconds
constexpr std::chrono::microseconds kGlance(100);
constexpr std::uint64_t kEndless = 60, kLastSteps = 3;

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

[[noreturn]] void be_leader(const Start& start, Board& board, const Reference& reference) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Ended ended = run_start(start, board, reference);
  std::fflush(nullptr);
  ::_exit(static_cast<int>(ended));
}

}  // namespace

Run::Run(fs::path folder, const Reference& reference, test::Draws& draws,
         std::array<double, kPhases>& seconds_in, Figures& figures)
    : folder_(std::move(folder)),
      reference_(reference),
      draws_(draws),
      seconds_in_(seconds_in),
      figures_(figures),
      places_(figures.runs % 2 == 0 ? Places::shared : Places::separate) {
  fs::create_directories(folder_ / "exports");
}

Run::~Run() {
  std::error_code ignored;
  if (good_) fs::remove_all(folder_, ignored);  // what went wrong stays to be looked at
}

void Run::run(std::uint64_t kills) {
  ++figures_.runs;
  for (std::uint64_t kill = 0; kill < kills; ++kill) {
    const Outcome outcome = start_and_kill(draw_start(), draw_target(kill));
    if (outcome == Outcome::bad) return;
  }
  Start last = draw_start();
  last.steps = kLastSteps;
  if (start_and_kill(last, std::nullopt) == Outcome::ended) ++figures_.identical;
}

// --- what is started ----------------------------------------------------------------------------

Start Run::draw_start() {
  Start start;
  const bool first = !last_.has_value();
  const bool same = !first && draws_.below(3) == 0;  // resumes in place
  test::Training& setup = start.setup;
  if (!first) setup = last_->setup;
  if (first) setup.ranks = 4;
  if (!first && !same) setup.ranks = static_cast<std::uint32_t>(draws_.between(1, 6));
  if (first || !same) setup.tile_bytes = draws_.of(std::vector<std::uint64_t>{4096, 8192, 16384});
  setup.chunk_bytes = draws_.of(std::vector<std::uint64_t>{16000, 40000, 256u << 20});
  if (first || !same)
    setup.gradients = draws_.of(std::vector<Policy>{Policy::zero12, Policy::zero3, Policy::rows});
  if (same) setup.chunk_bytes = last_->setup.chunk_bytes;
  setup.budget_bytes = setup.tile_bytes * draws_.between(2, 12);
  setup.slots = static_cast<std::uint32_t>(draws_.between(2, 4));
  setup.threads = static_cast<std::uint32_t>(draws_.between(1, 2));
  setup.snapshot_every = draws_.between(1, 3);
  start.ranks = figures_.starts % 2 == 0 ? RanksAre::threads : RanksAre::processes;
  start.places = places_;
  start.exports = folder_ / "exports";
  start.committed = committed_;
  start.exported = exported_;
  const std::uint64_t reached = committed_ + 2 * kEndless;  // and what was not promised
  start.steps = reached < Reference::kSteps ? kEndless : 0;
  draw_places(start, !first && setup.ranks == last_->setup.ranks);
  story_ +=
      compose("; {} ranks as {}, {} directories, tiles of {}, budget {}, chunks of {}, {} slots",
              setup.ranks, start.ranks == RanksAre::threads ? "threads" : "processes",
              places_ == Places::shared ? "shared" : "separate", setup.tile_bytes,
              setup.budget_bytes, setup.chunk_bytes, setup.slots);
  return start;
}

// Ranks of another number have new directories, and read those of the starts before.
void Run::draw_places(Start& start, bool same_ranks) {
  if (places_ == Places::shared) {
    start.directories.assign(start.setup.ranks, folder_ / "swap");
    return;
  }
  if (last_) start.sources = last_->sources;
  if (same_ranks) {
    start.directories = last_->directories;
    return;
  }
  if (last_)
    start.sources.insert(start.sources.end(), last_->directories.begin(), last_->directories.end());
  for (std::uint32_t rank = 0; rank < start.setup.ranks; ++rank)
    start.directories.push_back(folder_ / compose("node-{}", folders_++));
}

// Each phase often enough; most kills where there can be a newer generation.
Phase Run::draw_target(std::uint64_t kill) {
  if (kill == 0 && draws_.below(100) < 75) return Phase::create;
  const std::uint64_t draw = draws_.below(100);
  if (draw < 20) return Phase::resume;
  if (draw < 48) return Phase::step;
  if (draw < 72 || places_ == Places::separate) return Phase::snapshot;
  return Phase::write_dcp;
}

// --- starting and killing -----------------------------------------------------------------------

Run::Outcome Run::start_and_kill(const Start& start, std::optional<Phase> target) {
  ++figures_.starts;
  last_ = start;
  const auto board = make_board();
  std::fflush(nullptr);
  const pid_t leader = ::fork();
  EBB_CHECK(leader >= 0);
  if (leader == 0) be_leader(start, *board, reference_);
  ::setpgid(leader, leader);
  const Waited waited = target ? wait_for(*board, leader, *target) : Waited::ended;
  const bool killed = waited == Waited::reached;
  if (killed) kill_somebody(start, *board, leader);
  if (waited == Waited::hung) ::kill(-leader, SIGKILL);
  auto ended = collect(leader);
  if (waited == Waited::hung) ended.reset();
  if (!take_in(start, *board)) return blame("it found other bits, or less than was promised");
  if (!ended) {
    ++figures_.hung;
    return blame("it hung");
  }
  if (killed) return Outcome::killed;
  if (*ended == Ended::in_order) return Outcome::ended;
  ++figures_.refused;
  return blame(board->error.data());
}

Run::Waited Run::wait_for(const Board& board, int leader, Phase target) {
  const bool opening = target == Phase::create || target == Phase::resume;
  const auto end = Clock::now() + kPatience;
  while (Clock::now() < end) {
    // WNOWAIT: it is collected later.
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(leader), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid != 0)
      return Waited::ended;
    const Phase now = board.phase[0];
    const bool there = board.process[0] != 0;
    const bool newer = board.opened > 0 && board.committed > board.began_at;
    if (opening ? there && board.opened == 0 : newer && now == target) {
      // A random moment of this phase, or a little behind it.
      const double length = seconds_in_[index_of(now)];
      sleep_seconds(length * static_cast<double>(draws_.below(1000)) / 1000);
      return Waited::reached;
    }
    std::this_thread::sleep_for(kGlance);
  }
  return Waited::hung;
}

void Run::kill_somebody(const Start& start, const Board& board, int leader) {
  const bool one_rank = start.ranks == RanksAre::processes && draws_.below(2) == 0;
  const auto rank = static_cast<std::uint32_t>(draws_.below(start.setup.ranks));
  const int victim = one_rank ? board.process[rank].load() : 0;
  const bool newer = board.opened > 0 && board.committed > board.began_at;
  if (victim > 0)
    ::kill(victim, SIGKILL);
  else
    ::kill(-leader, SIGKILL);
  const Phase phase = board.phase[victim > 0 ? rank : 0];
  ++figures_.kills;
  figures_.newer += newer ? 1 : 0;
  figures_.of_one_rank += victim > 0 ? 1 : 0;
  ++figures_.by_phase[std::min(index_of(phase), kPhases - 1)];
  story_ += compose(", {} killed in {}", victim > 0 ? compose("rank {}", rank) : "all",
                    kPhaseNames[std::min(index_of(phase), kPhases - 1)]);
}

// Orphans of a leader that was killed are ours (PR_SET_CHILD_SUBREAPER): the next start must find
// their locks gone.
std::optional<Ended> Run::collect(int leader) {
  std::optional<Ended> ended;
  const auto end = Clock::now() + kPatience;
  for (;;) {
    int status = 0;
    const pid_t child = ::waitpid(-1, &status, WNOHANG);
    if (child < 0 && errno == ECHILD) return ended;
    if (child == leader)
      ended = WIFEXITED(status) ? static_cast<Ended>(WEXITSTATUS(status)) : Ended::peer;
    if (child > 0) continue;
    if (Clock::now() > end) break;
    std::this_thread::sleep_for(kGlance);
  }
  ::kill(-leader, SIGKILL);
  while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
  return std::nullopt;
}

// False: what it saw was not what it must be.
bool Run::take_in(const Start& start, const Board& board) {
  committed_ = std::max(committed_, board.committed.load());
  exported_ = std::max(exported_, board.exported.load());
  for (std::size_t i = 0; i < kPhases; ++i)
    if (board.entered[i] > 0)
      seconds_in_[i] = 0.8 * seconds_in_[i] + 0.2e-6 * static_cast<double>(board.spent_us[i]) /
                                                  static_cast<double>(board.entered[i]);
  // What all ranks have taken over lies in their own directories now.
  if (board.opened == start.setup.ranks) {
    for (const fs::path& old : last_->sources) fs::remove_all(old);
    last_->sources.clear();
  }
  return board.wrong_bits == 0 && !board.lost;
}

Run::Outcome Run::blame(const std::string& why) {
  good_ = false;
  std::fprintf(stderr, "soak: %s: %s%s\n", folder_.c_str(), why.c_str(), story_.c_str());
  return Outcome::bad;
}

}  // namespace ebb::soak
