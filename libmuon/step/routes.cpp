#include "ebb/libmuon/step/routes.h"

namespace ebb::libmuon {

Routes::Routes(const StatePlan& plan)
    : gradients_to_owners(plan.gradients(), plan.muon_state(), plan.rank()),
      weights_from_owners(plan.muon_state(), plan.weights(), plan.rank()),
      updates_together(plan.updates(), plan.matrices(), plan.rank()),
      results_apart(plan.matrices(), plan.results(), plan.rank()),
      gradients_to_shards(plan.gradients(), plan.shards(), plan.rank()),
      weights_from_shards(plan.shards(), plan.weights(), plan.rank()),
      weights_to_owners(plan.weights(), plan.muon_state(), plan.rank()),
      weights_to_shards(plan.weights(), plan.shards(), plan.rank()),
      adam(adam_ranges(plan)) {}

Reductions::Reductions(const StatePlan& plan, std::uint64_t most_room)
    : to_owners(plan.gradients(), plan.muon_state(), plan.rank(), most_room),
      to_shards(plan.gradients(), plan.shards(), plan.rank(), most_room) {}

}  // namespace ebb::libmuon
