#include "tests/durability/histories/run.h"

#include <cctype>
#include <iterator>
#include <sstream>
#include <system_error>

#include "tests/durability/histories/configuration.h"
#include "tests/durability/histories/rank_of_start.h"
#include "tests/durability/machines.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t Tally::* kCounts[] = {&Tally::histories, &Tally::starts,    &Tally::refused,
                                              &Tally::streaming, &Tally::steps,     &Tally::errors,
                                              &Tally::continued, &Tally::went_back, &Tally::moved,
                                              &Tally::committed, &Tally::pinned,    &Tally::read};
static_assert(sizeof(Tally) == std::size(kCounts) * sizeof(std::uint64_t));

// What the ranks of a start answered, in words; the first that says more than that another failed.
std::string first_of(const std::vector<Result<>>& answers) {
  std::string found;
  for (std::size_t rank = 0; rank < answers.size(); ++rank)
    if (!answers[rank] && (found.empty() || answers[rank].error().code != Code::peer)) {
      found = compose("rank {}: {}", rank, answers[rank].error().message);
      if (answers[rank].error().code != Code::peer) break;
    }
  return found;
}

// The same reason, whatever the sizes.
std::string without_numbers(const std::string& text) {
  std::string kept;
  for (const char letter : text)
    if (std::isdigit(static_cast<unsigned char>(letter)) == 0)
      kept += letter;
    else if (kept.empty() || kept.back() != '#')
      kept += '#';
  return kept;
}

class HistoryRun {
 public:
  HistoryRun(const History& history, fs::path directory)
      : history_(history), base_(std::move(directory)), directory_(base_ / "swap") {}

  Verdict run() {
    Verdict verdict;
    verdict.tally.histories = 1;
    const auto wanted = wanted_of(history_.meaning, base_ / "wanted");
    if (!wanted) return {.wrong = "the plain run: " + wanted.error().message};
    auto starts = history_.starts;
    starts.push_back(plain_start(kHistorySteps));
    for (std::size_t i = 0; i < starts.size() && verdict.wrong.empty(); ++i) {
      if (starts[i].until == 0) continue;  // left out
      verdict.wrong = run(starts[i], *wanted, verdict);
      if (!verdict.wrong.empty()) verdict.wrong = compose("start {}: {}", i, verdict.wrong);
    }
    return verdict;
  }

 private:
  std::string run(const Start& start, const Wanted& wanted, Verdict& verdict) {
    const auto config = config_of(history_.meaning, start);
    if (!config) {
      ++verdict.tally.refused;
      verdict.refused.push_back(without_numbers(config.error().message));
      return config.error().code == Code::no_memory ? "the plan: " + config.error().message : "";
    }
    ++verdict.tally.starts;
    const auto plan = libmuon::Engine::plan(*config, Rank{0});
    verdict.tally.streaming += plan && plan->streamed_matrices > 0 ? 1 : 0;
    OfStart of{history_.meaning, start, *config, wanted, directory_, committed_, {}};
    Machines machines([] { return disk(); }, start.ranks);
    const auto answers =
        machines.run([&](libmuon::Communicator& ranks, libswap::IoQueue& io) -> Result<> {
          return RankOfStart(of, ranks, io, machines.faults(index_of(ranks.rank()))).run();
        });
    directory_ = of.directory;
    committed_ = of.committed;
    verdict.tally += of.tally;
    return first_of(answers);
  }

  const History& history_;
  const fs::path base_;
  fs::path directory_;  // where its state is
  std::uint64_t committed_ = 0;
};

}  // namespace

Tally& Tally::operator+=(const Tally& other) {
  for (const auto count : kCounts) this->*count += other.*count;
  return *this;
}

// A line of counts, lines of refusals, an empty one, what is wrong.
std::string to_text(const Verdict& verdict) {
  std::string text;
  for (const auto count : kCounts) text += std::to_string(verdict.tally.*count) + " ";
  for (const std::string& why : verdict.refused) text += "\n" + why;
  return text + "\n\n" + verdict.wrong;
}

Verdict verdict_from(const std::string& text) {
  Verdict verdict;
  std::istringstream lines(text);
  for (const auto count : kCounts) lines >> verdict.tally.*count;
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && !line.empty()) verdict.refused.push_back(line);
  while (std::getline(lines, line)) verdict.wrong += (verdict.wrong.empty() ? "" : "\n") + line;
  if (!lines.eof()) verdict.wrong = "no verdict: " + text;
  return verdict;
}

std::string text_of(const Tally& t) {
  return compose("{} histories of {} starts ({} streaming, {} refused by plan)", t.histories,
                 t.starts, t.streaming, t.refused) +
         compose(", {} steps, {} commits, {} pinned, {} states read; {} errors", t.steps,
                 t.committed, t.pinned, t.read, t.errors) +
         compose(": {} steps continued, {} went back, {} moved to another directory", t.continued,
                 t.went_back, t.moved);
}

Verdict run_history(const History& history, const fs::path& directory) {
  const fs::path own = directory / compose("history-{}", history.seed);
  std::error_code ignored;
  fs::remove_all(own, ignored);
  fs::create_directories(own, ignored);
  Verdict verdict = HistoryRun(history, own).run();
  fs::remove_all(own, ignored);
  return verdict;
}

}  // namespace ebb::test
