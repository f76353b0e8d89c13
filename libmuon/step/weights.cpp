#include "ebb/libmuon/step/weights.h"

#include <algorithm>
#include <cmath>

#include "ebb/formats/core/halves.h"
#include "ebb/libmuon/step/trainer_buffer.h"

namespace ebb::libmuon {

using libswap::Buffer;

namespace {

constexpr std::uint64_t kPoolElems = 64u << 10;

// job(first, count) for pieces of so many elements.
template <typename Job>
void in_pieces(libswap::Pool& pool, std::uint64_t elems, const Job& job) {
  pool.run(formats::div_ceil(elems, kPoolElems), [&](std::size_t i) {
    const std::uint64_t first = i * kPoolElems;
    job(first, std::min(kPoolElems, elems - first));
  });
}

bool all_finite(const Buffer& values, Side side, const Computing& computing) {
  if (values.empty()) return true;
  const LookRange range{.g = values, .in_norm = false};
  return std::isfinite(computing.look({&range, 1}, side).largest);
}

void copy_bits(const Buffer& from, const Buffer& to) {
  if (!from.empty()) libswap::copy(from, to, {}).wait();
}

// By parameter: the last chunk with weights of it.
std::vector<std::size_t> last_chunks(const Chunks& chunks, std::size_t params) {
  std::vector<std::size_t> last(params, 0);
  for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk)
    for (const Transit& transit : chunks.weights(chunk)) last[transit.param] = chunk;
  return last;
}

}  // namespace

Weights::Weights(const Setup& setup)
    : setup_(setup),
      last_chunk_(last_chunks(setup.chunks(), setup.plan().params())),
      bound_(setup.plan().params()) {
  if (setup.in_halves()) handed_out_.emplace(setup.chunks(), setup.edges.bound.exchange());
}

Result<> Weights::bind(std::uint32_t param, const Buffer& my_pieces) {
  const StatePlan& plan = setup_.plan();
  EBB_TRY(check_buffer(setup_.config, plan.rank(), param, my_pieces,
                       {"weights", plan.weights(), &ParamSpec::weight, setup_.config.weights_on}));
  bound_[param] = my_pieces;
  return {};
}

Result<> Weights::finite(std::uint32_t param, const Computing& computing) const {
  if (all_finite(*bound_[param], setup_.config.weights_on, computing)) return {};
  return Error{Code::usage,
               compose("the weights of {} on rank {} are not finite",
                       setup_.config.model.params[param].name, index_of(setup_.rank()))};
}

Buffer Weights::of(const Transit& transit) const {
  const StatePlan& plan = setup_.plan();
  const auto [param, range] = transit;
  if (!bound_[param]) return {};
  return bound_[param]->sub(plan.weights().place(param, plan.rank(), range.first), range.count);
}

Result<std::size_t> Weights::last_chunk(std::uint32_t param) const {
  if (param >= last_chunk_.size())
    return Error{Code::usage, compose("there is no parameter {}", param)};
  return last_chunk_[param];
}

bool Weights::hands_out_updates() const {
  for (std::uint32_t i = 0; i < setup_.plan().params(); ++i)
    if (out_of(setup_.config.model, i) == Out::update) return true;
  return false;
}

std::string Weights::way_back() const {
  if (setup_.bound_masters())
    return "some of its masters are lost: open the store again, the last generation resumes";
  return hands_out_updates() ? "updates are handed out once: abandon_step() goes back to the last "
                               "committed generation, and so must the trainer's masters"
                             : "install_weights() hands them out";
}

void Weights::handed_out(std::size_t chunk, const Travels& travels) {
  if (handed_out_)
    handed_out_->note(chunk, travels, [this](const Transit& part) { return of(part); });
}

Result<> Weights::were_handed_out() const {
  if (installed_) return {};
  return Error{Code::usage,
               compose("the bound weights are {}, and were not handed out yet",
                       setup_.in_halves() ? "the high halves of masters" : "masters"),
               "call install_weights() first"};
}

Result<std::vector<std::uint32_t>> Weights::changed(libswap::Pool& pool, const Travels& of) const {
  EBB_TRY(were_handed_out());
  return handed_out_->changed(pool, [this](const Transit& part) { return this->of(part); }, of);
}

void Weights::taken(const Travels& of) {
  for (std::size_t chunk = 0; chunk < setup_.chunks().count(); ++chunk) handed_out(chunk, of);
}

Result<> Weights::unchanged(libswap::Pool& pool, const Travels& of) const {
  if (!setup_.bound_masters()) return {};
  if (!handed_out_) return were_handed_out();
  EBB_TRY_ASSIGN(const std::vector<std::uint32_t> others, changed(pool, of));
  if (others.empty()) return {};
  return Error{Code::state,
               compose("parameter {}: its weights on rank {} are not those that were handed out: "
                       "they are the high half of its master, which somebody else wrote to",
                       setup_.config.model.params[others.front()].name, index_of(setup_.rank())),
               "take_weights() makes them its master; or put back what was there; or "
               "abandon_step() goes back to the last committed generation"};
}

// Of the elements that a state's buffer has.
Buffer Weights::whole_of(const StateBuffer& state) const {
  return state.pieces.empty() ? state.pieces : bound_[state.param]->sub(0, state.pieces.elems);
}

void Weights::join(const StateBuffer& lows, libswap::Pool& pool) const {
  if (!setup_.in_halves()) return copy_bits(whole_of(lows), lows.pieces);
  in_pieces(pool, lows.pieces.elems, [&](std::uint64_t first, std::uint64_t count) {
    const auto masters = lows.pieces.sub(first, count).floats();
    std::ranges::transform(bound_[lows.param]->sub(first, count).bf16s(), masters, masters.begin(),
                           [](std::uint16_t high, float low) {
                             return formats::joined(high, formats::low_half(low));
                           });
  });
}

Result<> Weights::can_part(const StateBuffer& masters, const Computing& computing) const {
  EBB_TRY(were_handed_out());
  if (!setup_.in_halves()) return {};
  if (all_finite(masters.pieces, Side::host, computing)) return {};
  return Error{Code::unsupported,
               compose("master of {} on rank {} is not finite: it cannot be kept in halves",
                       setup_.config.model.params[masters.param].name, index_of(setup_.rank())),
               "keep master in fp32"};
}

void Weights::part(const StateBuffer& masters, libswap::Pool& pool) const {
  if (!setup_.in_halves()) return copy_bits(masters.pieces, whole_of(masters));
  in_pieces(pool, masters.pieces.elems, [&](std::uint64_t first, std::uint64_t count) {
    std::ranges::transform(masters.pieces.sub(first, count).floats(),
                           bound_[masters.param]->sub(first, count).bf16s().begin(),
                           formats::high_half);
  });
}

}  // namespace ebb::libmuon
