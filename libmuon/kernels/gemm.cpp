#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {
namespace {

// oneDNN asks OpenMP how many threads this thread may use; the setting belongs to the caller, who
// may be a trainer with an OpenMP of its own, so it is put back.
class SingleThreaded {
 public:
  SingleThreaded() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleThreaded() { omp_set_num_threads(before_); }
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  int before_;
};

char letter(Transpose transpose) { return transpose == Transpose::yes ? 'T' : 'N'; }
dnnl_dim_t dim(std::uint64_t size) { return static_cast<dnnl_dim_t>(size); }

}  // namespace

void gemm(std::uint64_t m, std::uint64_t n, std::uint64_t k, float alpha, MatrixView a,
          MatrixView b, float beta, float* c, std::uint64_t ldc) {
  if (m == 0 || n == 0) return;
  const SingleThreaded guard;
  const dnnl_status_t status =
      dnnl_sgemm(letter(a.transpose), letter(b.transpose), dim(m), dim(n), dim(k), alpha, a.data,
                 dim(a.ld), b.data, dim(b.ld), beta, c, dim(ldc));
  EBB_CHECK(status == dnnl_success);
}

std::string kernel_fingerprint() {
  const dnnl_version_t* const version = dnnl_version();
  std::string isa = dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa());
  const std::string prefix = "cpu_isa_";
  if (isa.starts_with(prefix)) isa.erase(0, prefix.size());
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch) + " " + isa + " fp32 elementwise=" EBB_ELEMENTWISE;
}

}  // namespace ebb::libmuon
