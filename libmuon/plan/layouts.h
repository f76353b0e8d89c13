// Layouts: where the elements of every parameter lie: gradients and weights as the trainer has
// them, matrices whole where they are computed, the state where it is kept. The same on all ranks,
// but for whose they are asked.
//
// Every Muon matrix is computed whole at one rank (choose_owners()), where its state lives too, or
// that lives on the gradient's own shard (Placement), as AdamW's state does.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ebb/formats/layout/layout.h"
#include "ebb/libmuon/plan/model.h"
#include "ebb/libmuon/plan/model_layout.h"

namespace ebb::libmuon {

class Layouts {
 public:
  // `block`: so many elements of momentum are not parted. Fails (Code::layout, Code::usage).
  static Result<Layouts> make(const ModelSpec& model, const PartitionSpec& partition,
                              std::span<const ParamClass> classes, std::uint64_t block, Rank rank);

  Rank rank() const { return rank_; }
  std::uint32_t world() const { return owners().spec().mesh.world(); }
  Placement placement() const { return placement_; }
  std::size_t params() const { return muon_.size(); }
  bool muon(std::uint32_t param) const { return muon_[param]; }

  const ModelLayout& gradients() const { return *gradients_; }
  const ModelLayout& weights() const { return *weights_; }
  const ModelLayout& matrices() const { return *matrices_; }  // Muon's, whole at their owners
  // Of the runs of matrices that lie at one owner, in the order of parameters.
  const Layout& owners() const { return matrices_->layout(0); }
  // Of AdamW ranges, and in Placement::shard of all state.
  const ModelLayout& shards() const { return *shards_; }
  const ModelLayout& state() const { return *state_; }
  // Of what travels there: U and O.
  const ModelLayout& updates() const { return updates_ ? *updates_ : *shards_; }
  const ModelLayout& results() const { return results_ ? *results_ : *shards_; }

  bool on_shards(std::uint32_t param) const {
    return !muon_[param] || placement_ == Placement::shard;
  }
  // Whether this rank is one of those that hold the parameter: an expert is not everywhere.
  bool here(std::uint32_t param) const;
  // Matrices of one owner that follow each other.
  struct OwnRun {
    FlatRange range;
    Rank owner{};
  };
  // That of an element of a Muon parameter.
  OwnRun run_of(std::uint32_t param, std::uint64_t element) const;
  // Whether this rank is the one that computes the matrix of such an element.
  bool computes(std::uint32_t param, std::uint64_t element) const {
    return run_of(param, element).owner == rank_;
  }
  // The elements of a parameter whose state this rank keeps, ascending.
  std::vector<FlatRange> own_ranges(std::uint32_t param) const;
  // Whether this rank's buffer in `trainer` (gradients() or weights()) holds what it keeps the
  // state of: of a matrix' run that has the element, of all that AdamW has of the parameter.
  bool in_place(std::uint32_t param, std::uint64_t element, const ModelLayout& trainer) const;

 private:
  Layouts(Rank rank, Placement placement) : rank_(rank), placement_(placement) {}
  Result<> lay_out(const ModelSpec& model, const PartitionSpec& partition,
                   std::span<const ParamClass> classes);
  Result<> lay_matrices(const ModelSpec& model, std::uint64_t block);
  void choose_homes(const ModelSpec& model);

  Rank rank_;
  Placement placement_;
  std::vector<bool> muon_;  // by parameter
  std::optional<ModelLayout> gradients_, weights_, matrices_, shards_, state_, updates_, results_;
};

}  // namespace ebb::libmuon
