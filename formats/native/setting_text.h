// Settings of a group are text in a manifest. Which value a text means, and which text a value
// gets. Internal to formats/native.
#pragma once

#include <string>

#include "ebb/formats/catalog/value.h"

namespace ebb::formats::native {

// A number; "true" or "false"; JSON (value_json.h) when it begins with '[', '{' or '"' or is
// "null"; else the word itself.
Value setting_value(const std::string& text);

// The text that setting_value() turns into this value.
std::string setting_text(const Value& value);

}  // namespace ebb::formats::native
