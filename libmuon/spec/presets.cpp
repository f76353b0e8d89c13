#include "ebb/libmuon/spec/presets.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/core/nearest.h"
#include "ebb/formats/core/number_text.h"

namespace ebb::libmuon {
namespace {

enum class Beyond : std::uint8_t { last_again, all_again };

constexpr std::array kSimple = {Coefficients{3.4445f, -4.7750f, 2.0315f}};
constexpr std::array kQuintic = {
    Coefficients{4.0848f, -6.8946f, 2.9270f}, Coefficients{3.9505f, -6.3029f, 2.6377f},
    Coefficients{3.7418f, -5.5913f, 2.3037f}, Coefficients{2.8769f, -3.1427f, 1.2046f},
    Coefficients{2.8366f, -3.0525f, 1.2012f}};
constexpr std::array kPolarExpress = {
    Coefficients{8.2051f, -22.9019f, 16.4607f}, Coefficients{4.0664f, -2.8612f, 0.5184f},
    Coefficients{3.9096f, -2.8234f, 0.5250f},   Coefficients{3.2856f, -2.4153f, 0.4853f},
    Coefficients{2.2779f, -1.6198f, 0.3985f},   Coefficients{1.8726f, -1.2307f, 0.3585f},
    Coefficients{1.8564f, -1.2132f, 0.3568f},   Coefficients{1.8750f, -1.2500f, 0.3750f}};
constexpr std::array kCans = {
    Coefficients{8.4703f, -25.1081f, 18.6293f}, Coefficients{4.1828f, -3.1087f, 0.5806f},
    Coefficients{3.9619f, -2.9541f, 0.5630f}, Coefficients{3.2866f, -2.4647f, 0.5074f},
    Coefficients{2.2737f, -1.6447f, 0.4162f}};
constexpr std::array kAol = {
    Coefficients{4.0098f, -7.0585f, 2.4635f}, Coefficients{3.4585f, -5.5479f, 2.5959f},
    Coefficients{2.7573f, -3.2939f, 1.4254f}, Coefficients{2.7215f, -3.0494f, 1.3169f}};
constexpr Coefficients kLate = {2.0f, -1.5f, 0.5f};
constexpr std::array kDeepSeekV4 = {kSimple[0], kSimple[0], kSimple[0], kSimple[0], kSimple[0],
                                    kSimple[0], kSimple[0], kSimple[0], kLate,      kLate};
constexpr std::array kCubic5 = {
    Coefficients{3.3656576f, -3.3420992f, 0}, Coefficients{2.5744352f, -1.4957376f, 0},
    Coefficients{2.5368962f, -1.4312570f, 0}, Coefficients{2.4418906f, -1.2764040f, 0},
    Coefficients{2.2230472f, -0.9630650f, 0}};
constexpr std::array kPolarExpressSafe = {
    Coefficients{8.156554524902461f, -22.48329292557795f, 15.878769915207462f},
    Coefficients{4.042929935166739f, -2.808917465908714f, 0.5000178451051316f},
    Coefficients{3.8916678022926607f, -2.772484153217685f, 0.5060648178503393f},
    Coefficients{3.285753657755655f, -2.3681294933425376f, 0.46449024233003106f},
    Coefficients{2.3465413258596377f, -1.7097828382687081f, 0.42323551169305323f}};

// A polynomial whose argument is divided by 1.05, so that none leaves the interval it is made for.
constexpr Coefficients cushioned(double a, double b, double c) {
  constexpr double s = 1.05;
  return {static_cast<float>(a / s), static_cast<float>(b / (s * s * s)),
          static_cast<float>(c / (s * s * s * s * s))};
}
constexpr std::array kPolarExpress5 = {
    cushioned(8.28721201814563, -23.595886519098837, 17.300387312530933),
    cushioned(4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    cushioned(3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    cushioned(3.3184196573706015, -2.488488024314874, 0.51004894012372),
    cushioned(2.300652019954817, -1.6689039845747493, 0.4188073119525673)};

struct Set {
  std::string_view name;
  std::span<const Coefficients> steps;
  Beyond beyond;
};
constexpr std::array kSets = {
    Set{"simple", kSimple, Beyond::last_again},
    Set{"quintic", kQuintic, Beyond::all_again},
    Set{"polar_express", kPolarExpress, Beyond::last_again},
    Set{"cans", kCans, Beyond::last_again},
    Set{"aol", kAol, Beyond::all_again},
    Set{"deepseekv4", kDeepSeekV4, Beyond::last_again},
    Set{"cubic5", kCubic5, Beyond::all_again},
    Set{"polar_express_safe", kPolarExpressSafe, Beyond::last_again},
    Set{"polar_express_5", kPolarExpress5, Beyond::last_again},
};

MuonSpec spec_with(std::string_view set, std::size_t iterations) {
  MuonSpec spec;
  spec.iterations = *coefficients(set, iterations);
  return spec;
}

MuonSpec keller() {
  MuonSpec spec = spec_with("simple", 5);
  spec.norm_of = NormOf::rounded;
  spec.precision = Precision::bf16;
  spec.rounding = Rounding::each;
  spec.scale_of = ScaleOf::last_two;
  spec.scale_rounding = ScaleRounding::scaled;
  spec.dims = Dims::flatten_4;
  return spec;
}

MuonSpec torch() {
  MuonSpec spec = spec_with("simple", 5);
  spec.lr = 1e-3;
  spec.weight_decay = 0.1;
  spec.eps_rule = EpsRule::clamp;
  spec.norm_of = NormOf::rounded;
  spec.precision = Precision::bf16;
  return spec;
}

MuonSpec torch_match_rms_adamw() {
  MuonSpec spec = torch();
  spec.scale = ScaleRule::match_rms_adamw;
  return spec;
}

MuonSpec torch_spectral_unclamped() {
  MuonSpec spec = torch();
  spec.scale = ScaleRule::sqrt_rows_over_cols;
  return spec;
}

MuonSpec moonlight() {
  MuonSpec spec = keller();
  spec.lr = 1e-3;
  spec.momentum = Momentum::sum;
  spec.weight_decay = 0.1;
  spec.scale = ScaleRule::match_rms_adamw;
  spec.scale_of = ScaleOf::matrix;
  spec.scale_rounding = ScaleRounding::none;
  spec.dims = Dims::stack;
  return spec;
}

MuonSpec deepspeed() {
  MuonSpec spec = keller();
  spec.norm_of = NormOf::handed;
  spec.scale_rounding = ScaleRounding::handed;
  spec.precision = Precision::fp16;
  spec.form = Form::gram;
  spec.restarts = {2};
  return spec;
}

MuonSpec emerging() {
  MuonSpec spec = spec_with("quintic", 5);
  spec.lr = 3e-4;
  spec.nesterov = false;
  spec.weight_decay = 0.01;
  spec.eps_rule = EpsRule::clamp;
  spec.precision = Precision::bf16;
  spec.scale = ScaleRule::sqrt_max;
  return spec;
}

MuonSpec emerging_high() {
  MuonSpec spec = emerging();
  spec.precision = Precision::tf32;
  return spec;
}

MuonSpec dion() {
  MuonSpec spec = spec_with("polar_express_safe", 5);
  spec.lr = 0.01;
  spec.momentum = Momentum::sum;
  spec.nesterov = false;
  spec.weight_decay = 0.01;
  spec.eps = 1e-8;
  spec.norm_factor = 1.02;
  spec.norm_of = NormOf::rounded;
  spec.precision = spec.handed = Precision::bf16;
  spec.rounding = Rounding::each_product_first;
  spec.scale = ScaleRule::sqrt_rows_over_cols;
  spec.scale_rounding = ScaleRounding::step;
  return spec;
}

MuonSpec normuon() {
  MuonSpec spec = keller();
  spec.second_moment = SecondMoment::rows;
  return spec;
}

MuonSpec nanogpt() {
  MuonSpec spec = spec_with("polar_express_safe", 5);
  spec.lr = 0.023;
  spec.weight_decay = 1.2;
  spec.decay = Decay::cautious_lr2;
  spec.eps = 1e-6;
  spec.norm_factor = 1.02;
  spec.norm_of = NormOf::rounded;
  spec.precision = Precision::bf16;
  spec.second_moment = SecondMoment::longer;
  spec.second_beta = 0.9;
  spec.second_eps_rule = EpsRule::clamp;
  return spec;
}

MuonSpec gram() {
  MuonSpec spec = spec_with("polar_express_5", 5);
  spec.lr = 1e-3;
  spec.momentum = Momentum::sum;
  spec.weight_decay = 0.1;
  spec.precision = Precision::fp16;
  spec.handed = Precision::bf16;
  spec.form = Form::gram;
  spec.restarts = {2};
  spec.scale = ScaleRule::match_rms_adamw;
  spec.scale_rounding = ScaleRounding::step;
  return spec;
}

MuonSpec pytorch_optimizer() {
  MuonSpec spec = torch();
  spec.lr = 0.02;
  spec.weight_decay = 0.01;
  spec.dims = Dims::flatten;
  return spec;
}

constexpr std::array kPresets = {
    Preset{"keller", "KellerJordan/Muon, SingleDeviceMuon", keller},
    Preset{"torch", "torch.optim.Muon 2.13, adjust_lr_fn original", torch},
    Preset{"torch_match_rms_adamw", "torch.optim.Muon 2.13, adjust_lr_fn match_rms_adamw",
           torch_match_rms_adamw},
    Preset{"torch_spectral_unclamped", "torch.optim.Muon 2.14, adjust_lr_fn spectral_unclamped",
           torch_spectral_unclamped},
    Preset{"moonlight", "MoonshotAI/Moonlight, toy_train.py", moonlight},
    Preset{"deepspeed", "DeepSpeed 0.19.8, ns_method gram; handed = bf16 for gradients in bf16",
           deepspeed},
    Preset{"deepspeed_standard", "DeepSpeed 0.19.8, ns_method standard", keller},
    Preset{"emerging", "NVIDIA Emerging-Optimizers 0.3.0, Muon", emerging},
    Preset{"emerging_high", "NVIDIA Emerging-Optimizers 0.3.0, Muon, fp32_matmul_prec high",
           emerging_high},
    Preset{"megatron", "Megatron-LM TensorParallelMuon; split = groups q,k,v for fused ones",
           emerging},
    Preset{"dion", "microsoft/dion, Muon with Polar Express", dion},
    Preset{"normuon", "zichongli5/NorMuon, SingleDeviceNorMuon", normuon},
    Preset{"nanogpt", "KellerJordan/modded-nanogpt of August 2026, NorMuon with Polar Express",
           nanogpt},
    Preset{"gram", "Dao-AILab/gram-newton-schulz 0.1.6, Muon", gram},
    Preset{"pytorch_optimizer", "pytorch_optimizer 4.1.0, Muon", pytorch_optimizer},
};

template <typename Named>
Error unknown(std::string_view what, std::string_view name, const Named& all) {
  std::vector<std::string> names;
  std::string listed;
  for (const auto& one : all) {
    names.emplace_back(one.name);
    listed += (listed.empty() ? "" : ", ") + names.back();
  }
  const auto meant = formats::nearest(name, names);
  return {Code::usage, compose("there is no {} {}", what, name),
          meant ? compose("did you mean {}?", *meant) : compose("there are {}", listed)};
}

std::vector<Coefficients> first_of(const Set& set, std::size_t iterations) {
  std::vector<Coefficients> steps;
  for (std::size_t i = 0; i < iterations; ++i) {
    const std::size_t last = set.steps.size() - 1;
    const bool again = set.beyond == Beyond::all_again;
    steps.push_back(set.steps[again ? i % set.steps.size() : std::min(i, last)]);
  }
  return steps;
}

// Of the set that begins with those steps, another number; of none, the last one is made again.
std::vector<Coefficients> with_number(std::vector<Coefficients> steps, std::size_t iterations) {
  for (const Set& one : kSets)
    if (first_of(one, steps.size()) == steps) return first_of(one, iterations);
  steps.resize(iterations, steps.back());
  return steps;
}

}  // namespace

MuonSpec MuonSpec::keller() { return spec_with("simple", 5); }

Result<std::vector<Coefficients>> coefficients(std::string_view set, std::size_t iterations) {
  for (const Set& one : kSets)
    if (one.name == set) return first_of(one, iterations);
  return unknown("set of coefficients", set, kSets);
}

std::span<const Preset> presets() { return kPresets; }

Result<MuonSpec> preset(std::string_view name) {
  for (const Preset& one : kPresets)
    if (one.name == name) return one.spec();
  return unknown("preset", name, kPresets);
}

namespace {

// `optimizer`: as people call it. `from` reads a group.
template <typename Spec>
Result<Spec> changed(const Spec& spec, std::string_view optimizer, std::string_view name,
                     std::string_view value, Result<Spec> (*from)(const formats::native::Group&)) {
  formats::native::Group group = to_group(spec);
  std::vector<std::string> names;
  for (auto& [known, text] : group.settings) {
    names.push_back(known);
    if (known != name) continue;
    text = value;
    auto other = from(group);
    if (other) return *std::move(other);
    return Error{Code::usage, other.error().message, other.error().hint};
  }
  const auto meant = formats::nearest(name, names);
  return Error{Code::usage, compose("{} has no setting {}", optimizer, name),
               meant ? compose("did you mean {}?", *meant) : std::string()};
}

}  // namespace

Result<MuonSpec> with_setting(const MuonSpec& spec, std::string_view name, std::string_view value) {
  MuonSpec base = spec;
  const auto count = formats::parse_number<std::size_t>(value);
  if (name == "ns_steps" && count && *count <= kMaxIterations && !spec.iterations.empty())
    base.iterations = with_number(spec.iterations, *count);
  return changed(base, "Muon", name, value, muon_from);
}
Result<AdamSpec> with_setting(const AdamSpec& spec, std::string_view name, std::string_view value) {
  return changed(spec, "AdamW", name, value, adam_from);
}

}  // namespace ebb::libmuon
