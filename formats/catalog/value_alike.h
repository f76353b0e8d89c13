// Whether two values, or groups, say the same, in formats that spell them differently: 2 is 2.0, a
// tuple is a list of the same items, and the order of a dict's keys means nothing.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

struct ValueDifference {
  std::string path;              // from the value to what differs: ".betas.0"; "": all of it
  const Value* left = nullptr;   // nullptr: only on the right
  const Value* right = nullptr;  // nullptr: only on the left
};

// The first ones, `most` at most; they point into the values.
std::vector<ValueDifference> differences(const Value& left, const Value& right, std::size_t most);

bool alike(const Value& left, const Value& right);

// The group that shares a parameter with `wanted`: the one of the same number if it does - names
// may be mere numbers, the same in several groups - else the first that does; nullptr for none.
const GroupEntry* group_sharing(const std::vector<GroupEntry>& groups, const GroupEntry& wanted,
                                std::size_t number);

// Whether any group says whose it is: where none does, that is not recorded.
bool list_params(const std::vector<GroupEntry>& groups);

std::optional<double> number_in(const Value& value);  // an integer or a real
bool is_sequence(const Value& value);                 // a list or a tuple
// Of a dict, as paths have it: text as it is, anything else as Python prints it.
std::string key_text(const Value& key);

}  // namespace ebb::formats
