// What a trainer hands over: where its weights lie, and its gradients.
#include <utility>

#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/side.h"

namespace ebb::libmuon {

namespace {

// What the trainer hands over: `what`, in this layout, as that, on this side.
struct Wanted {
  std::string_view what;
  const ModelLayout& layout;
  DType ParamSpec::* dtype;
  Side side;
};

Result<> check_buffer(const EngineConfig& config, Rank rank, std::uint32_t param,
                      const libswap::Buffer& given, const Wanted& wanted) {
  if (param >= config.model.params.size())
    return Error{Code::usage, compose("there is no parameter {}", param)};
  const std::string where = compose("{} of {} on rank {}: ", wanted.what,
                                    config.model.params[param].name, index_of(rank));
  const DType dtype = config.model.params[param].*wanted.dtype;
  if (given.dtype != dtype)
    return Error{Code::usage,
                 compose("{}{} elements handed in, where {} is wanted", where,
                         formats::name_of(given.dtype), formats::name_of(dtype)),
                 "ParamSpec::gradient and weight say what the trainer has"};
  const std::uint64_t elems = wanted.layout.local_elems(param, rank);
  if (given.elems != elems)
    return Error{Code::layout, compose("{}{} elements handed in, the layout gives this rank {}",
                                       where, given.elems, elems)};
  const auto name = [](const libswap::Device* device) {
    return device == nullptr ? std::string("the host") : device->name();
  };
  if (given.data == nullptr && !given.empty())
    return Error{Code::usage, compose("{}{} elements handed in at no address", where, elems)};
  const libswap::Device* const device = device_of(config, wanted.side);
  if (given.device == device || given.empty()) return {};
  return Error{Code::usage,
               compose("{}it lies in the memory of {}, where that of {} is wanted", where,
                       name(given.device), name(device)),
               "EngineConfig::gradients_on and weights_on say where the trainer keeps them"};
}

}  // namespace

Result<> Engine::bind_weights(std::uint32_t param, libswap::Buffer my_pieces) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("bind_weights"));
  impl_->end_step();
  EBB_TRY(impl_->not_stopped());
  const StatePlan& plan = impl_->parts.plan;
  EBB_TRY(check_buffer(impl_->config, plan.rank(), param, my_pieces,
                       {"weights", plan.weights(), &ParamSpec::weight, impl_->config.weights_on}));
  impl_->weights[param] = my_pieces;
  impl_->bound[param] = true;
  return {};
}

Result<> Engine::gradient_ready(std::uint32_t param, libswap::Buffer my_pieces,
                                libswap::Event ready) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.handing_in("gradient_ready"));
  return impl_->take_gradient(param, my_pieces, std::move(ready));
}

Result<libswap::Event> Engine::add_gradient(std::uint32_t param, libswap::Buffer my_pieces,
                                            const libswap::Event& ready) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.handing_in("add_gradient"));
  return impl_->add_gradient(param, my_pieces, ready);
}

Result<> Engine::no_gradient(std::uint32_t param, WithoutGradient how) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.handing_in("no_gradient"));
  return impl_->take_none(param, how);
}

Result<> Engine::Impl::may_hand_in(std::uint32_t param, const libswap::Buffer& my_pieces) {
  EBB_TRY(may_hand_in(param));
  const StatePlan& plan = parts.plan;
  return check_buffer(config, plan.rank(), param, my_pieces,
                      {"gradient", plan.gradients(), &ParamSpec::gradient, config.gradients_on});
}

Result<> Engine::Impl::may_hand_in(std::uint32_t param) {
  end_step();
  EBB_TRY(not_stopped());
  if (param >= gradients.size())
    return Error{Code::usage, compose("there is no parameter {}", param)};
  if (gradient_given[param])
    return Error{Code::state,
                 compose("parameter {} has its gradient of step {} already",
                         config.model.params[param].name, step + 1),
                 sums ? "gradient_ready() takes the last of a step"
                      : "add gradients up before they are handed in, or see HandIn::added"};
  return {};
}

Result<> Engine::Impl::take_gradient(std::uint32_t param, libswap::Buffer my_pieces,
                                     libswap::Event ready) {
  const libswap::MutexLock lock(handing_in);
  EBB_TRY(may_hand_in(param, my_pieces));
  if (sums) {
    ready = sums->add(computing->of_gradients(), param, my_pieces, ready);
    my_pieces = sums->of(param);
  }
  handed_in(param, my_pieces, std::move(ready));
  return {};
}

Result<> Engine::Impl::take_none(std::uint32_t param, WithoutGradient how) {
  if (how != WithoutGradient::untouched && how != WithoutGradient::zero)
    return Error{Code::usage,
                 compose("no_gradient: {} is no way to do without one", static_cast<unsigned>(how)),
                 "it is WithoutGradient::untouched or zero"};
  const libswap::MutexLock lock(handing_in);
  EBB_TRY(may_hand_in(param));
  if (sums && sums->any(param))
    return Error{Code::state,
                 compose("parameter {} is said to have no gradient in step {}, of which some was "
                         "added",
                         config.model.params[param].name, step + 1),
                 "gradient_ready() takes the last of a step"};
  if (parts.plan.here(param)) absent.say(param, how);
  handed_in(param, {}, {});
  return {};
}

void Engine::Impl::handed_in(std::uint32_t param, const libswap::Buffer& my_pieces,
                             libswap::Event ready) {
  gradients[param] = my_pieces;
  gradient_events[param] = std::move(ready);
  gradient_given[param] = true;
  flow->ready_early(early.add(param));
}

Result<libswap::Event> Engine::Impl::add_gradient(std::uint32_t param,
                                                  const libswap::Buffer& my_pieces,
                                                  const libswap::Event& ready) {
  const libswap::MutexLock lock(handing_in);
  if (!sums)
    return Error{Code::usage, "this engine takes one gradient a step of each parameter",
                 "set PartitionSpec::hand_in to HandIn::added, or call gradient_ready"};
  EBB_TRY(may_hand_in(param, my_pieces));
  gradients[param] = sums->of(param);
  return gradient_events[param] = sums->add(computing->of_gradients(), param, my_pieces, ready);
}

bool Engine::Impl::has_gradient(std::uint32_t param) const {
  return gradient_given[param] || (sums && sums->any(param));
}

void Engine::Impl::next_gradients() {
  gradient_given.assign(gradient_given.size(), false);
  early.forget();
  absent.forget();
  if (sums) sums->forget();
}

void Engine::Impl::forget_gradients() {
  flow->drop_early();
  next_gradients();
}

}  // namespace ebb::libmuon
