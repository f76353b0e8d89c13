// The steps that public implementations took, as tests/fixtures/muon has them.
#pragma once

#include <gtest/gtest.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include "tests/libmuon/kernels/numbers.h"

namespace ebb::libmuon::testing {

inline std::string file_text(const std::string& name) {
  std::ifstream file(std::string(EBB_FIXTURES) + "/muon/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The number that follows the given keys, each looked for behind the one before.
inline double number_after(const std::string& text, std::initializer_list<std::string> keys) {
  std::size_t at = 0;
  for (const std::string& key : keys) {
    at = text.find("\"" + key + "\":", at);
    if (at == text.npos) {
      ADD_FAILURE() << "no " << key;
      return 0;
    }
    at += key.size() + 3;
  }
  at = text.find_first_not_of(" [", at);
  double value = 0;
  std::from_chars(text.data() + at, text.data() + text.size(), value);
  return value;
}

class Trace {
 public:
  explicit Trace(const std::string& name)
      : case_(file_text(name + "/case.json")), file_(file_text(name + "/trace.safetensors")) {
    std::uint64_t header = 0;
    std::memcpy(&header, file_.data(), sizeof header);
    header_ = file_.substr(8, header);
    file_.erase(0, 8 + header);
  }

  const std::string& description() const { return case_; }

  std::vector<float> tensor(const std::string& name) const {
    const std::string key = "\"" + name + "\"";
    const std::string entry = header_.substr(header_.find(key + ":"));
    const auto first = static_cast<std::size_t>(number_after(entry, {name, "data_offsets"}));
    const std::string offsets = entry.substr(entry.find("\"data_offsets\""));
    std::size_t end = 0;
    const std::size_t comma = offsets.find(',');
    std::from_chars(offsets.data() + offsets.find_first_not_of(" ", comma + 1),
                    offsets.data() + offsets.size(), end);
    std::vector<float> values((end - first) / sizeof(float));
    std::memcpy(values.data(), file_.data() + first, end - first);
    return values;
  }

  std::vector<float> gradient(int step) const {  // step i uses gradient i - 1 in these cases
    return tensor("grad." + std::to_string(step - 1));
  }

  // Distance of w - param.0 from the trace's at this step.
  double update_distance(const std::string& run, int step, const std::vector<float>& w) const {
    auto ours = w;
    auto theirs = tensor(run + ".param." + std::to_string(step));
    const auto start = tensor("param.0");
    for (std::size_t i = 0; i < w.size(); ++i) {
      ours[i] -= start[i];
      theirs[i] -= start[i];
    }
    return relative_distance(ours, theirs);
  }

 private:
  std::string case_, file_, header_;
};

}  // namespace ebb::libmuon::testing
