// What does not go together, and what says so. An option that cannot be with another one has its
// line here; whatever has none must open.
#include "tests/libmuon/covering/runs.h"

namespace ebb::test {
namespace {

const std::vector<std::string_view> kInParts = {"in parts", "in parts, sums kept"};
const std::vector<std::string_view> kStreamed = {"streamed", "streamed in wide strips"};
const std::vector<std::string_view> kDevice = {"a device computes", "gradients there",
                                               "weights there", "the trainer there"};
const std::vector<std::string_view> kWeightsThere = {"weights there", "the trainer there"};
const std::vector<std::string_view> kMastersBound = {"masters in halves", "weights are masters"};
const std::vector<std::string_view> kUpdates = {"updates of some", "updates of all"};

}  // namespace

const std::vector<Refused>& refused() {
  static const std::vector<Refused> all = {
      {{kStreamed, {"state on shards"}}, "matrices are not streamed with Muon's state on shards"},
      {{kStreamed, kInParts}, "matrices are not streamed with partial gradients"},
      {{kStreamed, kDevice}, "matrices are not streamed with an accelerator"},
      {{{"masters in halves"}, kWeightsThere}, "master is not kept as U16 of weights that lie on"},
      {{kMastersBound, {"decay in gradients"}},
       "and decay = l2, which reads it before its momentum"},
      {{kMastersBound, kUpdates}, "and out = update, which binds updates"},
      {{kUpdates, {"weights decay"}}, "an update has no weights to decay"},
      {{{"updates of all"}, {"decay in gradients"}}, "an update has no weights to decay"},
      {{{"momentum in int8"}, {"state on shards"}}, "inside a block of"},
  };
  return all;
}

const std::vector<NotHere>& not_here() {
  static const std::vector<NotHere> all = {
      {{{"over MPI", "over sockets", "over a network"}, {"8 ranks"}},
       "more processes than two cores run in time"},
      // What could hide that no run has any.
      {{{"streamed in wide strips"}, kMastersBound}, "no matrix of the model comes in strips"},
      {{{"streamed in wide strips"}, kUpdates}, "no matrix of the model comes in strips"},
  };
  return all;
}

}  // namespace ebb::test
