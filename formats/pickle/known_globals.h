// What a checkpoint's pickles name beyond what frameworks write into them. Python imports every
// name in a pickle and may call it; nothing is ever called here, whatever its name. The names that
// are known, and who writes them, are listed in known_globals.cpp.
#pragma once

#include <map>
#include <optional>
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

// True for a class of a package whose classes are tensors, and what those keep beside elements.
bool is_tensor_class(std::string_view name);

// getattr(class, "member") of such a class: a class inside it, or the function that makes a tensor.
struct TensorClassMember {
  std::string_view type;
  std::string_view member;
};
std::optional<TensorClassMember> member_of_tensor_class(const PickleGraph& graph, PickleId id);

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

// Fails for names that are not known and in none of the values that were made of the pickle.
Result<> refuse_hidden_calls(const PickleGraph& graph, const std::vector<const Value*>& values);

// The names that are not known of all pickles of a checkpoint. What is called where no reader
// looks, or dropped again by the pickle itself, is part of no value: it becomes one, so that it is
// shown and left behind like others.
class UnknownNames {
 public:
  // `file`: the pickle's, as the checkpoint's tree calls it.
  void look_at(const PickleGraph& graph, const std::string& file);
  // Adds a value for each name that no value or setting shows: "pickle of <file>", and from the
  // second of a file on its number behind it.
  void show_in(Catalog& catalog) const;
  // A checkpoint that cannot be read may owe that to a name: fails as refuse_hidden_calls does.
  Result<> refuse() const;

 private:
  struct Use {
    std::string file;
    std::string where;  // file:offset, for messages
  };
  std::map<std::string, Use, std::less<>> first_use_;
};

}  // namespace ebb::formats
