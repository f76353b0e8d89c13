#include <algorithm>
#include <chrono>

#include "bindings/c/arguments.h"
#include "bindings/c/blobs.h"
#include "bindings/c/engine_calls.h"
#include "bindings/c/guarded.h"
#include "bindings/c/json.h"
#include "bindings/c/objects.h"
#include "bindings/c/trainer_buffers.h"
#include "ebb/formats/native/store_files.h"

namespace ebb::c {
namespace {

using libmuon::Engine;
using libmuon::StepResult;

Result<> check_params(const EngineObject& object, std::span<const uint32_t> params) {
  for (const uint32_t param : params)
    if (param >= object.names.size())
      return Error{Code::usage,
                   compose("parameter {}: the model has {}", param, object.names.size())};
  return {};
}

Result<> check_group(const EngineObject& object, uint32_t group) {
  if (group < object.groups) return {};
  return Error{Code::usage, compose("group {}: the model has {}", group, object.groups)};
}

// Parameters, and a buffer for each.
struct Pairs {
  std::span<const uint32_t> params;
  std::vector<libswap::Buffer> buffers;
};
Result<Pairs> pairs_of(const EngineObject& object, const uint32_t* params,
                       const ebb_buffer* buffers, uint32_t count) {
  Pairs pairs;
  EBB_TRY_ASSIGN(pairs.params, array_of(params, count, "params"));
  EBB_TRY(check_params(object, pairs.params));
  EBB_TRY_ASSIGN(const auto given, array_of(buffers, count, "the buffers"));
  TrainerBuffers taken(object.device.get());
  for (std::size_t i = 0; i < given.size(); ++i) {
    EBB_TRY_ASSIGN(const auto one, taken.ready(given[i], object.names[pairs.params[i]]));
    pairs.buffers.push_back(one);
  }
  return pairs;
}

// Buffers of some states by their names, `count` for each.
class NamedBuffers {
 public:
  struct Given {
    const char* const* states;
    uint32_t state_count;
    const uint32_t* params;
    const ebb_buffer* buffers;
    uint32_t count;
  };
  static Result<NamedBuffers> make(const EngineObject& object, const Given& given) {
    NamedBuffers all;
    EBB_TRY_ASSIGN(const auto names, array_of(given.states, given.state_count, "states"));
    for (std::size_t i = 0; i < names.size(); ++i) {
      EBB_TRY_ASSIGN(const std::string_view name, text_of(names[i], "the state's name"));
      const ebb_buffer* const own =
          given.buffers == nullptr ? nullptr : given.buffers + i * given.count;
      EBB_TRY_ASSIGN(const auto pairs, pairs_of(object, given.params, own, given.count));
      auto& buffers = all.buffers_.emplace_back();
      for (std::size_t k = 0; k < pairs.params.size(); ++k)
        buffers.push_back({pairs.params[k], pairs.buffers[k]});
      all.names_.push_back(name);
    }
    return all;
  }
  std::vector<libmuon::StateBuffers> states() const {
    std::vector<libmuon::StateBuffers> all;
    for (std::size_t i = 0; i < names_.size(); ++i) all.push_back({names_[i], buffers_[i]});
    return all;
  }

