// Parameters that an optimizer only numbers: the names that somebody says, and how it is said that
// others were inferred.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/state_dict/infer.h"

namespace ebb::formats {

// Whether the text is a number, as torch.optim counts parameters.
bool is_index(std::string_view text);

// The names that --names says, a parameter for each number of the optimizers in their order.
class SaidNames {
 public:
  explicit SaidNames(std::span<const std::string> names) : names_(names) {}

  // One more optimizer, whose highest number is `count` - 1. Gives the number of its first name.
  std::size_t add_optimizer(std::size_t count);
  // Code::usage when there are not as many names as numbers, or one is there twice.
  Result<> check_count() const;
  // The name at `place`; "" where there are too few.
  std::string_view at(std::size_t place) const;
  // Code::usage when the name is none of the model's or its shape is not that of the states.
  // REQUIRES: `place` is one of the names.
  Result<> check(std::size_t place, const StateShapes& states,
                 const std::vector<ModelParam>& model) const;

 private:
  std::span<const std::string> names_;
  std::size_t count_ = 0;
};

// Where in its path an optimizer's state has the number of its parameter; nullopt: it has the name.
std::optional<std::size_t> place_of_number(const TensorEntry& tensor);
// A whole number, or the word for one, as a DCP has; nullopt: neither.
std::optional<std::size_t> number_of(const PathItem& item);

// What groups call their parameters, so that whoever loads them finds the states: a number where
// the keys of the optimizer's states have numbers, a name elsewhere.
class ParamNumbers {
 public:
  using Owner = std::function<std::size_t(const std::string& name)>;  // the optimizer's number
  ParamNumbers(const Catalog& content, const Owner& owner);

  bool counts(std::size_t optimizer) const { return next_.contains(optimizer); }
  // Of groups in their order: torch counts all parameters, those without a state, too.
  Value called(std::size_t optimizer, const std::string& name);

 private:
  std::map<std::string, std::int64_t, std::less<>> known_;  // by name
  std::map<std::size_t, std::int64_t> next_;                // of each optimizer that counts
};

// How the parameter of a described tensor came by its name.
NamedBy named_by(const Catalog& catalog, const TensorEntry& tensor);

// One line for each kind of inference, for people; empty where all names are recorded. Each begins
// so.
inline constexpr std::string_view kInferredNames = "names of ";
struct InferredCount {
  std::size_t by_shapes = 0;
  std::size_t by_order = 0;

  void add(NamedBy by);
  std::vector<std::string> lines() const;
};

// Of a described checkpoint.
std::vector<std::string> inferred_names(const Catalog& catalog);

// What leaves a state dict under names by order, into what no job resumes from, takes along a value
// that says so: whoever reads it knows them for what they are.
inline constexpr std::string_view kByOrderKey = "names_by_order";  // how many states
void say_by_order(Catalog& content, std::size_t states);
InferredCount said_by_order(const Catalog& catalog);

// What to type for names that nothing records. `job`: what has the model and the optimizer.
std::string names_hint(std::string_view job = {});

// SaidNames for a catalog of another format that has numbers for names, "<place>.<number>", in its
// groups and states. Code::usage where the names do not fit.
Result<> say_names(Catalog& catalog, std::span<const std::string> names);

}  // namespace ebb::formats
