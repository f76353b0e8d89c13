#include "examples/gpt/export.h"

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/tree/file_tree.h"
#include "ebb/libswap/write/write_checkpoint.h"

namespace ebb::gpt {

using formats::Rank;

Exporter::Exporter(const ExportRequest& request, std::uint32_t world, libswap::IoQueue& io,
                   libmuon::Engine& engine, Rank rank, std::atomic<bool>& written)
    : request_(request), world_(world), io_(io), engine_(engine), rank_(rank), written_(written) {
  if (engine.step_count() > request.step) phase_ = Phase::done;  // a resumed run is past it
}

Exporter::~Exporter() {
  if (writer_.joinable()) writer_.join();
}

bool Exporter::wants_snapshot() const {
  return phase_ == Phase::waiting && engine_.step_count() >= request_.step;
}

void Exporter::took_snapshot(bool taken, std::uint64_t before) {
  if (!taken || !wants_snapshot()) return;
  phase_ = Phase::cut;
  before_ = before;
  step_ = engine_.step_count();
}

Result<> Exporter::advance() {
  if (phase_ == Phase::cut && engine_.committed_generation() != before_) return start_writing();
  if (phase_ == Phase::writing && written_.load()) {
    engine_.unpin(pinned_);
    if (writer_.joinable()) writer_.join();
    source_.reset();  // it holds the generation, too
    phase_ = Phase::done;
  }
  return {};
}

Result<> Exporter::start_writing() {
  pinned_ = engine_.committed_generation();
  EBB_TRY(engine_.pin(pinned_));
  phase_ = Phase::writing;
  if (rank_ != Rank{0}) return {};
  EBB_TRY_ASSIGN(auto tree, libswap::open_tree(engine_.store_directory()));
  EBB_TRY_ASSIGN(source_, formats::describe(std::move(tree)));
  EBB_TRY_ASSIGN(writer_, libswap::start_thread([this] {
                   result_ = write(*source_);
                   written_.store(true);
                 }));
  return {};
}

Result<Exported> Exporter::write(const formats::Checkpoint& source) const {
  const formats::ConvertRequest wanted{.from = formats::format_of(source.catalog()),
                                       .to = *formats::format_named(request_.format),
                                       .world = world_};
  EBB_TRY_ASSIGN(const auto conversion, formats::plan_conversion(source, wanted));
  EBB_TRY_ASSIGN(const auto report, libswap::write_checkpoint(io_, *conversion.content,
                                                              conversion.plan, request_.directory,
                                                              {.workers = 1}));  // training goes on
  return Exported{step_, report.bytes, report.seconds, request_.directory};
}

Result<std::optional<Exported>> Exporter::finish() {
  if (writer_.joinable()) writer_.join();
  if (phase_ == Phase::writing && rank_ == Rank{0}) EBB_TRY(advance());
  if (!result_) return std::optional<Exported>();
  if (!*result_) return result_->error();
  return std::optional<Exported>(**result_);
}

}  // namespace ebb::gpt
