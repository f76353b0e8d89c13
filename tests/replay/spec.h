// What a case asks of the engine: its words as settings of libmuon.
#pragma once

#include "ebb/libmuon/spec/spec.h"
#include "tests/replay/case.h"

namespace ebb::replay {

// Code::usage names a word that is not known, or a scale that its rule does not give.
Result<libmuon::MuonSpec> muon_spec_of(const Fields& spec, const Case& from);
Result<libmuon::AdamSpec> adam_spec_of(const Fields& spec);
// Newton-Schulz alone: an update as gradient becomes -O as weights, from zero, in one step.
libmuon::MuonSpec newton_schulz_alone(libmuon::MuonSpec spec);

}  // namespace ebb::replay
