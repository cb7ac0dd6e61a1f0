// The CUDA side of conv2d: cuDNN graphs, and a plain matrix product where the convolution is one.
#include <set>

#include "core/alignment.h"
#include "core/arithmetic.h"
#include "core/cudnn_graph.h"
#include "core/tuning.h"
#include "ops/batch_norm.h"
#include "ops/conv2d_kernels.h"
#include "ops/gemm.h"
#include "ops/pad_channels.h"

namespace ht {

namespace {
// The convolution graph alone and followed by an identity: the second form brings in cuDNN's run-time compiled engine,
// which its heuristics do not offer for the first, and which is often the faster one at small batches.
// `sums`: also, as a third form, with the sums of y and y^2 a channel, two tensors more.
std::vector<CudnnGraph> forms(ConvKind kind, const Conv2dShape& s, const Tensor& x, const Tensor& w, const Tensor& y,
                              bool sums) {
  std::vector<CudnnGraph> graphs;
  const DType compute = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  for (const int form : {0, 1, 2}) {
    const bool identity = form == 1, with_sums = form == 2;
    if ((identity && !is_half(x.dtype())) || (with_sums && !sums)) continue;
    CudnnGraph g;
    const Tensor* tensors[] = {&x, &w, &y};
    const int result = kind == ConvKind::forward ? 2 : kind == ConvKind::data_gradient ? 0 : 1;
    int ids[3];
    for (int i = 0; i < 3; ++i) ids[i] = g.tensor(tensors[i]->shape(), tensors[i]->dtype());
    const int last = ids[result];
    if (identity) ids[result] = g.tensor(tensors[result]->shape(), DType::f32, true);
    g.convolution(kind, ids[0], ids[1], ids[2], {s.stride, s.padding, s.dilation}, compute);
    if (identity) g.identity(ids[result], last);
    if (with_sums) {
      const Shape channels{1, 1, 1, s.out};
      const int sum = g.tensor(channels, DType::f32), squares = g.tensor(channels, DType::f32);
      g.channel_sums(last, sum, squares);
    }
    graphs.push_back(std::move(g));
  }
  return graphs;
}

std::string describe(ConvKind kind, const Conv2dShape& s, const Tensor& x, const Tensor& w) {
  return str(name_of(kind), " x ", x.shape(), ' ', x.dtype(), ", weight ", w.shape(), ", stride ", s.stride,
             ", padding ", s.padding, ", dilation ", s.dilation);
}

void run(Context& ctx, ConvKind kind, const Conv2dShape& s, const Tensor& x, const Tensor& w, const Tensor& y,
         bool beside = false) {
  const std::vector<void*> pointers{x.data(), w.data(), y.data()};
  const auto plan = best_plan(
      ctx, describe(kind, s, x, w), s.n, x.dtype(), [&] { return forms(kind, s, x, w, y, false); }, pointers);
  CudaContext& cuda = ctx.cuda();
  const auto execute = [&](CudaLane& lane) { plan->execute(lane, cuda.device, pointers); };
  beside ? cuda.beside({x, w, y}, execute) : execute(cuda.main);
}

// The forward convolution and, where the fastest plan makes them, the sums of y and y^2 a channel; else `sums` becomes
// undefined, since a pass over y makes them sooner.
void run_with_sums(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& w, const Tensor& y,
                   Tensor& sums) {
  sums = Tensor::empty({2, s.out}, DType::f32, x.device());
  const std::vector<void*> pointers{x.data(), w.data(), y.data(), sums.data(), sums.rows(1, 2).data()};
  const auto has_sums = [&](const CudnnPlan& plan) { return plan.tensors() == pointers.size(); };
  const auto plan = best_plan(
      ctx, describe(ConvKind::forward, s, x, w) + ", sums", s.n, x.dtype(),
      [&] { return forms(ConvKind::forward, s, x, w, y, true); }, pointers,
      [&](const CudnnPlan& p) {
        if (!has_sums(p)) batch_norm_sums_cuda(ctx, y, sums);
      });
  plan->execute(ctx.cuda().main, ctx.cuda().device, pointers);
  if (!has_sums(*plan)) sums = {};
}

int64_t round8(int64_t n) { return (n + 7) / 8 * 8; }

// cuDNN has no tensor-core plan for some channel counts that are no multiple of 8: then all are padded with zeros.
void run_padded(Context& ctx, ConvKind kind, Conv2dShape s, const Tensor& x, const Tensor& w, const Tensor& y) {
  const int64_t in = round8(s.in), out = round8(s.out);
  const Tensor wide_x = Tensor::empty({s.n, s.h, s.w, in}, x.dtype(), x.device());
  const Tensor wide_w = Tensor::zeros({out, s.kh, s.kw, in}, x.dtype(), x.device());
  const Tensor wide_y = Tensor::empty({s.n, s.oh, s.ow, out}, x.dtype(), x.device());
  if (kind != ConvKind::data_gradient) copy_channels_cuda(ctx, x, wide_x);
  if (kind != ConvKind::weight_gradient) copy_channels_cuda(ctx, w, wide_w.rows(0, s.out));
  if (kind != ConvKind::forward) copy_channels_cuda(ctx, y, wide_y);
  s.in = in, s.out = out;
  run(ctx, kind, s, wide_x, wide_w, wide_y);
  if (kind == ConvKind::forward) copy_channels_cuda(ctx, wide_y, y);
  if (kind == ConvKind::data_gradient) copy_channels_cuda(ctx, wide_x, x);
  if (kind == ConvKind::weight_gradient) copy_channels_cuda(ctx, wide_w.rows(0, w.dim(0)), w);
}

// `beside`: where nothing has to be prepared.
void run_any(Context& ctx, ConvKind kind, const Conv2dShape& s, const Tensor& x, const Tensor& w, const Tensor& y,
             bool beside = false) {
  if (s.in % 8 == 0 && s.out % 8 == 0) return run(ctx, kind, s, x, w, y, beside);
  thread_local std::set<std::string> padded;  // problems that have no plan of their own
  const std::string key = describe(kind, s, x, w);
  if (!padded.contains(key)) {
    try {
      return run(ctx, kind, s, x, w, y);
    } catch (const Error&) {
      padded.insert(key);
    }
  }
  run_padded(ctx, kind, s, x, w, y);
}

// cuDNN counts elements in 32 bits, and without tensor cores copies images to another layout in the workspace: larger
// tensors go through in parts of the batch, of eight images so that each part is aligned.
int64_t images_at_once(const Conv2dShape& s, DType dtype) {
  const int64_t in = s.h * s.w * s.in, out = s.oh * s.ow * s.out;
  int64_t most = ((int64_t{1} << 31) - 1) / std::max<int64_t>({in, out, 1});
  if (dtype == DType::f64 || (dtype == DType::f32 && !tf32())) {
    const int64_t copies = (in + out) * static_cast<int64_t>(size_of(dtype));
    const int64_t room = static_cast<int64_t>(workspace_limit() / 16 * 15);
    if (room / 8 > copies) most = std::min(most, room / std::max<int64_t>(copies, 1));
  }
  return most > 8 ? most / 8 * 8 : std::max<int64_t>(1, most);
}

// Calls f(part of s, x part, y part) for each part.
template <class F>
void for_parts(const Conv2dShape& s, const Tensor& x, const Tensor& y, F&& f) {
  const int64_t most = images_at_once(s, x.dtype());
  for (int64_t begin = 0; begin < s.n; begin += most) {
    const int64_t end = std::min(s.n, begin + most);
    Conv2dShape part = s;
    part.n = end - begin;
    f(part, x.rows(begin, end), y.rows(begin, end));
  }
}
}  // namespace

void conv2d_forward_cuda(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const Tensor& y, Tensor* sums) {
  if (y.numel() == 0) return;
  if (s.pointwise())
    return gemm(ctx, {.m = s.n * s.h * s.w, .n = s.out, .k = s.in, .transpose_b = true}, x, weight, y, bias);
  if (has_few_channels(s, x.dtype())) {
    const bool wanted = sums && !bias.defined() && !deterministic();
    if (wanted) *sums = Tensor::zeros({2, s.out}, DType::f32, x.device());
    few_channels_forward_cuda(ctx, s, x, weight, y, wanted ? *sums : Tensor());
    if (bias.defined()) add_bias_cuda(ctx, bias, y);
    return;
  }
  const Tensor w = aligned(weight);
  if (sums && is_half(x.dtype()) && !bias.defined() && s.in % 8 == 0 && s.out % 8 == 0 && !deterministic() &&
      s.n <= images_at_once(s, x.dtype()))
    return run_with_sums(ctx, s, aligned(x), w, y, *sums);
  for_parts(s, aligned(x), y, [&](const Conv2dShape& part, const Tensor& px, const Tensor& py) {
    run_any(ctx, ConvKind::forward, part, px, w, py);
  });
  if (bias.defined()) add_bias_cuda(ctx, bias, y);
}

void conv2d_dgrad_cuda(Context& ctx, const Conv2dShape& s, const Tensor& dy, const Tensor& weight, const Tensor& dx) {
  if (dx.numel() == 0) return;
  if (s.pointwise()) return gemm(ctx, {.m = s.n * s.h * s.w, .n = s.in, .k = s.out}, dy, weight, dx);
  const Tensor w = aligned(weight);
  for_parts(s, dx, aligned(dy), [&](const Conv2dShape& part, const Tensor& px, const Tensor& py) {
    run_any(ctx, ConvKind::data_gradient, part, px, w, py);
  });
}

void conv2d_wgrad_cuda(Context& ctx, const Conv2dShape& s, const Tensor& dy, const Tensor& x, const Tensor& dweight,
                       bool beside) {
  if (s.n == 0) return dweight.zero_();
  if (s.pointwise())
    return gemm(ctx, {.m = s.out, .n = s.in, .k = s.n * s.h * s.w, .transpose_a = true, .beside = beside}, dy, x,
                dweight);
  if (has_few_channels(s, x.dtype())) return few_channels_wgrad_cuda(ctx, s, aligned(dy), x, dweight);
  Tensor sum;
  for_parts(s, aligned(x), aligned(dy), [&](const Conv2dShape& part, const Tensor& px, const Tensor& py) {
    if (part.n == s.n) return run_any(ctx, ConvKind::weight_gradient, part, px, dweight, py, beside);
    const Tensor share = Tensor::empty_like(dweight);
    run_any(ctx, ConvKind::weight_gradient, part, px, share, py);
    if (!sum) sum = Tensor::zeros(dweight.shape(), DType::f32, dweight.device());
    add_into(sum, share);
  });
  if (sum) dweight.copy_(sum);
}

}  // namespace ht
