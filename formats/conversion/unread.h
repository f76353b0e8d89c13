// What a conversion does about tensors that are not read (Catalog::unread): none of them is lost
// without a word.
#pragma once

#include <string>
#include <vector>

#include "ebb/formats/conversion/request.h"

namespace ebb::formats {

// Those that the request asks for, one line each; what goes without them is for the caller to say.
// Code::unsupported where weights alone are wanted and one of them is not read, or where nothing
// is.
Result<std::vector<std::string>> unread_in(const Catalog& source, const ConvertRequest& request);

// What to do about lines of unread_in.
std::string hint_about_unread(const Catalog& source);

}  // namespace ebb::formats
