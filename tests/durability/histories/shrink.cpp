#include "tests/durability/histories/shrink.h"

namespace ebb::test {
namespace {

// Whether it says the same of a history in other words: nothing would be learnt.
bool changes(const History& before, const History& after) {
  if (text_of(before.meaning) != text_of(after.meaning)) return true;
  for (std::size_t i = 0; i < before.starts.size(); ++i)
    if (text_of(before.starts[i]) != text_of(after.starts[i])) return true;
  return false;
}

}  // namespace

std::vector<std::string> shrink(const History& history,
                                const std::function<bool(const std::vector<std::string>&)>& fails) {
  std::vector<std::string> names;
  History now = history;
  for (const Simplification& one : simplifications_of(history)) {
    History simpler = now;
    one.apply(simpler);
    if (!changes(now, simpler)) continue;
    names.push_back(one.name);
    if (fails(names))
      now = std::move(simpler);
    else
      names.pop_back();
  }
  return names;
}

}  // namespace ebb::test
