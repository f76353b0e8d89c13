// A child made by fork(), as a trainer's data loaders are.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "ebb/formats/core/result.h"

namespace ebb::test_support {

// What `body` answers in a child of this process; what ended the child, if it hangs or crashes.
std::string in_child(const std::function<std::string()>& body);

// The calls that were not refused as those in a child are: "" where all were.
class Refused {
 public:
  template <typename T>
  void expect(std::string_view call, const Result<T>& answer) {
    const bool refused = !answer && answer.error().code == Code::state &&
                         answer.error().message.find("forked") != std::string::npos;
    if (!refused) others_.append(call).append(" ");
  }
  const std::string& others() const { return others_; }

 private:
  std::string others_;
};

}  // namespace ebb::test_support