 private:
  std::vector<std::string_view> names_;
  std::vector<std::vector<libmuon::StateBuffer>> buffers_;
};

Result<> hand_in(Engine& engine, uint32_t param, const TrainerBuffers::Given& gradient,
                 uint8_t kind) {
  switch (kind) {
    case EBB_GRADIENT:
      return engine.gradient_ready(param, gradient.buffer, gradient.ready);
    case EBB_NONE_UNTOUCHED:
      return engine.no_gradient(param, libmuon::WithoutGradient::untouched);
    case EBB_NONE_ZERO:
      return engine.no_gradient(param, libmuon::WithoutGradient::zero);
    case EBB_ADD: {
      EBB_TRY_ASSIGN(const libswap::Event added,
                     engine.add_gradient(param, gradient.buffer, gradient.ready));
      added.wait();
      return {};
    }
    default:
      return Error{Code::usage, compose("kind {} of a gradient is none", kind)};
  }
}

Result<> gradients(EngineObject& object, const uint32_t* params, const ebb_buffer* buffers,
                   const uint8_t* kinds, uint32_t count) {
  EBB_TRY_ASSIGN(const auto numbers, array_of(params, count, "params"));
  EBB_TRY(check_params(object, numbers));
  EBB_TRY_ASSIGN(const auto given, array_of(buffers, count, "the gradients"));
  TrainerBuffers taken(object.device.get());
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t kind = kinds == nullptr ? uint8_t{EBB_GRADIENT} : kinds[i];
    const bool none = kind == EBB_NONE_UNTOUCHED || kind == EBB_NONE_ZERO;
    TrainerBuffers::Given gradient;
    if (!none) {
      EBB_TRY_ASSIGN(gradient, taken.given(given[i], object.names[numbers[i]]));
    }
    EBB_TRY(hand_in(*object.engine, numbers[i], gradient, kind));
  }
  return {};
}

Result<libmuon::StepArgs> step_args(const ebb_step_args* given) {
  libmuon::StepArgs args;
  if (given == nullptr) return args;
  EBB_TRY_ASSIGN(const ebb_step_args known, sized(given, "the step's arguments"));
  if (known.inv_scale != 0) args.inv_scale = known.inv_scale;
  args.max_norm = known.max_norm;
  return args;
}

Result<> answer_step(const EngineObject& object, const Result<StepResult>& made,
                     ebb_step_result* place) {
  EBB_TRY(made);
  if (place == nullptr) return {};
  return answer(place,
                ebb_step_result{0, made->norm, made->clip, object.engine->step_count(),
                                made->skipped ? 1 : 0},
                "the step's result");
}

Result<> save_to(EngineObject& object, const char* directory) {
  libmuon::Communicator& ranks = *object.ranks->ranks;
  const auto path = text_of(directory, "ebb_engine_save_to: directory");
  EBB_TRY(libswap::agree_all(ranks, path ? Result<>() : Result<>(path.error()), "saving"));
  EBB_TRY_ASSIGN(auto other, libswap::SwapDirectory::open(*object.io, *path, ranks));
  EBB_TRY(object.engine->save_to(*other));
  object.directories.push_back(std::move(other));
  return {};
}

Result<std::string> about(const EngineObject& object) {
  const Engine& engine = *object.engine;
  Json json;
  json.number("step", engine.step_count());
  json.text("origin", engine.origin());
  json.text("store", engine.store_directory().string());
  const auto store =
      formats::native::store_in_directory_name(engine.store_directory().filename().string());
  if (store) json.text("store_id", formats::native::to_string(*store));
  json.number("committed_generation", engine.committed_generation());
  json.number("committed_step", engine.committed_step());
  json.open_list("blobs");
  for (const std::string& key : engine.blob_keys()) json.item(key);
  json.close_list();
  json.open_object("taken");
  for (uint32_t param = 0; param < object.names.size(); ++param)
    if (engine.steps_taken(param) != engine.step_count())
      json.number(object.names[param], engine.steps_taken(param));
  json.close_object();
  json.open_list("groups");
  for (uint32_t group = 0; group < object.groups; ++group) {
    EBB_TRY_ASSIGN(const auto settings, engine.group(group));
    json.open_object();
    json.text("optimizer", settings.optimizer);
    json.texts("settings", settings.settings);
    json.close_object();
  }
  json.close_list();
  return json.whole();
}

std::string stats(const EngineObject& object) {
  Json json;
  json.counters(libmuon::stats_of(object.engine->stats()));
  return json.whole();
}

}  // namespace
}  // namespace ebb::c

using ebb::Result;
using ebb::c::beside_others;
using ebb::c::collectively;
using ebb::c::EngineObject;
using ebb::c::with_engine;

ebb_status ebb_engine_bind(ebb_engine* engine, const uint32_t* params, const ebb_buffer* weights,
                           uint32_t count) noexcept {
  return with_engine(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const auto pairs, ebb::c::pairs_of(object, params, weights, count));
    for (uint32_t i = 0; i < count; ++i)
      EBB_TRY(object.engine->bind_weights(pairs.params[i], pairs.buffers[i]));
    return {};
  });
}

ebb_status ebb_engine_install_weights(ebb_engine* engine) noexcept {
  return collectively(engine,
                      [](EngineObject& object) { return object.engine->install_weights(); });
}

ebb_status ebb_engine_take_weights(ebb_engine* engine, const uint32_t* params,
                                   uint32_t count) noexcept {
  return collectively(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const auto given, ebb::c::array_of(params, count, "params"));
    return object.engine->take_weights(given);
  });
}

ebb_status ebb_engine_gradients(ebb_engine* engine, const uint32_t* params,
                                const ebb_buffer* gradients, const uint8_t* kinds,
                                uint32_t count) noexcept {
  return beside_others(engine, [&](EngineObject& object) {
    return ebb::c::gradients(object, params, gradients, kinds, count);
  });
}

ebb_status ebb_engine_set(ebb_engine* engine, uint32_t group, const char* key,
                          double value) noexcept {
  return with_engine(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY(ebb::c::check_group(object, group));
    EBB_TRY_ASSIGN(const std::string_view name, ebb::c::text_of(key, "ebb_engine_set: key"));
    return object.engine->set(group, name, value);
  });
}

ebb_status ebb_engine_step(ebb_engine* engine, const ebb_step_args* args,
                           ebb_step_result* result) noexcept {
  return collectively(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const auto known, ebb::c::step_args(args));
    return ebb::c::answer_step(object, object.engine->step(known), result);
  });
}

ebb_status ebb_engine_begin_step(ebb_engine* engine, const ebb_step_args* args,
                                 ebb_step_result* result) noexcept {
  return collectively(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const auto known, ebb::c::step_args(args));
    return ebb::c::answer_step(object, object.engine->begin_step(known), result);
  });
}

