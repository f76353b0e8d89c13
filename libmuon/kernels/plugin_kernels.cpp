#include "ebb/libmuon/kernels/plugin_kernels.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "ebb/libmuon/kernels/factors.h"
#include "ebb/libmuon/kernels/newton_schulz_run.h"
#include "ebb/libswap/device/device_queue.h"

namespace ebb::libmuon {
namespace {

using libswap::Buffer;
using libswap::DeviceQueue;
using libswap::Event;
using libswap::PluginAnswer;
using libswap::PluginHandle;
using libswap::PluginWhy;

template <typename T, typename From>
Few<T> few(const From& from) {
  EBB_CHECK(from.size() <= kMaxIterations);
  Few<T> few{};
  std::ranges::copy(from, few.items);
  few.count = from.size();
  return few;
}

PlainMatrices plain(const MuonSpec& spec, const Block& matrix, std::uint64_t count) {
  const bool gram = takes_gram_form(spec, matrix.rows(), matrix.cols);
  return {.spec = {.iterations = few<Coefficients>(spec.iterations),
                   .restarts = few<std::uint32_t>(spec.restarts),
                   .eps = spec.eps,
                   .norm_factor = spec.norm_factor,
                   .eps_rule = spec.eps_rule,
                   .norm_of = spec.norm_of,
                   .precision = spec.precision,
                   .handed = spec.handed,
                   .handed_back = handed_back(spec),
                   .rounding = spec.rounding,
                   .form = gram ? Form::gram : Form::standard},
          .cols = matrix.cols,
          .run = matrix.run,
          .runs = matrix.runs,
          .stride = matrix.stride,
          .count = count};
}

// A choice of rows from which on symmetric products are the device's own, and the other way.
constexpr std::uint32_t kChoices = 9;  // down to 16 rows
constexpr std::uint64_t rows_of(std::uint32_t choice) {
  return choice == 0 ? 0 : std::uint64_t{8192} >> choice;
}
constexpr std::uint32_t choice_of(std::uint64_t rows) {
  for (std::uint32_t choice = kChoices; choice > 0; --choice)
    if (rows_of(choice) >= rows && rows > 0) return choice;
  return 0;
}
std::string name_of(std::uint32_t choice) {
  return choice == 0 ? "symmetric=library" : compose("symmetric=own-from-{}", rows_of(choice));
}

// Shared by the calls that are still to be made: they may outlive the kernels.
struct OpenKernels {
  explicit OpenKernels(PluginHandle of) : plugin(std::move(of)) {}
  ~OpenKernels() {
    if (kernels != nullptr) table().close(kernels);
  }
  const KernelsTable& table() const {
    return *reinterpret_cast<const KernelsTable*>(plugin->tables->kernels);
  }

  const PluginHandle plugin;
  void* kernels = nullptr;
};

class PluginKernels : public Kernels {
 public:
  static Result<std::unique_ptr<PluginKernels>> open(libswap::PluginDevice& device) {
    std::unique_ptr<PluginKernels> made(new PluginKernels(device));
    OpenKernels& opened = *made->opened_;
    PluginWhy why;
    EBB_TRY(opened.plugin->checked(
        opened.table().open(opened.plugin->device, &opened.kernels, &why), why));
    EBB_TRY_ASSIGN(made->queue_, DeviceQueue::open(opened.plugin));
    EBB_TRY_ASSIGN(made->newton_schulz_, DeviceQueue::open(opened.plugin));
    return made;
  }

  libswap::Device* device() const override { return &device_; }

