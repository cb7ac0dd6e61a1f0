// Batch norm on CUDA in one kernel a direction, for a batch that the shared memory of the device holds, so that it is
// read once. A cluster of blocks has a few packs of channels, each of its blocks some of the rows (or windows); the
// sums go from block to block, always in the same order.
#include "ops/batch_norm_resident.cuh"

namespace ht {

namespace {
using namespace bn;
using namespace bn::resident;

template <class T, bool kRelu, bool kPool>
__global__ void __launch_bounds__(kMostThreads)
    resident_forward_kernel(Geometry g, int each, const T* x, Running<T> running, const acc_t<T>* gamma,
                            const acc_t<T>* beta, T* y) {
  using H = Holder<T>;
  constexpr int N = H::N, kLanes = ClusterSums<N>::kLanes;
  __shared__ ClusterSums<N> sums;
  __shared__ alignas(16) float means[kLanes], slopes[kLanes], betas[kLanes];
  const H holder(g.rows, each);
  const int64_t c = holder.c;
  const Statistics<T>& statistics = running.s;
  Moments<T, N> moments;
  Window<T, N> w;
  let_next_start();
  wait_for_previous();
  holder.ask_all([&](int i, int r) {
    if constexpr (kPool)
      w.place(g, r, c), holder.ask(4 * i, w, x);
    else
      holder.ask(i, x + r * g.channels + c);
  });
  load_pack<T, N>(x + c, moments.shift);
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t channel = int64_t{blockIdx.y} * kLanes + lane;
  float first = 0, scale = 0, offset = 0;  // asked for now: behind the sums everybody would wait for them
  typename Running<T>::Old old;
  if (lane < kLanes) {
    first = load_as(x[channel]), scale = gamma[channel], offset = beta[channel];
    if (blockIdx.x == 0) old = running.old(channel);
  }
  holder.use_all([&](int i, int) {
#pragma unroll
    for (int p = 0; p < (kPool ? 4 : 1); ++p) moments.add(holder.at((kPool ? 4 : 1) * i + p));
  });
  float sum = 0, squares = 0;
  sums.add(moments.sum, moments.squares, sum, squares);
  unsigned count = 0;
  float mean = 0, var = 0, invstd = 0;
  if (lane < kLanes) {
    statistics.of_batch(first, sum, squares, mean, var);
    invstd = statistics.inverse(var);
    means[lane] = mean, slopes[lane] = invstd * scale, betas[lane] = offset;
  }
  sums.arrive();
  if (lane < 32 && blockIdx.x == 0) {
    if (lane < kLanes) statistics.mean[channel] = mean, statistics.invstd[channel] = invstd;
    count = running.update(channel, g.channels, lane < kLanes, old, mean, var);
  }
  Channels<T, N> channels;
  const int column = lane % kGroup * N;
  load_channels<N>(means + column, channels.mean);
  load_channels<N>(slopes + column, channels.slope);
  load_channels<N>(betas + column, channels.beta);
  holder.each_row([&](int i, int r) {
    if constexpr (kPool) {
      w.place(g, r, c), holder.take(4 * i, w);
      H::put(y + w.out, w.pooled(channels));
    } else {
      H::put(y + r * g.channels + c, channels.template normalised<kRelu>(holder.at(i)));
    }
  });
  if (lane < 32 && blockIdx.x == 0) running.settle(count, g.channels);
  sums.wait();
}

template <class T, bool kRelu, bool kPool>
__global__ void __launch_bounds__(kMostThreads)
    resident_backward_kernel(Geometry g, int each, const T* x, const T* dy, const acc_t<T>* mean,
                             const acc_t<T>* invstd, const acc_t<T>* gamma, const acc_t<T>* beta, double share, T* dx,
                             acc_t<T>* dgamma, acc_t<T>* dbeta) {
  using H = Holder<T>;
  constexpr int N = H::N, kLanes = ClusterSums<N>::kLanes, kPacks = kPool ? 5 : 2;
  __shared__ ClusterSums<N> sums;
  __shared__ alignas(16) float tilts[kLanes], shifts[kLanes];
  const H holder(g.rows, each);
  const int64_t c = holder.c;
  InputGradient<T, N> gradient;
  Window<T, N> w;
  GradientSums<T, N> add;
  let_next_start();
  wait_for_previous();
  holder.ask_all([&](int i, int r) {
    if constexpr (kPool) {
      w.place(g, r, c);
      holder.ask(kPacks * i, w, x), holder.ask(kPacks * i + 4, dy + w.out);
    } else {
      holder.ask(kPacks * i, x + r * g.channels + c), holder.ask(kPacks * i + 1, dy + r * g.channels + c);
    }
  });
  load_channels<N>(mean + c, gradient.channels.mean);
  load_channels<N>(invstd + c, gradient.channels.slope);
  gradient.channels.load_affine(gamma, beta, c);
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t channel = int64_t{blockIdx.y} * kLanes + lane;
  float inverse = 0, scale = 0;
  if (lane < kLanes) inverse = invstd[channel], scale = gamma[channel];
  w.whole = true;
  holder.use_all([&](int i, int) {
    if constexpr (kPool)
      holder.take(kPacks * i, w), add.add(gradient.channels, w, holder.at(kPacks * i + 4));
    else
      add.template add<kRelu>(gradient.channels, holder.at(kPacks * i), holder.at(kPacks * i + 1));
  });
  float sum = 0, product = 0;
  sums.add(add.sum, add.product, sum, product);
  if (lane < kLanes) {
    const double inv = inverse, s = sum, p = product;
    const float slope = inverse * scale;
    tilts[lane] = -slope * static_cast<float>(p * inv * inv * share);
    shifts[lane] = -slope * static_cast<float>(s * share);
    if (blockIdx.x == 0 && dbeta) dbeta[channel] = sum;
    if (blockIdx.x == 0 && dgamma) dgamma[channel] = static_cast<float>(p * inv);
  }
  sums.arrive();
  const int column = lane % kGroup * N;
  load_channels<N>(tilts + column, gradient.tilt);
  load_channels<N>(shifts + column, gradient.shift);
  holder.each_row([&](int i, int r) {
    if constexpr (kPool) {
      w.place(g, r, c), holder.take(kPacks * i, w);
      gradient.of(w, holder.at(kPacks * i + 4));
#pragma unroll
      for (int p = 0; p < 4; ++p) H::put(dx + w.at[p], w.x[p]);
    } else {
      H::put(dx + r * g.channels + c, gradient.template of<kRelu>(holder.at(kPacks * i), holder.at(kPacks * i + 1)));
    }
  });
  sums.wait();
}

template <class... P, class... A>
void launch(const CudaContext& cuda, const Residence& r, void (*kernel)(P...), A&&... args) {
  launch_early(cuda, kernel, LaunchShape{r.grid, r.block, r.grid.x, r.bytes}, std::forward<A>(args)...);
}

// Calls f.operator()<T, kRelu, kPool>() where there is a residence for T.
template <class F>
bool dispatch(std::initializer_list<Tensor> tensors, const Tensor& x, BatchNormTail tail, F&& f) {
  bool fits = false;
  dispatch_packs(tensors, x.shape().back(), [&]<class T, int N>() {
    if constexpr (N * sizeof(T) == 16 && sizeof(T) <= 4) {
      if (tail.pool)
        fits = f.template operator()<T, true, true>();
      else
        fits = tail.relu ? f.template operator()<T, true, false>() : f.template operator()<T, false, false>();
    }
  });
  return fits;
}
}  // namespace

bool batch_norm_is_resident_cuda(Context& ctx, const Tensor& x, BatchNormTail tail) {
  return dispatch({x}, x, tail, [&]<class T, bool kRelu, bool kPool>() {
    return residence_of<T>(ctx.cuda(), geometry_of(x, tail), kPool, kPool ? 4 : 1).has_value();
  });
}

bool batch_norm_resident_forward_cuda(Context& ctx, const BatchNormOptions& options, const Tensor& x,
                                      const Tensor& gamma, const Tensor& beta, const RunningStats& running,
                                      const Tensor& y, const Tensor& mean, const Tensor& invstd, BatchNormTail tail) {
  return dispatch({x, y, gamma, beta}, x, tail, [&]<class T, bool kRelu, bool kPool>() {
    CudaContext& cuda = ctx.cuda();
    const Geometry g = geometry_of(x, tail);
    const auto residence = residence_of<T>(cuda, g, kPool, kPool ? 4 : 1);
    if (!residence) return false;
    const Tensor saved = running.mean ? Tensor::empty({2, g.channels}, DType::f32, ctx.device()) : Tensor();
    launch(cuda, *residence, resident_forward_kernel<T, kRelu, kPool>, g, residence->each, x.data<T>(),
           Running<T>{statistics_of<T>(options, x.numel() / g.channels, running, mean, invstd),
                      saved ? saved.data<float>() : nullptr, static_cast<unsigned*>(cuda.zeros_of(sizeof(unsigned)))},
           gamma.data<float>(), beta.data<float>(), y.data<T>());
    return true;
  });
}

bool batch_norm_resident_backward_cuda(Context& ctx, const Tensor& x, const Tensor& gamma, const Tensor& beta,
                                       const Tensor& mean, const Tensor& invstd, const Tensor& dy, const Tensor& dx,
                                       const Tensor& dgamma, const Tensor& dbeta, BatchNormTail tail) {
  return dispatch({x, dy, dx, gamma, beta}, x, tail, [&]<class T, bool kRelu, bool kPool>() {
    CudaContext& cuda = ctx.cuda();
    const Geometry g = geometry_of(x, tail);
    const auto residence = residence_of<T>(cuda, g, kPool, kPool ? 5 : 2);
    if (!residence) return false;
    launch(cuda, *residence, resident_backward_kernel<T, kRelu, kPool>, g, residence->each, x.data<T>(), dy.data<T>(),
           mean.data<float>(), invstd.data<float>(), gamma.data<float>(), kRelu ? beta.data<float>() : nullptr,
           1 / static_cast<double>(x.numel() / g.channels), dx.data<T>(), dgamma ? dgamma.data<float>() : nullptr,
           dbeta ? dbeta.data<float>() : nullptr);
    return true;
  });
}

}  // namespace ht