ebb_status ebb_engine_wait_step(ebb_engine* engine, ebb_step_result* result) noexcept {
  return collectively(engine, [&](EngineObject& object) {
    return ebb::c::answer_step(object, object.engine->wait_step(), result);
  });
}

ebb_status ebb_engine_step_ended(ebb_engine* engine, uint32_t limit_ms, int32_t* ended) noexcept {
  return with_engine(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY(ebb::c::check_place(ended, "ebb_engine_step_ended: ended"));
    EBB_TRY_ASSIGN(const bool now,
                   object.engine->step_ends_within(std::chrono::milliseconds(limit_ms)));
    *ended = now ? 1 : 0;
    return {};
  });
}

ebb_status ebb_engine_wait_parameter(ebb_engine* engine, uint32_t param) noexcept {
  return beside_others(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY(ebb::c::check_params(object, std::span(&param, 1)));
    return object.engine->weights_ready(param);
  });
}

ebb_status ebb_engine_continue(ebb_engine* engine, ebb_step_result* result) noexcept {
  return collectively(engine, [&](EngineObject& object) {
    return ebb::c::answer_step(object, object.engine->continue_step(), result);
  });
}

ebb_status ebb_engine_abandon(ebb_engine* engine) noexcept {
  return collectively(engine, [](EngineObject& object) { return object.engine->abandon_step(); });
}

ebb_status ebb_engine_save_to(ebb_engine* engine, const char* directory) noexcept {
  return collectively(engine,
                      [&](EngineObject& object) { return ebb::c::save_to(object, directory); });
}

ebb_status ebb_engine_read_states(ebb_engine* engine, const char* const* states,
                                  uint32_t state_count, const uint32_t* params,
                                  const ebb_buffer* into, uint32_t count) noexcept {
  return collectively(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const auto all,
                   ebb::c::NamedBuffers::make(object, {states, state_count, params, into, count}));
    return object.engine->read_states(all.states());
  });
}

ebb_status ebb_engine_write_states(ebb_engine* engine, const char* const* states,
                                   uint32_t state_count, const uint32_t* params,
                                   const ebb_buffer* from, uint32_t count, int64_t taken) noexcept {
  return collectively(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const auto all,
                   ebb::c::NamedBuffers::make(object, {states, state_count, params, from, count}));
    std::optional<std::uint64_t> steps;
    if (taken >= 0) steps = static_cast<std::uint64_t>(taken);
    return object.engine->write_states(all.states(), steps);
  });
}

ebb_status ebb_engine_snapshot(ebb_engine* engine, int32_t* begun) noexcept {
  return collectively(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const bool marked, object.engine->snapshot());
    if (begun != nullptr) *begun = marked ? 1 : 0;
    return {};
  });
}

ebb_status ebb_engine_wait_snapshot(ebb_engine* engine, uint64_t* generation) noexcept {
  return collectively(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const std::uint64_t committed, object.engine->wait_snapshot());
    if (generation != nullptr) *generation = committed;
    return {};
  });
}

ebb_status ebb_engine_committed(ebb_engine* engine, uint64_t* generation, uint64_t* step) noexcept {
  return with_engine(engine, [&](EngineObject& object) -> Result<> {
    if (generation != nullptr) *generation = object.engine->committed_generation();
    if (step != nullptr) *step = object.engine->committed_step();
    if (const ebb::Error* const why = object.engine->snapshot_error()) return *why;
    return {};
  });
}

ebb_status ebb_engine_set_blob(ebb_engine* engine, const char* key, const void* bytes,
                               uint64_t size) noexcept {
  return with_engine(engine, [&](EngineObject& object) {
    return ebb::c::set_blob(*object.engine, {key, "ebb_engine_set_blob"}, bytes, size);
  });
}

ebb_status ebb_engine_blob(ebb_engine* engine, const char* key, void* bytes,
                           uint64_t* size) noexcept {
  return with_engine(engine, [&](EngineObject& object) {
    return ebb::c::blob(*object.engine, {key, "ebb_engine_blob"}, bytes, size);
  });
}

ebb_status ebb_engine_about(ebb_engine* engine, char** json) noexcept {
  return with_engine(engine, [&](EngineObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const std::string text, ebb::c::about(object));
    return ebb::c::answer_text(json, text, "ebb_engine_about: json");
  });
}

ebb_status ebb_engine_stats(ebb_engine* engine, char** json) noexcept {
  return with_engine(engine, [&](EngineObject& object) {
    return ebb::c::answer_text(json, ebb::c::stats(object), "ebb_engine_stats: json");
  });
}

ebb_status ebb_engine_begin_trace(ebb_engine* engine) noexcept {
  return with_engine(engine, [](EngineObject& object) -> Result<> {
    object.trace.start();
    return {};
  });
}

ebb_status ebb_engine_end_trace(ebb_engine* engine, char** json) noexcept {
  return with_engine(engine, [&](EngineObject& object) {
    object.trace.stop();
    return ebb::c::answer_text(json, object.trace.to_chrome_json(), "ebb_engine_end_trace: json");
  });
}
