// Threads on the CPU: OpenMP outside, single-threaded kernels (Eigen too) inside.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace ht {

int num_threads();
// Threads used by CPU ops (default: the machine's cores, or OMP_NUM_THREADS). Throws Error below 1.
void set_num_threads(int n);

// Calls f(begin, end) on contiguous parts of [0, n), in parallel when there are at least 2 * grain items. Parts depend
// on n, grain and the thread count only, never on timing. f must not throw.
template <class F>
void parallel_for(int64_t n, int64_t grain, F&& f) {
  [[maybe_unused]] const int64_t parts = std::min<int64_t>(num_threads(), n / std::max<int64_t>(grain, 1));
#if defined(_OPENMP)
  if (parts > 1 && !omp_in_parallel()) {
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
    for (int64_t p = 0; p < parts; ++p) f(n * p / parts, n * (p + 1) / parts);
    return;
  }
#endif
  if (n > 0) f(int64_t{0}, n);
}

// The same for items of uneven cost: f(begin, end, slot) on runs of `grain` items, handed out as threads come free.
// Runs at the same time have different slots in [0, num_threads()): room for working memory. For f whose results do not
// depend on which thread runs an item.
template <class F>
void parallel_dynamic(int64_t n, int64_t grain, F&& f) {
  grain = std::max<int64_t>(grain, 1);
#if defined(_OPENMP)
  const int64_t runs = (n + grain - 1) / grain;
  if (const int threads = static_cast<int>(std::min<int64_t>(num_threads(), runs)); threads > 1 && !omp_in_parallel()) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t r = 0; r < runs; ++r) f(r * grain, std::min(n, (r + 1) * grain), omp_get_thread_num());
    return;
  }
#endif
  if (n > 0) f(int64_t{0}, n, 0);
}

}  // namespace ht
