// Muon and AdamW over whole tensors in fp64: loops as the papers have them, no kernel, layout or
// page of ours. What engine runs are held against.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ebb/libmuon/plan/model.h"

namespace ebb::test {

class Reference {
 public:
  using Tensor = std::vector<double>;

  explicit Reference(const libmuon::ModelSpec& model) : model_(model) {}

  // REQUIRES: once for each parameter, in order.
  void begin(const Tensor& weights) {
    const std::string& name = model_.params[weights_.size()].name;
    weights_.push_back(weights);
    if (muon(weights_.size() - 1)) {
      states_[name + " momentum_buffer"].resize(weights.size());
    } else {
      states_[name + " exp_avg"].resize(weights.size());
      states_[name + " exp_avg_sq"].resize(weights.size());
    }
  }

  void set_learning_rate(std::uint32_t group, double lr) {
    std::visit([&](auto& spec) { spec.lr = lr; }, model_.groups[group]);
  }

  // The gradients' norm, scaled, before clipping.
  double step(std::vector<Tensor> gradients, double inv_scale, double max_norm) {
    double squares = 0;
    for (Tensor& gradient : gradients)
      for (double& g : gradient) {
        g *= inv_scale;
        squares += g * g;
      }
    const double norm = std::sqrt(squares);
    if (max_norm > 0 && norm > max_norm)
      for (Tensor& gradient : gradients)
        for (double& g : gradient) g *= max_norm / norm;
    ++steps_;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const libmuon::GroupSpec& group = model_.groups[model_.params[i].group];
      if (muon(i))
        muon_step(i, std::get<libmuon::MuonSpec>(group), gradients[i]);
      else
        adam_step(i, std::get<libmuon::AdamSpec>(group), gradients[i]);
    }
    return norm;
  }

  const std::vector<Tensor>& weights() const { return weights_; }
  // By "name state", with the weights as "name master".
  std::map<std::string, Tensor> everything() const {
    std::map<std::string, Tensor> all = states_;
    for (std::size_t i = 0; i < weights_.size(); ++i)
      all.emplace(model_.params[i].name + " master", weights_[i]);
    return all;
  }

  static Tensor newton_schulz(const libmuon::MuonSpec& spec, std::size_t rows, std::size_t cols,
                              Tensor x) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    for (double& value : x) value /= std::sqrt(squares) + spec.eps;
    const bool tall = rows > cols;
    if (tall) {
      x = transposed(x, rows, cols);
      std::swap(rows, cols);
    }
    for (const auto& c : spec.iterations) {
      const Tensor a = product(x, transposed(x, rows, cols), rows, cols, rows);
      Tensor b = product(a, a, rows, rows, rows);
      for (std::size_t i = 0; i < b.size(); ++i) b[i] = double{c.b} * a[i] + double{c.c} * b[i];
      const Tensor bx = product(b, x, rows, rows, cols);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = double{c.a} * x[i] + bx[i];
    }
    return tall ? transposed(x, rows, cols) : x;
  }

 private:
  bool muon(std::size_t param) const {
    return std::holds_alternative<libmuon::MuonSpec>(model_.groups[model_.params[param].group]);
  }

  static Tensor transposed(const Tensor& x, std::size_t rows, std::size_t cols) {
    Tensor out(x.size());
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < cols; ++c) out[c * rows + r] = x[r * cols + c];
    return out;
  }

  static Tensor product(const Tensor& a, const Tensor& b, std::size_t m, std::size_t k,
                        std::size_t n) {
    Tensor out(m * n);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < k; ++j)
        for (std::size_t c = 0; c < n; ++c) out[i * n + c] += a[i * k + j] * b[j * n + c];
    return out;
  }

  void muon_step(std::size_t param, const libmuon::MuonSpec& spec, const Tensor& g) {
    const auto rows = static_cast<std::size_t>(model_.params[param].shape[0]);
    const auto cols = static_cast<std::size_t>(model_.params[param].shape[1]);
    Tensor& m = states_[model_.params[param].name + " momentum_buffer"];
    Tensor u(g.size());
    const double b = spec.beta, take = spec.momentum == libmuon::Momentum::ema ? 1 - b : 1;
    for (std::size_t i = 0; i < g.size(); ++i) {
      m[i] = b * m[i] + take * g[i];
      u[i] = spec.nesterov ? b * m[i] + take * g[i] : m[i];
    }
    const Tensor o = newton_schulz(spec, rows, cols, std::move(u));
    const double tall = static_cast<double>(rows) / static_cast<double>(cols);
    const double scale = spec.scale == libmuon::ScaleRule::match_rms_adamw
                             ? 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)))
                             : std::sqrt(std::max(1.0, tall));
    for (std::size_t i = 0; i < g.size(); ++i)
      weights_[param][i] =
          (1 - spec.lr * spec.weight_decay) * weights_[param][i] - spec.lr * scale * o[i];
  }

  void adam_step(std::size_t param, const libmuon::AdamSpec& spec, const Tensor& g) {
    Tensor& m = states_[model_.params[param].name + " exp_avg"];
    Tensor& v = states_[model_.params[param].name + " exp_avg_sq"];
    const double bias1 = 1 - std::pow(spec.beta1, steps_);
    const double bias2 = 1 - std::pow(spec.beta2, steps_);
    for (std::size_t i = 0; i < g.size(); ++i) {
      m[i] = spec.beta1 * m[i] + (1 - spec.beta1) * g[i];
      v[i] = spec.beta2 * v[i] + (1 - spec.beta2) * g[i] * g[i];
      weights_[param][i] *= 1 - spec.lr * spec.weight_decay;
      weights_[param][i] -= spec.lr * (m[i] / bias1) / (std::sqrt(v[i] / bias2) + spec.eps);
    }
  }

  libmuon::ModelSpec model_;
  int steps_ = 0;
  std::vector<Tensor> weights_;
  std::map<std::string, Tensor> states_;
};

}  // namespace ebb::test
