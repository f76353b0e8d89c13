// Content as the state dict that torch users expect: what DCP flattens and torch.save nests.
//   {"model": {name: tensor}, "optimizer": {"state": {name: {state: tensor}},
//    "param_groups": [{setting: value, "params": [name, ...]}]}, "step": n, ...}
// Entries that bring a place in a state dict keep it; others go where Catalog::parts says that
// their kind lies. Internal to formats.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/format.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats {

struct StatePlace {
  std::string key;             // the path joined by dots, or the content's own
  std::vector<PathItem> path;  // never empty, but for an object that is one tensor or value
};
struct PlacedValue {
  StatePlace place;
  Value value;
};
struct StateDict {
  std::vector<StatePlace> tensors;  // of content.tensors, in order
  std::vector<PlacedValue>
      values;  // the content's, then its groups and step unless values say them
};

StateDict state_dict_of(const Catalog& content);

// Content of another format, which has no keys, as a state dict: keys and paths, and the names and
// states that a reader will find there.
void respell_as_state_dict(Catalog& content);

// Fails (Code::unsupported) where a tensor that was given another name would be found to be
// something else under its key.
Result<> check_reads_back(const Catalog& content, const StateDict& placed);

// The values of a torch state dict, whose every leaf has a key, as one value for each key at the
// top that leads to values alone: what formats without nesting keep. Code::layout and Code::limit
// for paths that contradict each other or are too deep.
Result<std::vector<ValueEntry>> values_in_one_piece(const Catalog& content);

// The places of a state dict's parts as a value, which other formats keep: what comes back into a
// state dict lies where it lay.
inline constexpr std::string_view kPartsKey = "state_dict_parts";

// For content that leaves a state dict: adds the value where `parts` differ from what is written
// without one ("model", "optimizer", "step"), where tensors are part of neither, where the steps
// of parameters were `counters` in values, and where settings were tensors.
void put_parts(Catalog& content, StepCounters counters);

// How they were counted, as that value says; tensors without one.
StepCounters counters_said(const Catalog& content);

// Keys of tensors that are part of neither, as that value says; none without one.
std::set<std::string> other_tensors(const Catalog& content);

// For content that enters one: content.parts as the value says, and the value is gone. One that
// says nothing sensible is left where it is.
void take_parts(Catalog& content);

}  // namespace ebb::formats
