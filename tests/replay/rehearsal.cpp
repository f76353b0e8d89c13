#include "tests/replay/rehearsal.h"

#include <algorithm>
#include <cstdlib>

#include "ebb/formats/core/bf16.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/tree/file_tree.h"

namespace ebb::replay {
namespace {

libmuon::EngineConfig config_of(const Rehearsal::Of& of) {
  const formats::Layout::Spec whole{.policy = Policy::replicated, .mesh = {1, 1}};
  libmuon::EngineConfig config{.model = {},
                               .partition = {.gradients = whole, .weights = whole},
                               .budget_bytes = ~std::uint64_t{0},
                               .tile_bytes = 4096};
  config.model.groups = {of.group};
  config.model.params = {{"parameter", of.shape, 0}};
  config.bf16 = of.bf16;
  if (of.dtype == DType::bf16) config.dtypes = {{"momentum_buffer", DType::bf16}};
  return config;
}

}  // namespace

Rehearsal::~Rehearsal() = default;

Result<std::unique_ptr<Rehearsal>> Rehearsal::open(Of of, const std::filesystem::path& folder) {
  std::unique_ptr<Rehearsal> one(new Rehearsal(std::move(of)));
  libmuon::EngineConfig config = config_of(one->of_);
  EBB_TRY_ASSIGN(const auto plan, libmuon::Engine::plan(config, Rank{0}));
  config.budget_bytes = plan.least_budget_bytes;
  EBB_TRY_ASSIGN(auto disk, libswap::open_backend(libswap::BackendChoice::automatic));
  EBB_TRY_ASSIGN(one->io_, libswap::IoQueue::start(std::move(disk.backend), {}));
  EBB_TRY_ASSIGN(one->swap_, libswap::SwapDirectory::open(*one->io_, folder));
  one->ranks_ = libmuon::make_thread_ranks(1);
  const auto initial = [&](std::uint32_t, FlatRange range, std::span<float> into) {
    std::copy_n(one->of_.param.begin() + static_cast<std::ptrdiff_t>(range.first), range.count,
                into.begin());
  };
  EBB_TRY_ASSIGN(one->engine_, libmuon::Engine::open(config, *one->ranks_.front(), *one->io_,
                                                     *one->swap_, {.initial = initial}));
  EBB_TRY(one->engine_->bind_weights(0, one->weights_));
  EBB_TRY(one->engine_->install_weights());
  return one;
}

Result<> Rehearsal::step(const std::vector<float>& gradient) {
  gradient_ = gradient;
  EBB_TRY(engine_->gradient_ready(0, gradient_));
  EBB_TRY_ASSIGN(const auto result, engine_->step({}));
  if (result.skipped)
    return Error{Code::usage, compose("step {} is skipped: its gradient is not finite, or so large "
                                      "that state could overflow",
                                      engine_->step_count() + 1)};
  return {};
}

Result<std::vector<float>> Rehearsal::state(std::string_view name) {
  EBB_TRY(engine_->snapshot());
  EBB_TRY(engine_->wait_snapshot());
  EBB_TRY_ASSIGN(auto tree, libswap::open_tree(engine_->store_directory()));
  EBB_TRY_ASSIGN(const auto store, formats::describe(std::move(tree)));
  for (const TensorEntry& tensor : store->catalog().tensors) {
    if (tensor.state != name) continue;
    ByteVector stored(formats::volume(tensor.shape) * bytes_of(tensor.dtype));
    EBB_TRY(formats::read_box(*store, tensor, formats::whole(tensor.shape), stored));
    std::vector<float> values(formats::volume(tensor.shape));
    formats::cast_floats(tensor.dtype, stored, DType::f32,
                         std::as_writable_bytes(std::span(values)));
    return values;
  }
  return Error{Code::incomplete, compose("the store has no {}", name)};
}

Result<std::unique_ptr<Scratch>> Scratch::make() {
  std::string path = (std::filesystem::temp_directory_path() / "muon-replay-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr)
    return Error{Code::io, compose("{}: cannot be made", path), "set TMPDIR to another folder"};
  return std::unique_ptr<Scratch>(new Scratch(path));
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path Scratch::next() { return path_ / std::to_string(++count_); }

}  // namespace ebb::replay
