#include "tests/durability/histories/wanted.h"

#include <algorithm>
#include <bit>

#include "tests/durability/histories/configuration.h"

namespace ebb::test {
namespace {

bool leaves_out(const libmuon::ModelSpec& model, const std::string& tensor) {
  for (std::uint32_t param = 0; param < model.params.size(); ++param)
    if (tensor == model.params[param].name + " master")
      return out_of(model, param) == libmuon::Out::update;
  return false;
}

// The present step.
Result<> note(HistoryTrainer& trainer, Wanted& wanted, double norm, Masters masters) {
  libmuon::Engine& engine = trainer.engine();
  EBB_TRY(engine.snapshot());
  EBB_TRY(engine.wait_snapshot());
  EBB_TRY_ASSIGN(const auto pinned, engine.open_export());
  EBB_TRY_ASSIGN(const auto checkpoint, pinned.describe());
  wanted.stored.push_back(tensors_of(*checkpoint));
  wanted.made.push_back(masters);
  wanted.masters.push_back(std::move(masters));
  wanted.norms.push_back(norm);
  return {};
}

Masters masters_in(const StoredTensors& stored, const libmuon::ModelSpec& model) {
  Masters all;
  for (const auto& param : model.params) all.push_back(stored.at(param.name + " master"));
  return all;
}

// What is written then is masters, whoever keeps them, and nothing else is another one.
Result<> write(HistoryTrainer& trainer, const Meaning& meaning, std::uint64_t step,
               Wanted& wanted) {
  if (!trainer.write(step)) return {};
  EBB_TRY(trainer.take_written());
  for (std::uint32_t param = 0; param < wanted.masters.back().size(); ++param) {
    if (!is_written(meaning, param, step)) continue;
    auto& master = wanted.masters.back()[param];
    for (std::uint64_t i = 0; i < master.size(); ++i) master[i] = written(meaning, param, step, i);
    wanted.stored.back().at(trainer.name_of(param) + " master") = master;
  }
  return {};
}

Result<> train(HistoryTrainer& trainer, const Meaning& meaning, const libmuon::ModelSpec& model,
               Wanted& wanted) {
  EBB_TRY(note(trainer, wanted, 0, initial_masters(model)));
  Draws draws(meaning.seed);
  for (std::uint64_t step = 1; step <= kHistorySteps; ++step) {
    EBB_TRY(set_learning_rates(trainer.engine(), meaning));
    EBB_TRY(trainer.hand_in(draws));
    EBB_TRY_ASSIGN(const auto result, trainer.engine().step(kHistoryArgs));
    if (result.skipped) return Error{Code::state, compose("step {} was skipped", step)};
    EBB_TRY(note(trainer, wanted, result.norm, {}));
    wanted.made.back() = wanted.masters.back() = masters_in(wanted.stored.back(), model);
    EBB_TRY(write(trainer, meaning, step, wanted));
    if (std::string found = trainer.differing(wanted.masters.back()); !found.empty())
      return Error{Code::state, "the plain run's own weights: " + found};
  }
  return {};
}

}  // namespace

Result<Wanted> wanted_of(const Meaning& meaning, const std::filesystem::path& directory) {
  Meaning plain = meaning;
  plain.out = libmuon::Out::weights;  // what a trainer does with updates
  const Start start = plain_start(kHistorySteps);
  EBB_TRY_ASSIGN(const auto config, config_of(plain, start));
  World world(disk(), directory, 1);
  Wanted wanted;
  for (const auto& answer : world.run([&](libmuon::Communicator& ranks) -> Result<> {
         HistoryTrainer trainer(plain, start, config, ranks);
         EBB_TRY(trainer.open(world.io(), world.swap()));
         return train(trainer, plain, config.model, wanted);
       }))
    EBB_TRY(answer);
  return wanted;
}

std::string differing(const StoredTensors& stored, const StoredTensors& wanted,
                      const libmuon::ModelSpec& model) {
  for (const auto& [name, values] : wanted) {
    const auto found = stored.find(name);
    if (found == stored.end() && leaves_out(model, name)) continue;
    if (found == stored.end()) return "nothing is stored of " + name;
    if (found->second.size() != values.size()) return name + " is of another size";
    for (std::size_t i = 0; i < values.size(); ++i)
      if (std::bit_cast<std::uint32_t>(found->second[i]) != std::bit_cast<std::uint32_t>(values[i]))
        return compose("{}[{}] is stored as {}, not {}", name, i, exactly(found->second[i]),
                       exactly(values[i]));
  }
  for (const auto& [name, values] : stored)
    if (!wanted.contains(name)) return "what is stored has " + name;
  return {};
}

}  // namespace ebb::test
