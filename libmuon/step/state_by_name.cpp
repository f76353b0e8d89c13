// States are read, or written, by their names. Of masters in halves the low ones travel, in the
// room of fp32: the high ones are what each rank has bound, of the same elements, in the same
// order. Of masters that are bound none do.
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
  return std::ranges::any_of(kTileKinds, [&](TileKind kind) {
    return has_tiles(config.model, param, kind) && columns.find(kind, state).has_value();
  });
}

Travels params_of(std::span<const StateBuffer> buffers) {
  std::set<std::uint32_t> all;
  for (const StateBuffer& buffer : buffers) all.insert(buffer.param);
  return [all = std::move(all)](std::uint32_t param) { return all.contains(param); };
}

std::string names_of(std::span<const StateBuffers> states) {
  std::string all;
  for (const auto& [state, buffers] : states) all += (all.empty() ? "" : ", ") + std::string(state);
  return all;
}

}  // namespace

Result<std::uint32_t> Engine::Impl::can_copy(const StateBuffers& some) const {
  const auto& [state, buffers] = some;
  EBB_TRY_ASSIGN(const std::uint32_t number, state_named(state, "a buffer"));
  const StatePlan& plan = setup.plan();
  const EngineConfig& config = setup.config;
  if (plan.columns().home(number) == TileKind::moments)
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

Result<std::vector<std::uint32_t>> Engine::Impl::can_copy(
    std::span<const StateBuffers> states) const {
  EBB_TRY(not_stopped());
  EBB_TRY(home.usable());
  std::vector<std::uint32_t> numbers;
  for (const StateBuffers& some : states) {
    EBB_TRY_ASSIGN(const std::uint32_t number, can_copy(some));
    if (std::ranges::count(numbers, number) > 0)
      return Error{Code::usage, compose("{} is named twice", some.state)};
    numbers.push_back(number);
    if (!std::ranges::equal(some.buffers, states.front().buffers, {}, &StateBuffer::param,
                            &StateBuffer::param))
      return Error{Code::usage, compose("{} and {} are to be copied of the same parameters",
                                        states.front().state, some.state)};
  }
  return numbers;
}

Result<NamedStates> Engine::Impl::agree_on_states(std::span<const StateBuffers> states,
                                                  std::optional<std::uint64_t> taken) {
  Communicator& ranks = setup.ranks;
  const auto numbers = can_copy(states);
  const std::string names = names_of(states);
  EBB_TRY(agree_all(numbers ? Result<>() : numbers.error(), compose("copying its {}", names)));
  std::vector<NamedStates::One> sorted;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if ((*numbers)[i] == kMaster && setup.plan().columns().masters() == Masters::bound) continue;
    const auto& buffers = states[i].buffers;
    auto& one = sorted.emplace_back((*numbers)[i], std::vector(buffers.begin(), buffers.end()));
    std::ranges::sort(one.buffers, {}, &StateBuffer::param);
  }
  std::vector<libswap::Setting> settings = {
      {"the state to be copied", names},
      {"the steps that it has taken", taken ? std::to_string(*taken) : "as before"},
      {"the number of parameters whose state is copied",
       std::to_string(states.front().buffers.size())}};
  std::set<std::uint32_t> named;
  for (const StateBuffer& buffer : states.front().buffers) named.insert(buffer.param);
  for (const std::uint32_t param : named)
    settings.push_back(
        {"a parameter whose state is copied", setup.config.model.params[param].name});
  EBB_TRY(libswap::same_everywhere(ranks, settings));
  if (sorted.empty()) return NamedStates::none(setup.plan());
  // A rank that has room for all that it stages is no limit.
  const std::uint64_t room = run->portion_bytes() / sorted.size();
  const bool limits = NamedStates::staged_bytes(setup.plan(), sorted.front().buffers) > room;
  EBB_TRY_ASSIGN(const std::int64_t most,
                 ranks.agree(static_cast<std::int64_t>(limits ? room : kMostRoundBytes)));
  return NamedStates(setup.plan(), setup.edges.weights.exchange(), sorted,
                     static_cast<std::uint64_t>(most));
}

std::span<const StateBuffer> Engine::Impl::bound(std::span<const StateBuffers> states) const {
  if (!setup.bound_masters()) return {};
  const auto masters = std::ranges::find(states, "master", &StateBuffers::state);
  return masters == states.end() ? std::span<const StateBuffer>() : masters->buffers;
}

Result<> Engine::Impl::can_part(std::span<const StateBuffer> masters) const {
  for (const StateBuffer& some : masters) EBB_TRY(weights.can_part(some, *computing));
  return {};
}

void Engine::Impl::part(std::span<const StateBuffer> masters) {
  for (const StateBuffer& some : masters) weights.part(some, computing->pool());
  weights.taken(params_of(masters));
}

Result<> Engine::read_states(std::span<const StateBuffers> into) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("read_states"));
  if (into.empty()) return {};
  Impl& self = *impl_;
  self.end_step();
  EBB_TRY_ASSIGN(const NamedStates named, self.agree_on_states(into, {}));
  const std::span<const StateBuffer> bound = self.bound(into);
  libswap::Pool& pool = self.computing->pool();
  if (!bound.empty())
    EBB_TRY(self.agree_all(self.weights.unchanged(pool, params_of(bound)),
                           "reading its bound masters"));
  if (named.portions() > 0) EBB_TRY(self.ended_well(self.run->read_states(named)));
  for (const StateBuffer& some : bound) self.weights.join(some, pool);
  return {};
}

Result<> Engine::read_state(std::string_view state, std::span<const StateBuffer> into) {
  const StateBuffers one{state, into};
  return read_states({&one, 1});
}

// A generation that is being written is of before.
Result<> Engine::write_states(std::span<const StateBuffers> from,
                              std::optional<std::uint64_t> taken) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("write_states"));
  if (from.empty()) return {};
  Impl& self = *impl_;
  self.end_step();
  EBB_TRY_ASSIGN(const NamedStates named, self.agree_on_states(from, taken));
  const std::span<const StateBuffer> bound = self.bound(from);
  if (!bound.empty()) EBB_TRY(self.agree_all(self.can_part(bound), "writing its bound masters"));
  if (from.front().buffers.empty()) return {};
  EBB_TRY(self.home.settle(libswap::Snapshots::Mode::wait));
  if (!bound.empty()) self.weights.set_kept(std::nullopt);
  Result<> ended;
  if (named.portions() > 0) ended = self.ended_well(self.run->write_states(named));
  if (!ended) {
    self.fate.set(Fate::writing,
                  {Code::state,
                   compose("a part of {} was written: {}", names_of(from), ended.error().message),
                   "abandon_step() goes back to the last committed generation"});
    return ended;
  }
  if (!bound.empty()) self.part(bound);
  if (taken)
    for (const StateBuffer& buffer : from.front().buffers)
      self.steps.set_taken(buffer.param, *taken);
  return {};
}

Result<> Engine::write_state(std::string_view state, std::span<const StateBuffer> from,
                             std::optional<std::uint64_t> taken) {
  const StateBuffers one{state, from};
  return write_states({&one, 1}, taken);
}

}  // namespace ebb::libmuon
