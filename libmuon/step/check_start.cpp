#include "ebb/libmuon/step/check_start.h"

namespace ebb::libmuon {

namespace {

using formats::native::to_string;

bool gives(const Start& start) {
  return start.checkpoint != nullptr || !start.weights.empty() || start.initial;
}

std::string text_of(const FoundStore& store) {
  return compose("store {}, generation {}, step {}", to_string(store.uuid), store.generation,
                 store.step);
}

std::string text_of(const ExpectedStore& store) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (store.uuid) add("store " + to_string(*store.uuid));
  if (store.generation) add(compose("generation {}", *store.generation));
  if (store.step) add(compose("step {}", *store.step));
  return text;
}

std::string_view name_of(Begin begin) {
  switch (begin) {
    case Begin::store_or_given:
      return "the store, or what is given";
    case Begin::store:
      return "the store";
    case Begin::given:
      return "what is given";
  }
  return "";
}

}  // namespace

Result<> check(const ExpectedStore& expected, const FoundStore& found) {
  const auto is = [](const auto& wanted, const auto& there) { return !wanted || *wanted == there; };
  if (is(expected.uuid, found.uuid) && is(expected.generation, found.generation) &&
      is(expected.step, found.step))
    return {};
  return Error{Code::state,
               compose("{} was expected, and there is {}", text_of(expected), text_of(found)),
               "Begin::given begins from what is given, and replaces that store"};
}

Result<> check(const Start& start, std::size_t params, bool store, const std::string& directory) {
  if (name_of(start.begin).empty() || start.old_store > OldStore::dropped_first)
    return Error{Code::usage, "Start: begin or old_store is none of its values"};
  if (start.begin == Begin::given && start.expected.any())
    return Error{Code::usage, "a store is expected, and Begin::given resumes none",
                 "Begin::store_or_given and Begin::store resume the store that is expected"};
  if (start.begin != Begin::given && start.old_store == OldStore::dropped_first)
    return Error{Code::usage,
                 "OldStore::dropped_first is for Begin::given: else the store is read"};
  if (!start.weights.empty() && start.weights.size() != params)
    return Error{Code::usage, compose("weights of {} parameters are given, the model has {}",
                                      start.weights.size(), params)};
  if (!store && start.expected.any())
    return Error{Code::state, compose("{} was expected, and {} holds no store",
                                      text_of(start.expected), directory)};
  if (!store && start.begin == Begin::store)
    return Error{Code::usage, directory + " holds no store",
                 "Begin::store_or_given begins from what is given where there is none"};
  if (gives(start) || (store && start.begin != Begin::given)) return {};
  return Error{Code::usage,
               compose("{}{} neither a checkpoint nor weights to begin from", directory,
                       store ? ": there are" : " holds no store, and there are"),
               "pass weights, or initial ones, to Engine::open"};
}

std::vector<libswap::Setting> settings_of(const Start& start) {
  return {{"what the state begins from", std::string(name_of(start.begin))},
          {"the store that is expected", text_of(start.expected)},
          {"when the old store goes",
           start.old_store == OldStore::dropped_first ? "first" : "when the new one is committed"},
          {"the checkpoint to begin from", start.checkpoint == nullptr ? "none" : "given"},
          {"the weights to begin from", !start.weights.empty() ? "bound"
                                        : start.initial        ? "initial ones"
                                                               : "none"}};
}

}  // namespace ebb::libmuon