  Event look(std::span<const LookRange> ranges, Buffer found, After after) override {
    EBB_CHECK(found.size() == sizeof(Look));
    std::vector<PlainLook> list;
    for (const LookRange& range : ranges)
      list.push_back({plain(range.g), range.limit, range.in_norm ? 1u : 0u});
    void* const room = plain(found).data;
    return later(
        after, [list = std::move(list), room](const OpenKernels& k, void* stream, PluginWhy& why) {
          return k.table().look(k.kernels, stream, list.data(), list.size(), room, &why);
        });
  }
  Event add(std::span<const AddRange> ranges, After after) override {
    std::vector<PlainAdd> list;
    for (const AddRange& range : ranges)
      list.push_back({plain(range.g), plain(range.sum), range.first ? 1u : 0u});
    return later(after, &KernelsTable::add, std::move(list));
  }
  Event prepare(std::span<const PrepareRange> ranges, float grad_scale, After after) override {
    std::vector<PlainPrepare> list;
    for (const PrepareRange& range : ranges) {
      list.push_back({momentum_factors(*range.spec, grad_scale), range.spec->momentum,
                      range.spec->nesterov ? 1u : 0u, plain(range.g), plain(range.m),
                      plain(range.u)});
      list.back().scales = plain(range.scales);
      list.back().block = range.block;
      if (range.spec->decay == Decay::l2)
        list.back().decay = plain(range.decay.empty() ? range.u : range.decay);
    }
    return later(after, &KernelsTable::prepare, std::move(list));
  }
  Event finish(std::span<const FinishRange> ranges, After after) override {
    std::vector<PlainFinish> list;
    for (const FinishRange& range : ranges)
      list.push_back({apply_factors(*range.spec, range.scale), step_rounding(*range.spec),
                      range.spec->weights, plain(range.o), plain(range.w), plain(range.out),
                      plain(range.high)});
    return later(after, &KernelsTable::finish, std::move(list));
  }
  Event decay(std::span<const DecayRange> ranges, After after) override {
    std::vector<PlainDecay> list;
    for (const DecayRange& range : ranges)
      list.push_back({gradient_decay(*range.spec), plain(range.w), plain(range.u)});
    return later(after, &KernelsTable::decay, std::move(list));
  }
  Event normalise(std::span<const NormaliseRange> ranges, After after) override {
    std::vector<PlainNormalise> list;
    for (const auto& [batch, v] : ranges)
      list.push_back({plain(batch), plain(v), moment_factors(*batch.spec),
                      moments_of_rows(*batch.spec, batch.matrix) ? 1u : 0u});
    return later(after, &KernelsTable::normalise, std::move(list));
  }
  Event hand_out(std::span<const OutRange> ranges, After after) override {
    std::vector<PlainOut> list;
    for (const OutRange& range : ranges) list.push_back({plain(range.w), plain(range.out)});
    return later(after, &KernelsTable::hand_out, std::move(list));
  }
  Event take(std::span<const TakeRange> ranges, After after) override {
    std::vector<PlainTake> list;
    for (const TakeRange& range : ranges) list.push_back({plain(range.given), plain(range.w)});
    return later(after, &KernelsTable::take, std::move(list));
  }
  Event adamw(std::span<const AdamRange> ranges, float grad_scale, After after) override {
    std::vector<PlainAdam> list;
    for (const AdamRange& range : ranges)
      list.push_back({adam_factors(*range.spec, range.step, grad_scale), plain(range.g),
                      plain(range.w), plain(range.exp_avg), plain(range.exp_avg_sq),
                      plain(range.out), plain(range.high)});
    return later(after, &KernelsTable::adamw, std::move(list));
  }
  // On a queue of its own: beside what comes later, but behind all that came before, which may use
  // the same buffers.
  Event orthogonalize(const MatrixBatch& batch, Buffer workspace, After after) override {
    const PlainMatrices matrices = plain(batch);
    const PlainBuffer room = plain(workspace.as(DType::u8));
    std::vector<Event> behind(after.begin(), after.end());
    behind.push_back(last_);
    return newton_schulz_->add(
        std::move(behind), [opened = opened_, matrices, room](void* stream, PluginWhy& why) {
          return opened->table().orthogonalize(opened->kernels, stream, &matrices, room.data,
                                               room.elems, &why);
        });
  }

  void choose(std::uint32_t choice) override { choice_ = choice; }

  Result<Accelerator::Choice> measure() {
    PluginWhy why;
    std::uint64_t rows = 0;
    EBB_TRY(opened_->plugin->checked(opened_->table().measure(opened_->kernels, &rows, &why), why));
    return Accelerator::Choice{choice_of(rows), why.text};
  }

 private:
  explicit PluginKernels(libswap::PluginDevice& device)
      : device_(device), opened_(std::make_shared<OpenKernels>(device.handle())) {}

