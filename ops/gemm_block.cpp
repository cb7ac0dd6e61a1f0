// The product of two blocks, by Eigen: in a file of its own because it takes long to compile.
#define EIGEN_DONT_PARALLELIZE  // threads are ours, outside
#include <Eigen/Core>
#include <algorithm>

#include "ops/gemm.h"

namespace ht {

namespace {
template <class T, int Order>
using View = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Order>, 0, Eigen::OuterStride<>>;

template <class T, int OrderA, int OrderB>
void product(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc,
             bool accumulate) {
  const View<T, OrderA> left(a, m, k, Eigen::OuterStride<>(lda));
  const View<T, OrderB> right(b, k, n, Eigen::OuterStride<>(ldb));
  Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0, Eigen::OuterStride<>> out(
      c, m, n, Eigen::OuterStride<>(ldc));
  if (accumulate)
    out.noalias() += left * right;
  else
    out.noalias() = left * right;
}
}  // namespace

template <class T>
void gemm_block(int64_t m, int64_t n, int64_t k, MatrixView<T> a, MatrixView<T> b, T* c, int64_t ldc, bool accumulate) {
  if (k == 0) {
    for (int64_t r = 0; r < m && !accumulate; ++r) std::fill_n(c + r * ldc, n, T(0));
  } else if (!a.transposed && !b.transposed) {
    product<T, Eigen::RowMajor, Eigen::RowMajor>(m, n, k, a.data, a.ld, b.data, b.ld, c, ldc, accumulate);
  } else if (!a.transposed) {
    product<T, Eigen::RowMajor, Eigen::ColMajor>(m, n, k, a.data, a.ld, b.data, b.ld, c, ldc, accumulate);
  } else if (!b.transposed) {
    product<T, Eigen::ColMajor, Eigen::RowMajor>(m, n, k, a.data, a.ld, b.data, b.ld, c, ldc, accumulate);
  } else {
    product<T, Eigen::ColMajor, Eigen::ColMajor>(m, n, k, a.data, a.ld, b.data, b.ld, c, ldc, accumulate);
  }
}
template void gemm_block<float>(int64_t, int64_t, int64_t, MatrixView<float>, MatrixView<float>, float*, int64_t, bool);
template void gemm_block<double>(int64_t, int64_t, int64_t, MatrixView<double>, MatrixView<double>, double*, int64_t,
                                 bool);

}  // namespace ht
