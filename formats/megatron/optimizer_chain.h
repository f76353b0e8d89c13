// Which optimizers a Megatron job chains, and where each of them keeps what. Internal to
// formats/megatron.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats::megatron {

// Groups of one optimizer's name share an optimizer, Muon's the first, else in order of appearance;
// without Muon, whose layer-wise optimizer has them all, experts have one of their own.
class OptimizerChain {
 public:
  // `groups`: the content's, and any beside them; those without a name are in the first optimizer
  // that is not Muon's.
  OptimizerChain(const Catalog& content, const std::vector<GroupEntry>& groups);

  std::uint32_t count() const { return count_; }
  std::uint32_t of_group(std::size_t group) const { return numbers_[group]; }
  // By its group; a parameter in none belongs to the first optimizer that keeps such states.
  std::uint32_t of_param(const std::string& name) const;
  // Whether keys begin with "chained_<N>.".
  bool prefixed() const { return prefixed_; }
  // Whether a distributed optimizer has the state, which calls master weights `param` and counts
  // steps in the groups; the layer-wise one has `fp32_param` and one count of all.
  bool is_distributed(std::uint32_t number) const;

 private:
  void number_groups(const std::vector<GroupEntry>& groups);

  std::vector<std::uint32_t> numbers_;
  std::uint32_t count_ = 1;
  bool prefixed_ = false;
  bool muon_ = false;
  bool others_distributed_ = true;
  std::uint32_t first_other_ = 0;  // the first that is not Muon's
  std::map<std::string, std::uint32_t, std::less<>> of_param_;
};

// Whether what Muon does not train is in a distributed optimizer beside its layer-wise one, as by
// default since 0.18; false where the run said otherwise, or is older.
bool has_distributed_beside_muon(const Catalog& content);

}  // namespace ebb::formats::megatron
