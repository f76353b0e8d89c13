// Stages: the work of a Run as jobs of a pool, in the order in which forms.h asks for them.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "ebb/libmuon/kernels/newton_schulz_run.h"
#include "ebb/libswap/pool.h"

namespace ebb::libmuon {

class Stages {
 public:
  explicit Stages(std::shared_ptr<Run> run) : run_(std::move(run)) {}
  libswap::Chain chain() { return std::move(chain_); }

  void norm() {
    jobs(run_->norm_chunks(), [run = run_](std::size_t i) { run->square(i); });
    once([run = run_] { run->decide(); });
  }
  void load() { panels(&Run::load); }
  void store() { panels(&Run::store); }
  void once(std::function<void()> work) {
    jobs(1, [work = std::move(work)](std::size_t) { work(); });
  }
  void jobs(std::size_t count, std::function<void(std::size_t)> work) {
    chain_.push_back({count, std::move(work)});
  }

  void gram() {
    pack_transposed();
    triangle([run = run_](std::size_t panel) { run->make_gram(panel); });
    mirror(Part::gram);
  }
  // The same of an X that comes in parts: the sum, and behind the last of them the rest.
  void sum_gram(bool adds) {
    pack_transposed();
    triangle([run = run_, adds](std::size_t panel) { run->sum_gram(panel, adds); });
  }
  void settle_gram() {
    panels(&Run::settle_gram);
    mirror(Part::gram);
  }
  void square(const Sum& sum) {
    pack(sum.right);
    triangle([run = run_, sum](std::size_t panel) { run->add(sum, panel); });
  }
  void symmetric(const Sum& sum) {
    square(sum);
    if (run_->mirrors()) mirror(sum.to);
  }
  void mirror(Part part) {
    panels([run = run_, part](std::size_t panel) { run->mirror(part, panel); });
  }
  void identity(Part to, Part from, float value) {
    panels([run = run_, to, from, value](std::size_t panel) {
      run->add_identity(to, from, value, panel);
    });
  }
  // X = beta X + alpha left X.
  void advance(Part left, float beta, float alpha = 1.0f) {
    const Part next = run_->next_x();
    pack(Part::x);
    panels([run = run_, next, left, beta, alpha](std::size_t panel) {
      run->add({next, alpha, left, Part::x, beta, Part::x}, panel);
    });
    if (next != Part::x) swap(Part::x, next);
  }
  void swap(Part a, Part b) {
    once([run = run_, a, b] { run->swap(a, b); });
  }

 private:
  void pack(Part part) {
    jobs(run_->slices(), [run = run_, part](std::size_t slice) { run->pack(part, slice); });
  }
  void pack_transposed() {
    jobs(run_->transposed_slices(), [run = run_](std::size_t i) { run->pack_transposed(i); });
  }
  void panels(void (Run::*work)(std::size_t)) {
    panels([run = run_, work](std::size_t panel) { ((*run).*work)(panel); });
  }
  void panels(std::function<void(std::size_t)> work) { jobs(run_->panels(), std::move(work)); }
  // The longest panels first.
  void triangle(std::function<void(std::size_t)> work) {
    panels([work = std::move(work), last = run_->panels() - 1](std::size_t i) { work(last - i); });
  }

  const std::shared_ptr<Run> run_;
  libswap::Chain chain_;
};

}  // namespace ebb::libmuon
