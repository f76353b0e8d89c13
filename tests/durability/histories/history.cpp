#include "tests/durability/histories/history.h"

#include <algorithm>

#include "ebb/formats/core/compose.h"

namespace ebb::test {
namespace {

std::string_view name_of(libmuon::HandIn how) {
  using enum libmuon::HandIn;
  return how == reduced ? "reduced" : how == added ? "added" : "partial";
}

std::string bytes_or(std::uint64_t bytes, std::string_view none) {
  return bytes == libmuon::kNothingStreamed ? std::string(none) : std::to_string(bytes);
}

// A knob of a start, and where it is out of the way.
struct Knob {
  std::string_view name;
  void (*simplest)(Start&);
};
constexpr Knob kKnobs[] = {
    {"failing", [](Start& s) { s.failing = Failing::nothing; }},
    {"wanders", [](Start& s) { s.wanders = false; }},
    {"ranks",
     [](Start& s) {
       s.ranks = 1;
       s.gradient_copies = s.weight_copies = 1;
       s.tensor_axis = false;
     }},
    {"copies", [](Start& s) { s.gradient_copies = s.weight_copies = 1; }},
    {"tensor", [](Start& s) { s.tensor_axis = false; }},
    {"policies", [](Start& s) { s.gradients = s.weights = Policy::zero3; }},
    {"placement", [](Start& s) { s.placement = libmuon::Placement::owner; }},
    {"hand_in", [](Start& s) { s.hand_in = libmuon::HandIn::reduced; }},
    {"micro_batches", [](Start& s) { s.micro_batches = 1; }},
    {"hand_in_threads", [](Start& s) { s.hand_in_threads = 1; }},
    {"masters", [](Start& s) { s.masters = libmuon::Masters::kept; }},
    {"bound", [](Start& s) { s.bound = false; }},
    {"bf16",
     [](Start& s) {
       s.gradient = s.weight = DType::f32;
       s.masters = libmuon::Masters::kept;
     }},
    {"tiles", [](Start& s) { s.tile_bytes = 65536; }},
    {"chunks", [](Start& s) { s.chunk_bytes = 256u << 20; }},
    {"early", [](Start& s) { s.early_bytes = 0; }},
    {"streaming", [](Start& s) { s.stream_above = libmuon::kNothingStreamed; }},
    {"threads", [](Start& s) { s.threads = 1; }},
    {"slots", [](Start& s) { s.slots = 3; }},
    {"budget", [](Start& s) { s.budget = 0; }},
};

}  // namespace

std::string text_of(const Meaning& meaning) {
  const auto group = libmuon::to_group(meaning.muon);
  return compose("momentum as {}, out = {}, {}, {} lr; tall {}, wide {}; decay {} of {}, form {}",
                 formats::name_of(meaning.momentum),
                 meaning.out == libmuon::Out::update ? "update" : "weights",
                 meaning.absent ? "some absent" : "all there",
                 meaning.scheduled ? "scheduled" : "one", meaning.tall, meaning.wide,
                 static_cast<int>(meaning.muon.decay), std::to_string(meaning.muon.weight_decay),
                 meaning.muon.form == libmuon::Form::gram ? "gram" : "standard") +
         compose(", precision {}, second moment {}{}", static_cast<int>(meaning.muon.precision),
                 static_cast<int>(meaning.muon.second_moment),
                 meaning.writes ? ", weights are written" : "");
}

std::string text_of(const Start& s) {
  std::string text = compose("to step {}{}: {} ranks{}, {} x{} in, {} x{} out, {}, {}", s.until,
                             s.ends_committed ? "" : " (not committed)", s.ranks,
                             s.tensor_axis ? " (tensor axis)" : "", formats::name_of(s.gradients),
                             s.gradient_copies, formats::name_of(s.weights), s.weight_copies,
                             libmuon::name_of(s.placement), name_of(s.hand_in));
  text += compose(", {} micro-batches, {} hand in, gradients {}, weights {}{}", s.micro_batches,
                  s.hand_in_threads, formats::name_of(s.gradient), formats::name_of(s.weight),
                  compose("{}{}",
                          s.masters == libmuon::Masters::kept     ? ""
                          : s.masters == libmuon::Masters::halves ? " in halves"
                                                                  : " that are masters",
                          s.bound ? ", bound" : ""));
  text += compose("; tiles {}, chunks {}, early {}, streamed above {}, {} threads, {} slots",
                  s.tile_bytes, s.chunk_bytes, s.early_bytes, bytes_or(s.stream_above, "nothing"),
                  s.threads, s.slots);
  text +=
      compose(", budget {} tenths of the least{}{}{}", static_cast<int>(s.budget * 10),
              s.sums == libmuon::PartialSums::kept ? ", sums kept" : "",
              s.failing == Failing::nothing ? "" : ", failing disk", s.wanders ? ", wanders" : "");
  return text;
}

std::vector<Simplification> simplifications_of(const History& history) {
  std::vector<Simplification> all;
  for (std::size_t i = history.starts.size(); i-- > 0;)
    all.push_back({std::to_string(i), [i](History& of) { of.starts[i].until = 0; }});
  for (std::size_t i = 0; i < history.starts.size(); ++i)
    for (const Knob& knob : kKnobs)
      all.push_back({compose("{}.{}", i, knob.name),
                     [i, knob](History& of) { knob.simplest(of.starts[i]); }});
  all.push_back({"absent", [](History& of) { of.meaning.absent = false; }});
  all.push_back({"scheduled", [](History& of) { of.meaning.scheduled = false; }});
  all.push_back({"written", [](History& of) { of.meaning.writes = false; }});
  all.push_back({"momentum", [](History& of) { of.meaning.momentum = DType::f32; }});
  return all;
}

Result<History> simplified(const History& history, const std::vector<std::string>& names) {
  History simpler = history;
  const auto all = simplifications_of(history);
  for (const std::string& name : names) {
    const auto found = std::ranges::find(all, name, &Simplification::name);
    if (found == all.end())
      return Error{Code::usage, compose("history {} has no {} to be left out", history.seed, name)};
    found->apply(simpler);
  }
  return simpler;
}

}  // namespace ebb::test
