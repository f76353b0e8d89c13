#include "ebb/formats/deepspeed/join.h"

#include <algorithm>
#include <set>

#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/deepspeed/values.h"

namespace ebb::formats::deepspeed {

Result<> Join::add(std::uint32_t model_rank, ModelRankContent content) {
  EBB_TRY(add_tensors(degrees_.tensor_rank(model_rank), std::move(content.tensors)));
  padded_between_ = padded_between_ || content.padded_between;
  const bool first_part = degrees_.tensor_rank(model_rank) == 0;
  EBB_TRY(join_facts(model_rank, std::move(content.facts)));
  // Those of other tensor-parallel ranks are the same, in parts.
  if (first_part) std::ranges::move(content.buffers, std::back_inserter(buffers_));
  return {};
}

Result<> Join::add_tensors(std::uint32_t tensor_rank, std::vector<TensorEntry> tensors) {
  for (TensorEntry& tensor : tensors) {
    const auto [place, fresh] =
        places_.emplace(std::pair(tensor.name, tensor.state), tensors_.size());
    if (fresh)
      tensors_.push_back(
          {tensor.name, tensor.state, std::vector<std::optional<TensorEntry>>(degrees_.tensor)});
    std::optional<TensorEntry>& part = tensors_[place->second].parts[tensor_rank];
    if (!part) {
      part = std::move(tensor);
      continue;
    }
    // A parameter that pipeline stages have in common; each has all of it.
    if (part->shape != tensor.shape || part->dtype != tensor.dtype)
      return Error{Code::layout,
                   compose("{} {} is {} {} with one rank and {} {} with another",
                           json_string(tensor.name), tensor.state, name_of(part->dtype),
                           to_string(part->shape), name_of(tensor.dtype), to_string(tensor.shape))};
    // DeepSpeed lets the stages' own states of it drift apart: they are no copies to compare.
    if (tensor.state == "master") in_stages_.push_back(tensor.name);
  }
  return {};
}

const TensorEntry* Join::find(const std::string& name, const std::string& state,
                              std::uint32_t tensor_rank) const {
  const auto place = places_.find({name, state});
  if (place == places_.end()) return nullptr;
  const auto& part = tensors_[place->second].parts[tensor_rank];
  return part ? &*part : nullptr;
}

Result<> Join::join_facts(std::uint32_t model_rank, OptimizerFacts facts) {
  if (!std::exchange(any_, true)) {
    facts_ = std::move(facts);
    return {};
  }
  if (facts.stage != facts_.stage || facts.zero_optimizer != facts_.zero_optimizer)
    return Error{Code::layout,
                 compose("the optimizer files of mp_rank_{} are of {} in stage {}, those of "
                         "mp_rank_00 of {} in stage {} (files of two saves)",
                         zero_padded(model_rank, 2), facts.zero_optimizer, facts.stage,
                         facts_.zero_optimizer, facts_.stage)};
  if (degrees_.tensor_rank(model_rank) == 0)
    std::ranges::move(facts.steps, std::back_inserter(facts_.steps));
  join_groups(std::move(facts.groups));
  for (ValueEntry& entry : facts.values) {
    const auto known = std::ranges::find(facts_.values, entry.key, &ValueEntry::key);
    if (known != facts_.values.end() && to_json(known->value) == to_json(entry.value)) continue;
    const std::string whose = "mp_rank_" + zero_padded(model_rank, 2);
    entry.key = compose("{}.{}", whose, entry.key);
    entry.path.insert(entry.path.begin(), whose);
    facts_.values.push_back(std::move(entry));
  }
  return {};
}

// The groups of stages with the same settings are one; nothing else says which are.
void Join::join_groups(std::vector<GroupEntry> groups) {
  std::set<std::string> known;
  for (const GroupEntry& group : facts_.groups)
    known.insert(group.params.begin(), group.params.end());
  std::vector<std::uint8_t> taken(facts_.groups.size(), 0);
  for (GroupEntry& more : groups) {
    std::erase_if(more.params, [&](const std::string& name) { return !known.insert(name).second; });
    std::size_t at = 0;
    while (at < taken.size() && (taken[at] != 0 || facts_.groups[at].optimizer != more.optimizer ||
                                 !same_settings(facts_.groups[at], more)))
      ++at;
    if (at < taken.size()) {
      taken[at] = 1;
      std::ranges::move(more.params, std::back_inserter(facts_.groups[at].params));
    } else if (!more.params.empty()) {
      facts_.groups.push_back(std::move(more));
    }
  }
}

Result<> Join::finish(const Value* info, const std::map<std::string, std::string>& tied) {
  std::vector<TensorEntry>& all = checkpoint_.building().tensors;
  // Of a tied parameter only the first rank's file says that it is.
  std::erase_if(tensors_, [&](const OfName& tensor) {
    return degrees_.ranks() > 1 && tied.contains(tensor.name) && !tensor.parts.front();
  });
  if (degrees_.tensor == 1) {
    for (OfName& tensor : tensors_) all.push_back(std::move(*tensor.parts.front()));
    note_all();
    return {};
  }
  EBB_TRY_ASSIGN(const TensorParts parts, TensorParts::open(info, degrees_.tensor));
  for (OfName& tensor : tensors_) {
    auto done = join_parts(tensor, parts);
    if (done) continue;
    if (done.error().code != Code::unsupported) return done;
    leave_unread(tensor, done.error());
  }
  note_all();
  return {};
}

Result<> Join::join_parts(OfName& tensor, const TensorParts& parts) {
  const bool buffer = tensor.state == "buffer";
  if (buffer && !parts.by_autotp())
    return Error{Code::unsupported, "a buffer: nothing records whether each rank has a part of it"};
  std::vector<Shape> shapes;
  for (const auto& part : tensor.parts) {
    if (!part)
      return Error{Code::layout, compose("{} {}: not every tensor-parallel rank has a part of it",
                                         json_string(tensor.name), tensor.state)};
    if (part->dtype != tensor.parts.front()->dtype)
      return Error{Code::layout, compose("{} {}: tensor-parallel ranks have it in several dtypes",
                                         json_string(tensor.name), tensor.state)};
    shapes.push_back(part->shape);
  }
  WholeTensor joined;
  if (buffer) {  // AutoTP cuts parameters only; each rank keeps its own, the first's is used
    joined.shape = shapes.front();
    joined.of_ranks = {{{whole(joined.shape), Shape(joined.shape.size(), 0)}}};
  } else {
    EBB_TRY_ASSIGN(joined, parts.whole_of(tensor.name, shapes));
  }
  TensorEntry entry = *tensor.parts.front();
  if (joined.from == WholeTensor::From::the_mean && !entry.chunks.empty() &&
      is_floating(entry.dtype)) {
    add_mean(tensor);
    return {};
  }
  entry.chunks.clear();
  entry.shape = joined.shape;
  for (std::size_t rank = 0; rank < joined.of_ranks.size(); ++rank)
    EBB_TRY(place_chunks(*tensor.parts[rank], joined.of_ranks[rank], entry));
  for (const std::size_t rank : joined.copies)
    checkpoint_.copies.push_back(std::move(*tensor.parts[rank]));
  if (joined.left_out > 0 && tensor.state == "master")
    shortened_.push_back(compose("{} rows of {}", joined.left_out, json_string(tensor.name)));
  checkpoint_.building().tensors.push_back(std::move(entry));
  return {};
}

// A job rounds the masters' mean to its own dtype: that of rounded weights is another.
void Join::add_mean(OfName& tensor) {
  const bool rounded = tensor.state == "param" && find(tensor.name, "master", 0) != nullptr &&
                       find(tensor.name, "master", 0)->dtype != tensor.parts.front()->dtype;
  if (tensor.state == "master") averaged_.push_back(tensor.name);
  if (rounded) return;
  TensorEntry entry = *tensor.parts.front();
  std::vector<TensorEntry> parts;
  for (auto& part : tensor.parts) parts.push_back(std::move(*part));
  entry.chunks = {checkpoint_.add_mean(std::move(parts))};
  checkpoint_.building().tensors.push_back(std::move(entry));
}

void Join::leave_unread(const OfName& tensor, const Error& why) {
  const auto known =
      std::ranges::find_if(tensor.parts, [](const auto& part) { return part.has_value(); });
  checkpoint_.building().unread.push_back(
      {(*known)->key.value_or(compose("{}.{}", tensor.name, tensor.state)),
       {},
       tensor.name,
       tensor.state,
       compose("parts of tensor-parallel ranks: {}", why.message),
       "take it from the weights that the run exported"});
}

void Join::note_all() {
  std::vector<std::string>& notes = checkpoint_.building().notes;
  if (!in_stages_.empty())
    notes.push_back(
        compose("{} parameters, {} among them, are with several pipeline stages "
                "or expert-parallel ranks: the first one's are used",
                in_stages_.size(), json_string(in_stages_.front())));
  if (!averaged_.empty())
    notes.push_back(
        compose("{} parameters, {} among them, are the mean of what tensor-parallel ranks have, as "
                "parameter_to_average_patterns says; their rounded weights are left out",
                averaged_.size(), json_string(averaged_.front())));
  for (const std::string& rows : shortened_)
    notes.push_back(compose("{} are padding behind original_vocab_size: left out", rows));
  std::set<std::string> said;
  std::erase_if(notes, [&](const std::string& note) { return !said.insert(note).second; });
  std::set<std::string> known;
  std::erase_if(checkpoint_.building().unread, [&](const UnreadEntry& entry) {
    return !known.insert(compose("{} {} {}", entry.key, entry.name, entry.state)).second;
  });
}

}  // namespace ebb::formats::deepspeed
