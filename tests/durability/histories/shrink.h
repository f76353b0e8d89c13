// Makes a history that fails simpler, as long as it does.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/durability/histories/history.h"

namespace ebb::test {

// The simplifications under which it still fails, all together, to be given to simplified(). Each
// is tried once: what fails now and then may be found to need more than it does.
std::vector<std::string> shrink(const History& history,
                                const std::function<bool(const std::vector<std::string>&)>& fails);

}  // namespace ebb::test
