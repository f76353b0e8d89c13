#include "tools/swap_bench/picture.h"

#include "ebb/formats/core/json_text.h"
#include "tools/cli/text.h"
#include "tools/pictures/page.h"

namespace ebb::tools::swap_bench {
namespace {

constexpr std::string_view kFlag = "--picture";
constexpr auto kKind = pictures::Kind::disk_rates;

std::string headline(const Advice& advice, const std::optional<Step>& step) {
  const Row& use = advice.use;
  std::string rate = compose("{} GB/s read and written at once, with {} × {}",
                             decimal(use.rates.mixed.median / 1e9, 2),
                             bytes_text(use.setting.operation_bytes), use.setting.depth);
  if (!step) return rate;
  const std::string seconds =
      step->seconds < 1 ? significant(step->seconds, 3) : decimal(step->seconds, 2);
  return compose("{} s for a step on {} of state: {}", seconds, bytes_text(step->state.bytes),
                 rate);
}

}  // namespace

Result<> check_picture(const std::string& file) {
  EBB_TRY(pictures::picture_file(kFlag, file, kKind));
  return {};
}

Result<PictureWritten> write_picture(const std::string& file, const std::string& directory,
                                     const Sweep& sweep, const std::optional<Step>& step) {
  EBB_TRY_ASSIGN(const ResultFile result, pictures::picture_file(kFlag, file, kKind));
  const Advice advice = advice_of(sweep);
  pictures::Page page{.subject = directory,
                      .headline = headline(advice, step),
                      .data = report_json(directory, sweep, step)};
  page.facts.push_back(compose("{} · a file of {} · {} in {} s", sweep.backend,
                               bytes_text(sweep.file_bytes), plural(sweep.rounds, "round"),
                               decimal(sweep.seconds, 1)));
  std::string verdict = verdict_text(sweep, advice);
  verdict.pop_back();  // the end of its line
  page.facts.push_back(std::move(verdict));
  if (!sweep.note.empty()) page.facts.push_back(sweep.note);
  if (step && step->store_bytes > sweep.free_bytes)
    page.warnings.push_back(compose("a store with 3 slots takes {} of disk; {} are free",
                                    bytes_text(step->store_bytes), bytes_text(sweep.free_bytes)));
  EBB_TRY_ASSIGN(const std::uint64_t bytes, pictures::write_page(result, kKind, page));
  return PictureWritten{file, bytes};
}

std::string text_of(const std::optional<PictureWritten>& picture) {
  if (!picture) return {};
  return compose("picture: {}, {}\n", printable(picture->file), bytes_text(picture->bytes));
}

}  // namespace ebb::tools::swap_bench
