#include "ebb/formats/registry.h"

#include <array>

#include "ebb/formats/dcp/format.h"
#include "ebb/formats/deepspeed/format.h"
#include "ebb/formats/folders/format.h"
#include "ebb/formats/hdf5/format.h"
#include "ebb/formats/megatron/format.h"
#include "ebb/formats/native/format.h"
#include "ebb/formats/safetensors/format.h"
#include "ebb/formats/torch_checkpointing/format.h"
#include "ebb/formats/torch_save/format.h"

namespace ebb::formats {
namespace {

template <typename F>
constinit const F kThe{};

// The first one whose detect() says yes reads a checkpoint.
constinit const auto kFormats = std::to_array<const Format*>({
    &kThe<native::Format>,
    &kThe<megatron::TorchDistFormat>,  // DCP underneath, so before it
    &kThe<megatron::RankFormat>,
    &kThe<megatron::FsdpFormat>,
    &kThe<folders::ReadFormat<folders::kLightningsFolder>>,  // DCP, too, with one file more
    &kThe<dcp::Format>,
    &kThe<deepspeed::UniversalFormat>,  // has model files of the same names, so before the next
    &kThe<deepspeed::Format>,
    &kThe<torch_checkpointing::Format>,  // by what metadata.pkl says
    &kThe<folders::FsdpFormat>,          // these hold models in the formats below, and more
    &kThe<folders::ReadFormat<folders::kOlmosFolder>>,
    &kThe<folders::ReadFormat<folders::kAutoModelsFolder>>,
    &kThe<folders::ReadFormat<folders::kPrimeRlsFolder>>,
    &kThe<folders::ReadFormat<folders::kNanochatsFolder>>,
    &kThe<folders::TrainerFormat>,
    &kThe<folders::AccelerateFormat>,
    &kThe<safetensors::Format>,
    &kThe<hdf5::Format>,
    &kThe<torch_save::Format>,  // last: other formats are made of such files
});

class UnknownFormat final : public Format {
 public:
  constexpr UnknownFormat() : Format({}) {}
  bool detect(const SourceTree&) const override { return false; }
  Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree>) const override {
    return Error{Code::unsupported, "a format that is not registered cannot be read"};
  }
  Result<EmitPlan> emit(const EmitRequest&) const override {
    return Error{Code::unsupported, "a format that is not registered cannot be written"};
  }
  ResumeRules resume_rules() const override { return {}; }
};

}  // namespace

std::span<const Format* const> registered_formats() { return kFormats; }

std::vector<const Format*> written_formats() {
  std::vector<const Format*> written;
  for (const Format* format : registered_formats())
    if (format->traits().written == Written::yes) written.push_back(format);
  return written;
}

const Format* format_named(std::string_view name) {
  for (const Format* format : registered_formats())
    if (format->name() == name) return format;
  return nullptr;
}

const Format* format_at(const SourceTree& tree) {
  for (const Format* format : registered_formats())
    if (format->detect(tree)) return format;
  return nullptr;
}

const Format& format_of(const Catalog& catalog) {
  const Format* format = format_named(catalog.format);
  return format != nullptr ? *format : kThe<UnknownFormat>;
}

}  // namespace ebb::formats