  PlainMatrices plain(const MatrixBatch& batch) const {
    PlainMatrices matrices = libmuon::plain(*batch.spec, batch.matrix, batch.count);
    EBB_CHECK(batch.u.elems == batch.count * batch.matrix.span() && batch.u.dtype == DType::f32);
    matrices.u = static_cast<float*>(plain(batch.u).data);
    matrices.non_finite = static_cast<std::uint32_t*>(plain(batch.non_finite).data);
    matrices.number = batch.number;
    matrices.in = plain(batch.in);
    matrices.out = plain(batch.out);
    matrices.symmetric_from = rows_of(choice_);
    return matrices;
  }

  PlainBuffer plain(const Buffer& buffer) const {
    if (buffer.empty()) return {};
    EBB_CHECK(buffer.device == &device_);
    return {buffer.data, buffer.elems, buffer.dtype};
  }

  template <typename Call>
  Event later(After after, Call call) {
    last_ = queue_->add({after.begin(), after.end()},
                        [opened = opened_, call = std::move(call)](void* stream, PluginWhy& why) {
                          return call(*opened, stream, why);
                        });
    return last_;
  }
  template <typename Range>
  Event later(After after,
              PluginAnswer (*KernelsTable::*entry)(void*, void*, const Range*, std::uint64_t,
                                                   PluginWhy*),
              std::vector<Range> list) {
    return later(
        after, [entry, list = std::move(list)](const OpenKernels& k, void* stream, PluginWhy& why) {
          return (k.table().*entry)(k.kernels, stream, list.data(), list.size(), &why);
        });
  }

  libswap::PluginDevice& device_;
  const std::shared_ptr<OpenKernels> opened_;
  std::unique_ptr<DeviceQueue> queue_, newton_schulz_;
  Event last_;  // of the first queue
  std::uint32_t choice_ = 0;
};

class PluginAccelerator : public Accelerator {
 public:
  explicit PluginAccelerator(libswap::PluginDevice& device) : device_(device) {}

  libswap::Device& device() override { return device_; }
  bool takes_momentum_in(DType dtype) const override {
    return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::i8;
  }
  Result<Choice> measure() override {
    if (!has_symmetric()) return Choice{};
    EBB_TRY_ASSIGN(const auto kernels, PluginKernels::open(device_));
    return kernels->measure();
  }
  std::string fingerprint(std::uint32_t choice) const override {
    std::array<char, 256> text{};
    table().fingerprint(device_.handle()->device, text.data(), text.size() - 1);
    return std::string(text.data()) + " " + name_of(choice);
  }
  std::optional<std::uint32_t> choice_in(std::string_view fingerprint) const override {
    for (std::uint32_t choice = 0; choice <= kChoices; ++choice)
      if (fingerprint.ends_with(name_of(choice))) return has_symmetric() ? choice : 0;
    return std::nullopt;
  }
  bool takes_what_travels() const override { return true; }
  std::uint64_t workspace_bytes(const MuonSpec& spec, const Block& matrix,
                                std::uint64_t count) const override {
    const PlainMatrices matrices = plain(spec, matrix, count);
    return table().workspace_bytes(&matrices);
  }
  Result<std::unique_ptr<Kernels>> kernels(const KernelsFor& /*what*/) override {
    EBB_TRY_ASSIGN(auto opened, PluginKernels::open(device_));
    return std::unique_ptr<Kernels>(std::move(opened));
  }

 private:
  bool has_symmetric() const { return table().has_symmetric(device_.handle()->device) != 0; }
  const KernelsTable& table() const {
    return *reinterpret_cast<const KernelsTable*>(device_.handle()->tables->kernels);
  }
  libswap::PluginDevice& device_;
};

}  // namespace

Result<std::unique_ptr<Accelerator>> make_plugin_accelerator(libswap::PluginDevice& device) {
  EBB_TRY(libswap::check_table(device.handle()->name, "kernels", device.handle()->tables->kernels,
                               {sizeof(KernelsTable), kKernelsTableVersion}));
  return std::unique_ptr<Accelerator>(std::make_unique<PluginAccelerator>(device));
}

}  // namespace ebb::libmuon
