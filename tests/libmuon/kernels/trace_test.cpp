// Twenty steps beside what the public implementations computed (tests/fixtures/muon). A run is
// called as_is (bf16 Newton-Schulz) or fp32 there; tolerances come from each case's own file.
#include <gtest/gtest.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/libmuon/kernels/numbers.h"

namespace ebb::libmuon {
namespace {

using testing::relative_distance;

constexpr std::array kStepsInTrace = {1, 2, 5, 20};

std::string file_text(const std::string& name) {
  std::ifstream file(std::string(EBB_FIXTURES) + "/muon/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The number that follows the given keys, each looked for behind the one before.
double number_after(const std::string& text, std::initializer_list<std::string> keys) {
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

bool in_trace(int step) {
  return std::find(kStepsInTrace.begin(), kStepsInTrace.end(), step) != kStepsInTrace.end();
}

void follow_muon(const std::string& name, MuonSpec spec, std::uint64_t rows, std::uint64_t cols) {
  const Trace trace(name);
  const std::string& text = trace.description();
  const auto tolerance = [&](const std::string& run, const std::string& key) {
    return number_after(text, {"runs", run, "tolerance", key});
  };
  spec.weight_decay = number_after(text, {"runs", "as_is", "weight_decay"});
  Pool pool(2);
  NewtonSchulz newton_schulz(spec, pool);

  auto w = trace.tensor("param.0");
  std::vector<float> m(w.size()), u(w.size()), o(w.size());
  for (int step = 1; step <= 20; ++step) {
    momentum_range(spec, 1.0f, trace.gradient(step), m, u);
    newton_schulz.run(rows, cols, u, o);
    apply_range(spec, rows, cols, o, w);
    if (!in_trace(step)) continue;
    const std::string number = std::to_string(step);
    EXPECT_LE(relative_distance(m, trace.tensor("as_is.momentum." + number)),
              tolerance("as_is", "momentum_vs_trace"));
    EXPECT_LE(trace.update_distance("as_is", step, w),
              tolerance("as_is", "update." + number + "_vs_trace"));
    // Two runs that are each this close to fp64.
    EXPECT_LE(trace.update_distance("fp32", step, w),
              2 * tolerance("fp32", "update." + number + "_vs_fp64"));
  }
  newton_schulz.run(rows, cols, trace.tensor("fp32.U.1"), o);
  EXPECT_LE(relative_distance(o, trace.tensor("fp32.O.1")),
            2 * tolerance("fp32", "O_given_U_vs_fp64"));
}

TEST(Trace, KellerOnAWideGaussianMatrix) {
  follow_muon("keller-wide-gauss", MuonSpec::keller(), 24, 40);
}

TEST(Trace, KellerWhereEpsDecides) { follow_muon("keller-eps", MuonSpec::keller(), 15, 26); }

TEST(Trace, AdamWOfTorch) {
  const Trace trace("adamw-torch");
  const auto tolerance = [&](const std::string& key) {
    return number_after(trace.description(), {"tolerance", key});
  };
  const AdamSpec spec = AdamSpec::torch();
  auto w = trace.tensor("param.0");
  std::vector<float> first(w.size()), second(w.size());
  for (int step = 1; step <= 20; ++step) {
    adamw_range(spec, static_cast<std::uint64_t>(step), 1.0f, trace.gradient(step), w, first,
                second);
    if (step != 1 && step != 5 && step != 20) continue;
    const std::string number = std::to_string(step);
    EXPECT_LE(relative_distance(first, trace.tensor("fused.exp_avg." + number)),
              2 * tolerance("exp_avg"));
    EXPECT_LE(relative_distance(second, trace.tensor("fused.exp_avg_sq." + number)),
              2 * tolerance("exp_avg_sq"));
    EXPECT_LE(trace.update_distance("fused", step, w), 2 * tolerance("update_vs_fp64"));
  }
}

}  // namespace
}  // namespace ebb::libmuon
