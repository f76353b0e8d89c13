// What a checkpoint's pickles name beyond what frameworks write into them. Python imports every
// name in a pickle and may call it; nothing is ever called here, whatever its name. The names that
// are known, and who writes them, are listed in known_globals.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/pickle/pickle.h"

namespace ebb::formats {

// How a value is shown that a call of what another call returned would make.
constexpr std::string_view kCallOfAResult = "a call of what another call returned";

// True for enumerations: getattr(class, "MEMBER") is how some Python releases spell a member.
bool is_enumeration(std::string_view name);

// True for known classes that readers never look into; what Python appends to an object of one
// stays in it.
bool is_opaque_class(std::string_view name);

// The first such name in an object that readers do not look into; "" when there is none.
std::string_view unsafe_name_below(const PickleGraph& graph, PickleId id);

// The first name in a value that is not known; "" when all are.
std::string_view unsafe_part(const Value& value);

// A value with such a name.
struct UnsafeValue {
  std::string key;
  std::string name;  // "posix.system"
};
std::vector<UnsafeValue> unsafe_values(const Catalog& catalog);
Error error_of(const UnsafeValue& value, std::string_view checkpoint);

// Fails for names that are not known and in none of the values that were made of the pickle: what
// is called and dropped again leaves nothing that could be shown or left behind.
Result<> refuse_hidden_calls(const PickleGraph& graph, const std::vector<const Value*>& values);

}  // namespace ebb::formats
