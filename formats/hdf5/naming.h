// Where a tensor lies in a file of ours, and what the place of one in any file says. The
// convention: /state/<parameter>/<state>, where a parameter's own slashes are groups.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ebb::formats::hdf5 {

// Root attributes that a file of ours has, and those of its datasets.
constexpr std::string_view kFormatMark = "ebb";
constexpr std::string_view kValuesAttribute = "ebb.values";
constexpr std::string_view kGroupsAttribute = "ebb.groups";
constexpr std::string_view kParamStepsAttribute = "ebb.param_steps";

// {parameter, state}; a path of another shape names itself, with state "tensor".
std::pair<std::string, std::string> identity_of(std::string_view path);

// "/a/b" -> {"a", "b"}
std::vector<std::string> parts_of(std::string_view path);
// The file a stored name means, seen from file `from` of the same folder tree: "sub/a.h5" names
// "rank0.h5" -> "sub/rank0.h5". "" when it is absolute or leads outside.
std::string beside(std::string_view from, std::string_view name);

}  // namespace ebb::formats::hdf5
