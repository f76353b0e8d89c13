#include "tests/gpu/goals.h"

#include <algorithm>

#include "tools/cli/text.h"

namespace ebb::gpu {
namespace {

using formats::compose;

constexpr double kElementwise = 0.9, kCallerSeconds = 1.5e-3, kOfDisk = 0.95;

std::string why_absent(const Findings& findings, std::string_view who) {
  const auto why = findings.absent.find(who);
  return why == findings.absent.end() ? "no figure of it" : why->second;
}

// How many times as fast we are.
Judged over(const Findings& findings, const char* who, const std::string& what,
            std::optional<double> goal) {
  Judged judged{compose("Newton-Schulz, {}: over {}", what, who), {}, goal};
  const Orthogonalized* const ours = findings.best_of_ours(what);
  const Orthogonalized* const theirs = findings.find(who, what);
  if (ours != nullptr && theirs != nullptr)
    judged.found = theirs->seconds / ours->seconds;
  else
    judged.why = why_absent(findings, who);
  return judged;
}

void judge_newton_schulz(const Scale& scale, const Findings& findings, std::vector<Judged>& goals) {
  const std::string whole = scale.of_7b.text();
  for (const auto& [batch, goal] : scale.goals)
    goals.push_back(over(findings, kKeller, batch.text(), goal));
  goals.push_back(over(findings, kKeller, whole, {}));
  for (const auto& [batch, goal] : scale.goals)
    goals.push_back(over(findings, kGram, batch.text(), 1));
  goals.push_back(over(findings, kGram, whole, 1));
}

// Our own symmetric products are used where they are faster: so much may be noise.
void judge_products(const Scale& scale, const Findings& findings, std::vector<Judged>& goals) {
  constexpr double kNoSlower = 0.97;
  for (const auto& [batch, goal] : scale.goals) {
    const Orthogonalized* const ours = findings.find("ebb torch", batch.text());
    const Orthogonalized* const library = findings.find(kLibrary, batch.text());
    if (ours == nullptr || library == nullptr) continue;
    goals.push_back({compose("Newton-Schulz, {}: products as chosen over cuBLASLt's", batch.text()),
                     library->seconds / ours->seconds, kNoSlower});
  }
}

void judge_elementwise(const Findings& findings, std::vector<Judged>& goals) {
  const Moved* const inside = findings.find_moved(kInside);
  for (const Moved& one : findings.moved) {
    if (one.kind == Moved::Kind::copy) continue;
    Judged judged{compose("{}: of the rate of copies inside", one.what), {}, {}};
    if (one.kind == Moved::Kind::elementwise) judged.goal = kElementwise;
    if (inside != nullptr)
      judged.found = one.rate() / inside->rate();
    else
      judged.why = "no copies inside";
    goals.push_back(std::move(judged));
  }
}

void judge_steps(const Findings& findings, std::vector<Judged>& goals) {
  for (const Stepped& one : findings.steps)
    goals.push_back({compose("step of {} matrices, state on {}: ms of the caller's processor",
                             one.matrices, one.home),
                     1e3 * one.caller_cpu, 1e3 * kCallerSeconds, Judged::Way::at_most});
  for (const Stepped& one : findings.steps)
    goals.push_back(
        {compose("step, state on {}: the larger of computing and moving, of the step", one.home),
         one.of_bound()});
  for (const Stepped& one : findings.steps) {
    if (one.home != "nvme") continue;
    Judged judged{"step, state on nvme: the disk's limit, of the step", {}, kOfDisk};
    if (one.io_note.empty())
      judged.found = one.io_s / one.seconds;
    else
      judged.why = one.io_note;
    goals.push_back(std::move(judged));
  }
}

const char* word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return "ok";
    case Verdict::failed:
      return "FAILED";
    case Verdict::not_measured:
      return "not measured";
    default:
      return "";
  }
}

}  // namespace

Verdict Judged::verdict() const {
  if (!found) return Verdict::not_measured;
  if (!goal) return Verdict::figure;
  return (way == Way::at_least ? *found >= *goal : *found <= *goal) ? Verdict::ok : Verdict::failed;
}

std::vector<Judged> judge(const Scale& scale, const Findings& findings) {
  std::vector<Judged> goals;
  judge_newton_schulz(scale, findings, goals);
  judge_products(scale, findings, goals);
  judge_elementwise(findings, goals);
  judge_steps(findings, goals);
  if (scale.judged) return goals;
  for (Judged& one : goals) {
    one.found.reset();
    one.why = "a small run";
  }
  return goals;
}

std::string text_of(const std::vector<Judged>& goals) {
  tools::Table table(
      {{"verdict"}, {"what"}, {"found", tools::Align::right}, {"goal", tools::Align::right}, {""}});
  for (const Judged& one : goals) {
    const char* const sign = one.way == Judged::Way::at_least ? ">= " : "<= ";
    table.add({word_of(one.verdict()), one.what, one.found ? tools::decimal(*one.found, 2) : "",
               one.goal ? sign + tools::decimal(*one.goal, 2) : "", one.why});
  }
  return table.text();
}

std::size_t count_failed(const std::vector<Judged>& goals) {
  return static_cast<std::size_t>(std::ranges::count_if(
      goals, [](const Judged& one) { return one.verdict() == Verdict::failed; }));
}

}  // namespace ebb::gpu
