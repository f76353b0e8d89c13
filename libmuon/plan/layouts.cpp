#include "ebb/libmuon/plan/layouts.h"

#include "ebb/libmuon/plan/owners.h"
#include "ebb/libmuon/plan/param_classes.h"

namespace ebb::libmuon {

Result<Layouts> Layouts::make(const ModelSpec& model, const PartitionSpec& partition,
                              std::span<const ParamClass> classes, std::uint64_t block, Rank rank) {
  Layouts layouts(rank, partition.placement);
  EBB_TRY(layouts.lay_out(model, partition, classes));
  EBB_TRY(layouts.lay_matrices(model, block));
  if (index_of(rank) >= layouts.world())
    return Error{Code::usage, compose("rank {} in a world of {}", index_of(rank), layouts.world())};
  layouts.choose_homes(model);
  return layouts;
}

Result<> Layouts::lay_out(const ModelSpec& model, const PartitionSpec& partition,
                          std::span<const ParamClass> classes) {
  EBB_TRY_ASSIGN(gradients_, ModelLayout::make(classes, &ParamClass::gradients));
  EBB_TRY_ASSIGN(weights_, ModelLayout::make(classes, &ParamClass::weights));
  EBB_TRY_ASSIGN(shards_, ModelLayout::make(classes, &ParamClass::shards));
  std::vector<DType> gradients, weights;
  for (const ParamSpec& param : model.params) {
    gradients.push_back(partition.hand_in == HandIn::added ? DType::f32 : param.gradient);
    weights.push_back(param.weight);
  }
  gradients_->set_dtypes(std::move(gradients));
  if (partition.hand_in == HandIn::partial) gradients_->set_in_parts();
  weights_->set_dtypes(std::move(weights));
  return {};
}

Result<> Layouts::lay_matrices(const ModelSpec& model, std::uint64_t block) {
  Layout::Spec owners;
  owners.policy = Policy::layer_wise;
  owners.mesh.shard_world = gradients_->layout(0).spec().mesh.world();
  const std::vector<OwnedRun> owned = choose_owners(model, {*gradients_, *weights_}, block);
  std::vector<Shape> shapes;
  std::vector<Transit> runs;
  owners.owners.reserve(owned.size());
  shapes.reserve(owned.size());
  runs.reserve(owned.size());
  for (const OwnedRun& run : owned) {
    owners.owners.push_back(run.owner);
    shapes.push_back({run.range.count});
    runs.push_back({run.param, run.range});
  }
  EBB_TRY_ASSIGN(Layout matrices, Layout::make(std::move(owners), std::move(shapes)));
  matrices_.emplace(std::move(matrices), runs, model.params.size());
  return {};
}

void Layouts::choose_homes(const ModelSpec& model) {
  std::vector<bool> on_shards;
  for (std::uint32_t param = 0; param < model.params.size(); ++param) {
    muon_.push_back(is_muon(model, param));
    on_shards.push_back(this->on_shards(param));
  }
  state_ = ModelLayout::either(*matrices_, *shards_, on_shards);
  if (placement_ == Placement::owner) return;
  const auto travelling = [&](DType (*dtype_of)(const MuonSpec&)) {
    std::vector<DType> dtypes(params(), DType::f32);
    for (std::uint32_t param = 0; param < params(); ++param)
      if (muon_[param]) dtypes[param] = dtype_of(muon_spec(model, param));
    ModelLayout layout = *shards_;
    layout.set_dtypes(std::move(dtypes));
    return layout;
  };
  updates_ = travelling(update_dtype);
  results_ = travelling(result_dtype);
}

Layouts::OwnRun Layouts::run_of(std::uint32_t param, std::uint64_t element) const {
  const ModelLayout::Part run = matrices_->run_of({param, {element, 1}});
  return {{run.slice.first, run.slice.elems}, Rank{run.layout.spec().owners[run.tensor]}};
}

std::vector<FlatRange> Layouts::own_ranges(std::uint32_t param) const {
  return state_->runs(param, rank_);
}

bool Layouts::here(std::uint32_t param) const {
  return gradients_->part_with(param, rank_).has_value();
}

bool Layouts::in_place(std::uint32_t param, std::uint64_t element,
                       const ModelLayout& trainer) const {
  if (trainer.in_parts()) return false;
  if (!on_shards(param)) {
    const OwnRun run = run_of(param, element);
    return run.owner != rank_ || trainer.holds({param, run.range}, rank_);
  }
  const auto own = shards_->part_with(param, rank_), held = trainer.part_with(param, rank_);
  if (!own || !held) return true;
  const FlatRange kept = own->held(rank_);
  return formats::overlap(held->held(rank_), kept).count == kept.count;
}

}  // namespace ebb::libmuon
