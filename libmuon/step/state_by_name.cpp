// A state is read, or written, by its name. Of masters in halves the low ones travel, in the room
// of fp32: the high ones are what each rank has bound, of the same elements, in the same order.
#include <algorithm>
#include <set>
#include <utility>

#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/trainer_buffer.h"
#include "ebb/libswap/store/alike.h"

namespace ebb::libmuon {

namespace {

// Whether the parameter has the state, in tiles of some rank.
bool has_state(const EngineConfig& config, const Columns& columns, std::uint32_t param,
               std::uint32_t state) {
  return std::ranges::any_of(kVisits, [&](Visit visit) {
    return has_visits(config.model, param, visit) && columns.find(visit, state).has_value();
  });
}

Travels params_of(std::span<const StateBuffer> buffers) {
  std::set<std::uint32_t> all;
  for (const StateBuffer& buffer : buffers) all.insert(buffer.param);
  return [all = std::move(all)](std::uint32_t param) { return all.contains(param); };
}

}  // namespace

Result<std::uint32_t> Engine::Impl::can_copy(std::string_view state,
                                             std::span<const StateBuffer> buffers) const {
  EBB_TRY(not_stopped());
  EBB_TRY(home.usable());
  EBB_TRY_ASSIGN(const std::uint32_t number, state_named(state, "a buffer"));
  const StatePlan& plan = setup.plan();
  const EngineConfig& config = setup.config;
  if (plan.columns().home(number) == Visit::normalise)
    return Error{Code::unsupported,
                 compose("{} has a shape of its own and is not copied by name", state),
                 "a snapshot has it: open_export()"};
  if (const DType dtype = plan.columns().dtype(number); dtype == DType::i8)
    return Error{Code::unsupported,
                 compose("{} is kept as {}, which is not copied by name", state, name_of(dtype)),
                 "a snapshot has it: open_export()"};
  std::set<std::uint32_t> named;
  for (const auto& [param, pieces] : buffers) {
    if (param >= plan.params())
      return Error{Code::usage, compose("there is no parameter {}", param)};
    if (!named.insert(param).second)
      return Error{Code::usage,
                   compose("parameter {} is named twice", config.model.params[param].name)};
    if (!has_state(config, plan.columns(), param, number))
      return Error{Code::usage,
                   compose("parameter {} has no {}", config.model.params[param].name, state)};
    EBB_TRY(check_memory(config, plan.rank(), param, pieces,
                         {state, plan.weights(), DType::f32, nullptr}));
  }
  return number;
}

Result<NamedState> Engine::Impl::agree_on_state(std::string_view state,
                                                std::span<const StateBuffer> buffers,
                                                std::optional<std::uint64_t> taken) {
  Communicator& ranks = setup.ranks;
  const auto number = can_copy(state, buffers);
  EBB_TRY(agree_all(number ? Result<>() : number.error(), compose("copying its {}", state)));
  std::vector<StateBuffer> sorted(buffers.begin(), buffers.end());
  std::ranges::sort(sorted, {}, &StateBuffer::param);
  std::vector<libswap::Setting> settings = {
      {"the state to be copied", std::string(state)},
      {"the steps that it has taken", taken ? std::to_string(*taken) : "as before"},
      {"the number of parameters whose state is copied", std::to_string(sorted.size())}};
  for (const StateBuffer& buffer : sorted)
    settings.push_back(
        {"a parameter whose state is copied", setup.config.model.params[buffer.param].name});
  EBB_TRY(libswap::same_everywhere(ranks, settings));
  // A rank that has room for all that it stages is no limit.
  const std::uint64_t room = run->portion_bytes();
  const bool limits = NamedState::staged_bytes(setup.plan(), sorted) > room;
  EBB_TRY_ASSIGN(const std::int64_t most,
                 ranks.agree(static_cast<std::int64_t>(limits ? room : kMostRoundBytes)));
  return NamedState(setup.plan(), setup.routes, *number, sorted, static_cast<std::uint64_t>(most));
}

bool Engine::Impl::in_halves(const NamedState& state) const {
  return state.state() == kMaster && setup.in_halves();
}

Result<> Engine::Impl::can_part(std::span<const StateBuffer> masters) const {
  for (const StateBuffer& some : masters) EBB_TRY(weights.can_part(some, *computing));
  return {};
}

void Engine::Impl::part(std::span<const StateBuffer> masters) {
  for (const StateBuffer& some : masters) weights.part(some, computing->pool());
  weights.taken(params_of(masters));
}

Result<> Engine::read_state(std::string_view state, std::span<const StateBuffer> into) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("read_state"));
  Impl& self = *impl_;
  self.end_step();
  EBB_TRY_ASSIGN(const NamedState named, self.agree_on_state(state, into, {}));
  if (named.portions() == 0) return {};
  if (!self.in_halves(named)) return self.ended_well(self.run->read_state(named));
  libswap::Pool& pool = self.computing->pool();
  EBB_TRY(self.agree_all(self.weights.unchanged(pool, params_of(into)), "reading its high halves"));
  EBB_TRY(self.ended_well(self.run->read_state(named)));
  for (const StateBuffer& lows : into) self.weights.join(lows, pool);
  return {};
}

// A generation that is being written is of before.
Result<> Engine::write_state(std::string_view state, std::span<const StateBuffer> from,
                             std::optional<std::uint64_t> taken) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("write_state"));
  Impl& self = *impl_;
  self.end_step();
  EBB_TRY_ASSIGN(const NamedState named, self.agree_on_state(state, from, taken));
  if (named.portions() == 0) return {};
  const bool halves = self.in_halves(named);
  if (halves) EBB_TRY(self.agree_all(self.can_part(from), "writing its high halves"));
  EBB_TRY(self.home.settle(libswap::Snapshots::Mode::wait));
  if (halves) self.weights.set_kept(std::nullopt);
  if (Result<> ended = self.ended_well(self.run->write_state(named)); !ended) {
    self.fate.set(
        Fate::writing,
        {Code::state, compose("a part of {} was written: {}", state, ended.error().message),
         "abandon_step() goes back to the last committed generation"});
    return ended;
  }
  if (halves) self.part(from);
  if (taken)
    for (const StateBuffer& buffer : from) self.steps.set_taken(buffer.param, *taken);
  return {};
}

}  // namespace ebb::libmuon
