#include "bindings/c/names.h"

#include <array>
#include <cctype>
#include <string_view>

namespace ebb::c {
namespace {

struct Name {
  std::string_view cpp, c;
};

// A name that is part of another comes behind it.
constexpr std::array kNames = {
    Name{"EngineConfig::dropped = DroppedState::allowed", "ebb_model.drop_unknown = 1"},
    Name{"EngineConfig::gradients_on and weights_on",
         "ebb_model.gradients_on_device and weights_on_device"},
    Name{"EngineConfig::model takes it", "ebb_model.groups has it"},
    Name{"ParamSpec::gradient and weight", "ebb_param.gradient_dtype and weight_dtype"},
    Name{"ParamSpec::cuts", "ebb_param.cuts"},
    Name{"ParamSpec::at", "ebb_param.at"},
    Name{"PartitionSpec::placement", "ebb_model.placement"},
    Name{"PartitionSpec::hand_in", "ebb_model.hand_in"},
    Name{"PartitionSpec::parts", "ebb_model.partitions"},
    Name{"Layout::Spec::", "ebb_layout."},
    Name{"Placement::owner", "EBB_AT_OWNERS"},
    Name{"HandIn::added", "EBB_ADDED"},
    Name{"WithoutGradient::untouched or zero", "EBB_NONE_UNTOUCHED or EBB_NONE_ZERO"},
    Name{"Begin::store_or_given", "EBB_STORE_OR_GIVEN"},
    Name{"Begin::store", "EBB_STORE"},
    Name{"Begin::given", "EBB_GIVEN"},
    Name{"OldStore::dropped_first", "EBB_DROPPED_FIRST"},
    Name{"Engine::open", "ebb_engine_open()"},
    Name{"abandon_step()", "ebb_engine_abandon()"},
    Name{"begin_step()", "ebb_engine_begin_step()"},
    Name{"continue_step()", "ebb_engine_continue()"},
    Name{"step()", "ebb_engine_step()"},
    Name{"gradient_ready()", "ebb_engine_gradients()"},
    Name{"gradient_ready", "ebb_engine_gradients()"},
    Name{"install_weights()", "ebb_engine_install_weights()"},
    Name{"open_export()", "ebb_engine_pin()"},
    Name{"save_to()", "ebb_engine_save_to()"},
    Name{"take_weights()", "ebb_engine_take_weights()"},
};

bool in_a_word(std::string_view text, std::size_t at) {
  if (at == 0) return false;
  const auto before = static_cast<unsigned char>(text[at - 1]);
  return std::isalnum(before) != 0 || before == '_' || before == ':';
}

}  // namespace

std::string in_c(std::string text) {
  for (const Name& name : kNames)
    for (std::size_t at = text.find(name.cpp); at != text.npos; at = text.find(name.cpp, at)) {
      if (in_a_word(text, at)) {
        at += name.cpp.size();
        continue;
      }
      text.replace(at, name.cpp.size(), name.c);
      at += name.c.size();
    }
  return text;
}

}  // namespace ebb::c
