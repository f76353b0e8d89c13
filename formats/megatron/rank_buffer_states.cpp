// distrib_optim.pt: {buffer: {(dtype of the weights, of the gradients): {"param": flat tensor,
// "exp_avg": ..., "numel_unpadded": number}}, "buckets_coalesced": True}, or a list of such.
#include <algorithm>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/megatron/rank_buffers.h"
#include "ebb/formats/megatron/rank_states.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::string_view kFlatMasters = "param";
constexpr std::string_view kUnpadded = "numel_unpadded";
constexpr std::uint64_t kMostPadding = 64;  // at most, before each parameter
constexpr std::uint64_t kMostElems = std::uint64_t{1} << 60;

struct FlatBuffer {
  DType dtype = DType::f32;  // of the weights
  std::vector<std::pair<std::string, TorchTensor>> states;
  std::uint64_t elems = 0;

  const TorchTensor* masters() const {
    const auto found = std::ranges::find(states, kFlatMasters, [](auto& s) { return s.first; });
    return found == states.end() ? nullptr : &found->second;
  }
};

// The buffers of one file, in order; empty: in a form that is not read.
class BufferFile {
 public:
  explicit BufferFile(const torch_save::OpenFile& file) : file_(file), graph_(file.graph()) {}

  Result<std::vector<FlatBuffer>> read() {
    const PickleId root = graph_.root();
    if (graph_.is(root, PickleKind::list)) {
      for (const PickleId part : graph_.items(root)) EBB_TRY(add_optimizer(part));
    } else {
      EBB_TRY(add_optimizer(root));
    }
    if (odd_) buffers_.clear();
    return std::move(buffers_);
  }
  // Words of states, as far as they are understood.
  const std::vector<std::string>& words() const { return words_; }

 private:
  Result<> add_optimizer(PickleId optimizer) {
    if (graph_.is(optimizer, PickleKind::none)) return {};
    const PickleId whole = graph_.find(optimizer, "buckets_coalesced");
    odd_ = odd_ || whole == kNoPickle;  // before 2024 each bucket had tensors of its own
    if (odd_) return {};
    for (std::int64_t i = 0;; ++i) {
      const PickleId of_dtypes = graph_.find(optimizer, i);
      if (of_dtypes == kNoPickle) return {};
      EBB_TRY(add_buffer(of_dtypes));
    }
  }

  Result<> add_buffer(PickleId of_dtypes) {
    const auto is_pair = [&](PickleId id) {
      return graph_.is(id, PickleKind::tuple) && graph_.items(id).size() == 2 &&
             graph_.is(graph_.items(id)[0], PickleKind::global);
    };
    const bool fits = graph_.is(of_dtypes, PickleKind::dict) &&
                      graph_.items(of_dtypes).size() == 2 && is_pair(graph_.items(of_dtypes)[0]) &&
                      graph_.is(graph_.items(of_dtypes)[1], PickleKind::dict);
    const auto dtype =
        fits ? torch_dtype_named(graph_.text(graph_.items(graph_.items(of_dtypes)[0])[0]))
             : std::nullopt;
    odd_ = odd_ || !dtype;
    if (odd_) return {};
    FlatBuffer buffer{.dtype = *dtype};
    const std::span<const PickleId> states = graph_.items(graph_.items(of_dtypes)[1]);
    for (std::size_t i = 0; i + 1 < states.size() && !odd_; i += 2)
      EBB_TRY(add_state(buffer, states[i], states[i + 1]));
    buffers_.push_back(std::move(buffer));
    return {};
  }

  Result<> add_state(FlatBuffer& buffer, PickleId word, PickleId state) {
    if (!graph_.is(word, PickleKind::string)) return odd_ = true, Result<>();
    const std::string_view text = graph_.text(word);
    if (text == kUnpadded && graph_.is(state, PickleKind::integer)) {
      buffer.elems = static_cast<std::uint64_t>(graph_.integer(state));
      return {};
    }
    if (!is_torch_tensor(graph_, state) || unread_form(graph_, state))
      return odd_ = true, Result<>();
    auto tensor = torch_tensor(graph_, state);
    if (!tensor) return std::move(tensor).error().about(json_string(text));
    odd_ = odd_ || tensor->shape.size() != 1;
    if (std::ranges::find(words_, text) == words_.end()) words_.emplace_back(text);
    buffer.states.emplace_back(text, *std::move(tensor));
    return {};
  }

  const torch_save::OpenFile& file_;
  const PickleGraph& graph_;
  std::vector<FlatBuffer> buffers_;
  std::vector<std::string> words_;
  bool odd_ = false;
};

// Each chunk has a buffer for each dtype of its weights, in the order in which they appear.
std::vector<Members> members_of_buffers(const std::vector<LocalParam>& params) {
  std::vector<Members> buffers;
  std::map<std::pair<std::size_t, DType>, std::size_t> known;
  for (const LocalParam& param : params) {
    const auto [at, fresh] = known.try_emplace({param.chunk, param.weight().dtype}, buffers.size());
    if (fresh) buffers.emplace_back();
    buffers[at->second].push_back(&param);
  }
  return buffers;
}

class RankBuffers {
 public:
  RankBuffers(const RankSource& source, const RankFile& rank, torch_save::OpenFile& file)
      : source_(source), rank_(rank), file_(file), params_(params_of(source.model, rank)) {}

