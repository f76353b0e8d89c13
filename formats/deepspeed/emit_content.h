// What of a catalog a DeepSpeed checkpoint holds, sorted into DeepSpeed's own categories: groups of
// trained parameters in flat order, frozen ones, buffers, tied names, and values. Internal to
// formats/deepspeed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/emit.h"

namespace ebb::formats::deepspeed {

struct Trained {  // a parameter that an optimizer group trains
  std::string name;
  Shape shape;
  std::optional<std::uint32_t> param;  // content tensor with the model's own copy
  std::uint32_t source = 0;            // content tensor the master is made of; may be `param`
  std::map<std::string, std::uint32_t> states;  // state name -> content tensor
  std::optional<std::int64_t> steps;
};

struct OutGroup {
  std::uint32_t number = 0;  // of the content's group
  std::vector<std::pair<std::string, Value>> settings;
  std::vector<Trained> params;  // in the order of the engine's flat buffers
  bool muon = false;
  bool tensor_steps =
      false;  // torch's own Adam counts steps in a tensor, DeepSpeed's in an integer
};

struct Whole {  // a tensor that is not trained
  std::string name;
  std::uint32_t tensor = 0;
};

struct Content {
  std::int64_t stage = 2;
  std::uint32_t world = 1;
  Policy policy = Policy::zero12;
  DType model_dtype = DType::bf16;
  std::vector<OutGroup> groups;
  std::vector<Whole> frozen;
  std::vector<Whole> buffers;
  std::vector<std::pair<std::string, std::string>> tied;  // alias -> owner, the owner is written
  std::int64_t step = 0;
  bool counts_the_run_alone = false;           // and says so of each parameter that has a counter
  std::string tag;                             // of the folder; "": the usual one
  std::string version;                         // of DeepSpeed, as the files will say
  Value config;                                // ds_config
  std::map<std::string, const Value*> engine;  // values with a place of their own, by DeepSpeed key
  std::vector<std::pair<std::string, const Value*>> client;  // the rest, in stored order

  const Value* value(std::string_view key) const {
    const auto found = engine.find(std::string(key));
    return found == engine.end() ? nullptr : found->second;
  }
};

enum class Form : std::uint8_t { ranks, universal };

// Fills `plan` with what the format cannot hold. Fails (Code::unsupported, Code::layout) for
// content that has no DeepSpeed form, naming the parameter and why.
Result<Content> gather_content(const EmitRequest& request, Form form, EmitPlan& plan);

// The order of groups and of the parameters in them, by which alone an engine finds its own.
// Source: DeepSpeed 0.19.8 engine.py (_muon_param_groups), original_muon.py, stage_1_and_2.py.

// The engine names the halves of a group "<its name>-muon-params" and "<its name>-adam-params", and
// "muon-params", "adam-params" where there is one: the part before. nullopt for other groups.
std::optional<std::string_view> job_group(
    const std::vector<std::pair<std::string, Value>>& settings);

// Puts the groups and their parameters in the order of an engine's of out.stage on out.world ranks.
// What had to be guessed is noted in the plan.
void order_groups(const Catalog& content, bool made_by_engine, Content& out, EmitPlan& plan);

}  // namespace ebb::formats::deepspeed
