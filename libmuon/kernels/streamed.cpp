#include "ebb/libmuon/kernels/streamed.h"

#include <utility>

#include "ebb/libmuon/kernels/stages.h"

namespace ebb::libmuon {

// A factor Q for each part of the iterations; the last one is the run's own.
class StreamedMatrix::StreamedRun : public Run {
 public:
  StreamedRun(const MuonSpec& spec, Bf16 bf16, const Panels& panels, std::span<std::byte> scratch,
              NonFinite non_finite)
      : Run(spec, bf16, Block::matrix(panels.rows, panels.cols), sides(panels), scratch,
            non_finite),
        factors_(gram_parts(spec).size()) {
    auto* next = reinterpret_cast<float*>(scratch.data()) +
                 Run::scratch_bytes(spec, sides(panels)) / sizeof(float);
    for (float*& factor : factors_) next = (factor = next) + factor_elems(m());
    factors_.back() = place(Part::q);
  }
  static std::uint64_t scratch_bytes(const MuonSpec& spec, const Panels& panels) {
    return Run::scratch_bytes(spec, sides(panels)) +
           spec.restarts.size() * factor_elems(sides(panels).m) * sizeof(float);
  }

  std::size_t parts() const { return factors_.size(); }

  void add_squares(std::span<float> u) {
    round_update(u);
    squares_.add(u);
  }
  // What the passes behind the first need of it.
  void decide_once() {
    if (!std::exchange(decided_, true)) decide(squares_.total());
  }
  void take_panel(std::span<float> u) {
    const std::uint64_t along = u.size() / m();
    take(tall() ? Block::matrix(along, m()) : Block::matrix(m(), along), u);
  }
  void round_part(std::size_t part, std::span<float> u) {
    round_update(u.subspan(part * kRounded, std::min(kRounded, u.size() - part * kRounded)));
  }
  static std::size_t rounded_parts(std::span<float> u) {
    return formats::div_ceil(u.size(), kRounded);
  }
  // The factor of a part is made, or used, in this place.
  void use(std::size_t part) { place(Part::q) = factors_[part]; }
  void keep(std::size_t part) {
    look_at(Part::q);
    factors_[part] = place(Part::q);
  }

 private:
  static constexpr std::size_t kRounded = 65536;
  static Sides sides(const Panels& panels) {
    if (panels.tall) return {.m = panels.cols, .n = panels.rows, .tall = true, .gram_form = true};
    return {.m = panels.rows, .n = panels.cols, .tall = false, .gram_form = true};
  }
  static std::uint64_t factor_elems(std::uint64_t m) { return m * leading_dimension(m); }

  std::vector<float*> factors_;
  SquareSum squares_;
  bool decided_ = false;
};

bool streams(const MuonSpec& spec, const Block& matrix) {
  return spec.form == Form::gram && matrix.rows() != matrix.cols && matrix.runs == 1 &&
         spec.decay != Decay::l2 && spec.second_moment == SecondMoment::none;
}

StreamedMatrix::StreamedMatrix(const MuonSpec& spec, Bf16 bf16, const Panels& panels,
                               std::span<std::byte> scratch, NonFinite non_finite)
    : run_(std::make_shared<StreamedRun>(spec, bf16, panels, scratch, non_finite)) {}

StreamedMatrix::~StreamedMatrix() = default;

std::uint64_t StreamedMatrix::scratch_bytes(const MuonSpec& spec, const Panels& panels) {
  return StreamedRun::scratch_bytes(spec, panels);
}

std::uint32_t StreamedMatrix::passes(const MuonSpec& spec) {
  return static_cast<std::uint32_t>(gram_parts(spec).size()) + 2;
}

void StreamedMatrix::add_squares(std::span<float> u) { run_->add_squares(u); }

libswap::Chain StreamedMatrix::next(const Panel& panel) {
  const std::size_t part = panel.pass - 2;  // whose Gram matrix this is, or one behind the last
  EBB_CHECK(panel.pass >= 2 && part <= run_->parts());
  Stages stages(run_);
  stages.once([run = run_, u = panel.u] {
    run->decide_once();
    run->take_panel(u);
  });
  stages.jobs(StreamedRun::rounded_parts(panel.u),
              [run = run_, u = panel.u](std::size_t i) { run->round_part(i, u); });
  stages.load();
  for (std::size_t before = 0; before < part; ++before) {
    stages.once([run = run_, before] { run->use(before); });
    stages.advance(Part::q, 0.0f);
  }
  if (part == run_->parts()) {
    stages.store();
    return stages.chain();
  }
  stages.sum_gram(!panel.first);
  if (!panel.last) return stages.chain();
  stages.settle_gram();
  stages.once([run = run_, part] { run->use(part); });
  gram_factor(run_->spec(), gram_parts(run_->spec())[part], stages);
  stages.once([run = run_, part] { run->keep(part); });
  return stages.chain();
}

}  // namespace ebb::libmuon