  Result<> run() {
    BufferFile reader(file_);
    EBB_TRY_ASSIGN(const std::vector<FlatBuffer> buffers, reader.read());
    const std::vector<Members> members = members_of_buffers(params_);
    std::vector<std::string> words = reader.words();
    if (words.empty()) words = {"param", "exp_avg", "exp_avg_sq"};
    if (buffers.size() != members.size())
      return leave(words, "a part of a flat buffer, in a form that is not read"), Result<>();
    std::vector<BufferLayout> layouts;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      EBB_TRY_ASSIGN(std::optional<BufferLayout> layout, layout_of(buffers[i], members[i]));
      if (!layout)
        return leave(words,
                     "a part of a flat buffer, in which the parameters do not lie where Megatron "
                     "lays them: their master weights, rounded, are not the model's"),
               Result<>();
      layouts.push_back(*std::move(layout));
    }
    for (std::size_t i = 0; i < buffers.size(); ++i)
      for (const auto& [word, flat] : buffers[i].states)
        for (std::size_t k = 0; k < members[i].size(); ++k)
          EBB_TRY(source_.tensors.add(members[i][k]->place, word, file_, rank_.at,
                                      view(flat, layouts[i].first[k], *members[i][k])));
    return {};
  }

 private:
  void leave(const std::vector<std::string>& words, std::string_view why) {
    leave_states(source_, params_, words, why);
  }

  static TorchTensor view(const TorchTensor& flat, std::uint64_t first, const LocalParam& param) {
    const TorchTensor& weight = param.weight();
    TorchTensor part = flat.part({first}, weight.shape);
    part.strides.assign(weight.shape.size(), flat.strides[0]);
    for (std::size_t i = weight.shape.size(); i-- > 1;)
      part.strides[i - 1] = part.strides[i] * weight.shape[i];
    return part;
  }

  // The rules by which the buffer may have been laid out, the likely ones first.
  std::vector<BufferRule> rules() const {
    const auto said = [&](std::string_view name) {
      const auto number = source_.model.argument(name);
      return number && *number > 0 ? std::optional(static_cast<std::uint64_t>(*number))
                                   : std::nullopt;
    };
    std::vector<std::optional<std::uint64_t>> buckets{std::nullopt};
    buckets.push_back(
        std::max<std::uint64_t>(40'000'000, 1'000'000 * said("data_parallel_size").value_or(1)));
    if (const auto bucket = said("ddp_bucket_size")) buckets.push_back(bucket);
    if (const auto count = said("ddp_num_buckets")) {
      std::uint64_t elems = 0;
      for (const LocalParam& param : params_) elems += param.weight().elems();
      buckets.emplace_back(elems / *count);
    }
    const bool overlap = source_.model.argument("overlap_grad_reduce").value_or(0) != 0;
    if (overlap) std::ranges::reverse(buckets);
    std::vector<BufferRule> all;
    for (const std::uint64_t alignment : {64, 1})
      for (const auto& bucket : buckets) all.push_back({alignment, bucket});
    return all;
  }

  // nullopt: by no rule are the masters the model's weights.
  Result<std::optional<BufferLayout>> layout_of(const FlatBuffer& buffer,
                                                const Members& members) const {
    const TorchTensor* masters = buffer.masters();
    const auto holds_all = [&](const auto& state) { return state.second.elems() == buffer.elems; };
    if (masters == nullptr || buffer.dtype != members.front()->weight().dtype ||
        !std::ranges::all_of(buffer.states, holds_all))
      return std::optional<BufferLayout>();
    std::vector<BufferedParam> params;
    std::uint64_t most = 0;  // of what the layout sums up
    for (const LocalParam* param : members) {
      const auto sum = checked_add(most, param->weight().elems() + kMostPadding);
      if (!sum || *sum > kMostElems) return std::optional<BufferLayout>();
      most = *sum;
      params.push_back({param->weight().elems(), param->place.shared});
    }
    std::vector<BufferLayout> tried;
    for (const BufferRule& rule : rules()) {
      BufferLayout layout = buffer_layout(params, rule);
      if (layout.elems != buffer.elems || std::ranges::find(tried, layout) != tried.end()) continue;
      EBB_TRY_ASSIGN(const bool proved, is_proved(*masters, layout, members));
      if (proved) return std::optional(std::move(layout));
      tried.push_back(std::move(layout));
    }
    return std::optional<BufferLayout>();
  }

  Result<bool> is_proved(const TorchTensor& masters, const BufferLayout& layout,
                         const Members& members) const {
    for (std::size_t k = 0; k < members.size(); ++k) {
      EBB_TRY_ASSIGN(const bool rounded,
                     are_rounded(file_, view(masters, layout.first[k], *members[k]), rank_.file,
                                 members[k]->weight()));
      if (!rounded) return false;
    }
    return true;
  }

  const RankSource& source_;
  const RankFile& rank_;
  torch_save::OpenFile& file_;
  std::vector<LocalParam> params_;
};

}  // namespace

Result<bool> read_buffers(const RankSource& source) {
  MissingFiles missing;
  for (const RankFile& rank : source.grid.files)
    if (source.tree.find(rank.file_beside(kBuffersFile)) == nullptr)
      missing.add(rank.file_beside(kBuffersFile));
  if (missing.count() == source.grid.files.size()) return false;
  if (!missing.none()) return missing.error(source.tree, source.grid.files.size());
  for (const RankFile& rank : source.grid.files) {
    EBB_TRY_ASSIGN(torch_save::OpenFile file, source.open(rank, kBuffersFile));
    EBB_TRY(RankBuffers(source, rank, file).run());
  }
  return true;
}

}  // namespace ebb::formats::megatron
