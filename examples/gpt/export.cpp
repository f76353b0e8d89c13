#include "examples/gpt/export.h"

#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/tree/file_tree.h"
#include "ebb/libswap/write/write_checkpoint.h"

namespace ebb::gpt {

Exporter::Exporter(const ExportRequest& request, std::uint32_t world, libswap::IoQueue& io,
                   libmuon::Engine& engine, Rank rank, std::atomic<bool>& written)
    : request_(request),
      world_(world),
      io_(io),
      engine_(engine),
      rank_(rank),
      written_(written),
      too_late_(engine.step_count() > request.step) {
  if (too_late_) phase_ = Phase::done;
}

Exporter::~Exporter() {
  if (writer_.joinable()) writer_.join();
}

Result<formats::Conversion> Exporter::plan(const Checkpoint& source) const {
  return formats::plan_conversion(source, {.from = formats::format_of(source.catalog()),
                                           .to = *formats::format_named(request_.format),
                                           .world = world_});
}

// The hints of the library are about a program that only converts.
Result<> Exporter::check_place(const formats::EmitPlan& plan) const {
  auto writable = libswap::check_destination(io_, plan, request_.directory);
  if (writable) return {};
  Error error = std::move(writable).error().within(
      compose("--export {}:{}", request_.format, request_.directory.string()));
  error.hint = compose("name another folder: --export {}:DIR; or remove this one", request_.format);
  return error;
}

bool Exporter::is_there() const {
  if (phase_ == Phase::done || engine_.step_count() != request_.step) return false;
  auto tree = libswap::open_tree(request_.directory);
  if (!tree) return false;
  const auto found = formats::describe(*std::move(tree));
  return found && (*found)->catalog().format == request_.format &&
         (*found)->catalog().step == static_cast<std::int64_t>(request_.step);
}

Result<> Exporter::check() const {
  if (rank_ != Rank{0} || phase_ == Phase::done) return {};
  EBB_TRY_ASSIGN(const auto present, engine_.open_export());
  EBB_TRY_ASSIGN(const auto source, present.describe());
  auto possible = plan(*source);
  if (possible) return check_place(possible->plan);
  Error error = std::move(possible).error().within("--export " + request_.format);
  error.hint = compose(
      "export to another format, as dcp, or convert the store later: ckpt-convert {} {} --to {}",
      engine_.store_directory().string(), request_.directory.string(), request_.format);
  return error;
}

bool Exporter::wants_snapshot() const {
  return phase_ == Phase::waiting && !under_way_ && engine_.step_count() >= request_.step;
}

void Exporter::snapshot_taken() { under_way_ = engine_.step_count() >= request_.step; }

Result<> Exporter::advance() {
  if (engine_.snapshot_error() != nullptr) under_way_ = false;
  if (phase_ == Phase::waiting && engine_.committed_step() >= request_.step) return start_writing();
  if (phase_ == Phase::writing && written_.load()) {
    pinned_.reset();
    if (writer_.joinable()) writer_.join();
    source_.reset();  // it holds the generation, too
    phase_ = Phase::done;
  }
  return {};
}

Result<> Exporter::start_writing() {
  EBB_TRY_ASSIGN(auto pinned, engine_.open_export());
  pinned_.emplace(std::move(pinned));
  phase_ = Phase::writing;
  if (rank_ != Rank{0}) return {};
  EBB_TRY_ASSIGN(source_, pinned_->describe());
  EBB_TRY_ASSIGN(writer_, libswap::start_thread([this, step = pinned_->step()] {
                   result_ = write(*source_, step);
                   written_.store(true);
                 }));
  return {};
}

Result<Exported> Exporter::write(const Checkpoint& source, std::uint64_t step) const {
  EBB_TRY_ASSIGN(const auto conversion, plan(source));
  EBB_TRY_ASSIGN(const auto report, libswap::write_checkpoint(io_, *conversion.content,
                                                              conversion.plan, request_.directory,
                                                              {.workers = 1}));  // training goes on
  return Exported{step, report.bytes, report.seconds, request_.directory};
}

Result<std::optional<Exported>> Exporter::finish() {
  if (writer_.joinable()) writer_.join();
  if (phase_ == Phase::writing && rank_ == Rank{0}) EBB_TRY(advance());
  if (!result_) return std::optional<Exported>();
  if (!*result_) return result_->error();
  return std::optional<Exported>(**result_);
}

}  // namespace ebb::gpt
