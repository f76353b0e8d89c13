// What of a conversion's content that is no tensor - values, groups, step counters - a written
// checkpoint lacks or holds differently.
#pragma once

#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"

namespace ebb::formats {

// One line each, which names the key; empty: everything the plan does not list as dropped arrived.
// Every value, group setting, parameter of a group, step of a parameter and the step itself is
// looked for; the written side may hold more. Within one format values are equal in every respect;
// between formats 2 is 2.0 and a tuple is a list of the same items. Groups are paired by their
// parameters, and stand in the order that the plan says; the parameters of a group that have no
// tensor in the content may be missing.
std::vector<std::string> lost_content(const Catalog& content, const EmitPlan& plan,
                                      const Catalog& written);

}  // namespace ebb::formats
