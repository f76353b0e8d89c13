#include "tests/libmuon/covering/own_masters.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>

#include "tests/libmuon/support/elements.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

std::vector<float> floats_in(const std::filesystem::path& file, std::uint64_t count) {
  std::vector<float> values(count);
  const auto bytes = static_cast<std::streamsize>(count * sizeof(float));
  EBB_CHECK(std::ifstream(file, std::ios::binary)
                .read(reinterpret_cast<char*>(values.data()), bytes)
                .good());
  return values;
}

}  // namespace

OwnMasters::OwnMasters(const libmuon::ModelSpec& model, const libmuon::StatePlan& plan,
                       const std::filesystem::path& folder)
    : model_(model), plan_(plan), folder_(folder) {
  for (std::uint32_t param = 0; param < model.params.size(); ++param) {
    if (libmuon::out_of(model, param) != libmuon::Out::update) continue;
    const std::uint64_t count = formats::volume(model.params[param].shape);
    std::vector<float> whole(count);
    if (std::filesystem::exists(file_of(param)))
      whole = floats_in(file_of(param), count);
    else
      noisy_bf16_weights(param, {0, count}, whole);
    auto& mine = values_[param];
    for_elements(plan.weights(), param, plan.rank(),
                 [&](std::uint64_t element, std::uint64_t) { mine.push_back(whole[element]); });
  }
}

std::filesystem::path OwnMasters::file_of(std::uint32_t param) const {
  return folder_ / compose("master-{}", param);
}

void OwnMasters::add(std::uint32_t param, Bucket& updates) {
  auto& mine = values_.at(param);
  for (std::uint64_t i = 0; i < mine.size(); ++i) mine[i] += updates.at(param, i);
}

Result<> OwnMasters::save() const {
  for (const auto& [param, mine] : values_) {
    const int file = ::open(file_of(param).c_str(), O_CREAT | O_WRONLY, 0600);
    std::uint64_t place = 0;
    for (const FlatRange run : plan_.weights().runs(param, plan_.rank())) {
      const std::uint64_t bytes = run.count * sizeof(float);
      const auto at = static_cast<off_t>(run.first * sizeof(float));
      if (::pwrite(file, mine.data() + place, bytes, at) != static_cast<ssize_t>(bytes)) break;
      place += run.count;
    }
    ::close(file);
    if (place != mine.size()) return Error{Code::io, "a master could not be saved"};
  }
  return {};
}

void OwnMasters::put_into(std::map<std::string, std::vector<float>>& tensors) const {
  for (const auto& [param, mine] : values_)
    tensors[model_.params[param].name + " master"] =
        floats_in(file_of(param), formats::volume(model_.params[param].shape));
}

}  // namespace ebb::test
