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
                   .rounding = spec.rounding,
                   .form = gram ? Form::gram : Form::standard},
          .cols = matrix.cols,
          .run = matrix.run,
          .runs = matrix.runs,
          .stride = matrix.stride,
          .count = count};
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
  static Result<std::unique_ptr<Kernels>> open(libswap::PluginDevice& device) {
    std::unique_ptr<PluginKernels> made(new PluginKernels(device));
    OpenKernels& opened = *made->opened_;
    PluginWhy why;
    EBB_TRY(opened.plugin->checked(
        opened.table().open(opened.plugin->device, &opened.kernels, &why), why));
    EBB_TRY_ASSIGN(made->queue_, DeviceQueue::open(opened.plugin));
    EBB_TRY_ASSIGN(made->newton_schulz_, DeviceQueue::open(opened.plugin));
    return std::unique_ptr<Kernels>(std::move(made));
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
      if (range.spec->decay == Decay::l2)
        list.back().decay = plain(range.decay.empty() ? range.u : range.decay);
    }
    return later(after, &KernelsTable::prepare, std::move(list));
  }
  Event finish(std::span<const FinishRange> ranges, After after) override {
    std::vector<PlainFinish> list;
    for (const FinishRange& range : ranges)
      list.push_back({apply_factors(*range.spec, range.scale), step_rounding(*range.spec),
                      range.spec->weights, plain(range.o), plain(range.w), plain(range.out)});
    return later(after, &KernelsTable::finish, std::move(list));
  }
  Event decay(std::span<const DecayRange> ranges, After after) override {
    std::vector<PlainDecay> list;
    for (const DecayRange& range : ranges)
      list.push_back({gradient_decay(*range.spec), plain(range.w), plain(range.u)});
    return later(after, &KernelsTable::decay, std::move(list));
  }
  Event normalise(std::span<const NormaliseRange> /*ranges*/, After /*after*/) override {
    EBB_CHECK(false);  // does() has refused it
  }
  Event hand_out(std::span<const OutRange> ranges, After after) override {
    std::vector<PlainOut> list;
    for (const OutRange& range : ranges) list.push_back({plain(range.w), plain(range.out)});
    return later(after, &KernelsTable::hand_out, std::move(list));
  }
  Event adamw(std::span<const AdamRange> ranges, float grad_scale, After after) override {
    std::vector<PlainAdam> list;
    for (const AdamRange& range : ranges)
      list.push_back({adam_factors(*range.spec, range.step, grad_scale), plain(range.g),
                      plain(range.w), plain(range.exp_avg), plain(range.exp_avg_sq),
                      plain(range.out)});
    return later(after, &KernelsTable::adamw, std::move(list));
  }
  // On a queue of its own: beside what other buffers need.
  Event orthogonalize(const MatrixBatch& batch, Buffer workspace, After after) override {
    PlainMatrices matrices = libmuon::plain(*batch.spec, batch.matrix, batch.count);
    EBB_CHECK(batch.u.elems == batch.count * batch.matrix.span() && batch.u.dtype == DType::f32);
    matrices.u = static_cast<float*>(plain(batch.u).data);
    matrices.spoiled = static_cast<std::uint32_t*>(plain(batch.spoiled).data);
    matrices.number = batch.number;
    matrices.in = plain(batch.in);
    matrices.out = plain(batch.out);
    const PlainBuffer room = plain(workspace.as(DType::u8));
    return newton_schulz_->add({after.begin(), after.end()}, [opened = opened_, matrices, room](
                                                                 void* stream, PluginWhy& why) {
      return opened->table().orthogonalize(opened->kernels, stream, &matrices, room.data,
                                           room.elems, &why);
    });
  }

 private:
  explicit PluginKernels(libswap::PluginDevice& device)
      : device_(device), opened_(std::make_shared<OpenKernels>(device.handle())) {}

  PlainBuffer plain(const Buffer& buffer) const {
    if (buffer.empty()) return {};
    EBB_CHECK(buffer.device == &device_);
    return {buffer.data, buffer.elems, buffer.dtype};
  }

  template <typename Call>
  Event later(After after, Call call) {
    return queue_->add({after.begin(), after.end()},
                       [opened = opened_, call = std::move(call)](void* stream, PluginWhy& why) {
                         return call(*opened, stream, why);
                       });
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
};

class PluginAccelerator : public Accelerator {
 public:
  explicit PluginAccelerator(libswap::PluginDevice& device) : device_(device) {}

  libswap::Device& device() override { return device_; }
  std::string fingerprint() const override {
    std::array<char, 256> text{};
    table().fingerprint(device_.handle()->device, text.data(), text.size() - 1);
    return text.data();
  }
  Result<> does(const MuonSpec& spec) const override {
    if (spec.second_moment != SecondMoment::none)
      return Error{Code::unsupported,
                   compose("{} does not keep second moments yet", device_.name()),
                   "compute this model on the host, or use second_moment = none"};
    return {};
  }
  bool takes_what_travels() const override { return true; }
  std::uint64_t workspace_bytes(const MuonSpec& spec, const Block& matrix,
                                std::uint64_t count) const override {
    const PlainMatrices matrices = plain(spec, matrix, count);
    return table().workspace_bytes(&matrices);
  }
  Result<std::unique_ptr<Kernels>> kernels(const KernelsFor& /*what*/) override {
    return PluginKernels::open(device_);
  }

 private:
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
