#include "ops/fused.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/build.h"
#include "core/range.h"
#include "ops/few_channels_norm.h"
#include "ops/samples.h"

namespace ht {

namespace {
std::vector<Tensor> gather(const Fused::Part& part, Inputs in, const Tensor& previous) {
  std::vector<Tensor> inputs;
  for (const int i : part.inputs) inputs.push_back(i == Fused::kPrevious ? previous : in[static_cast<size_t>(i)]);
  return inputs;
}
}  // namespace

void Fused::add_batch_norm(Device device, const RunningStats& running, const BatchNormOptions& options,
                           BatchNormTail tail, int x, int gamma, int beta, std::shared_ptr<ConvNorm> link) {
  add(make_batch_norm(running, options, device.is_cuda() ? tail : BatchNormTail{}, std::move(link)), {x, gamma, beta});
  if (device.is_cuda()) return;
  if (tail.relu) add(make_relu(), {kPrevious});
  if (tail.pool) add(make_max_pool2d({}), {kPrevious});
}

TensorSpec Fused::infer(Inputs in) const {
  Tensor previous;
  TensorSpec spec;
  for (const Part& part : parts_) {
    spec = part.op->infer(gather(part, in, previous));
    previous = Tensor::empty(spec, in[0].device());  // for its shape; forward takes the same block again
  }
  return spec;
}

Tensor Fused::forward(Context& ctx, Inputs in, const TensorSpec& out) {
  if (make_whole_) whole_ = make_whole_(ctx, in);
  if (whole_) return whole_->forward(ctx, in, out);
  Tensor y;
  for (const Part& part : parts_) {
    const std::vector<Tensor> inputs = gather(part, in, y);
    const Range range(part.op->name(), "forward", part.op.get());
    y = part.op->forward(ctx, inputs, part.op->infer(inputs));
    range.touches(inputs);
    range.touches({&y, 1});
  }
  return y;
}

Grads Fused::backward(Context& ctx, const Tensor& dy, const std::vector<bool>& needs) {
  if (whole_) return whole_->backward(ctx, dy, needs);
  // The output of a part is wanted if any input of it or of an earlier part is.
  std::vector<bool> wanted(parts_.size());
  const auto is_wanted = [&](size_t p, int i) {
    return i == kPrevious ? p > 0 && wanted[p - 1] : bool{needs[static_cast<size_t>(i)]};
  };
  for (size_t p = 0; p < parts_.size(); ++p)
    for (const int i : parts_[p].inputs) wanted[p] = wanted[p] || is_wanted(p, i);

  Grads grads(needs.size());
  Tensor g = dy;
  for (size_t p = parts_.size(); p-- > 0 && wanted[p];) {
    const std::vector<int>& inputs = parts_[p].inputs;
    std::vector<bool> part_needs;
    for (const int i : inputs) part_needs.push_back(is_wanted(p, i));
    const Range range(parts_[p].op->name(), "backward", parts_[p].op.get());
    Grads of_part = parts_[p].op->backward(ctx, g, part_needs);
    range.touches({&g, 1});
    range.touches(of_part);
    g = {};
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (inputs[k] == kPrevious)
        g = std::move(of_part[k]);
      else
        grads[static_cast<size_t>(inputs[k])] = std::move(of_part[k]);
    }
  }
  return grads;
}

namespace {
// The smallest distance to a kink: of any value to 0, of a 2x2 window's largest value to its next.
double distance_to_kink(const Tensor& y) {
  const int64_t n = y.dim(0), h = y.dim(1), w = y.dim(2), c = y.dim(3);
  const double* v = y.data<double>();
  double least = INFINITY;
  for (int64_t i = 0; i < y.numel(); ++i) least = std::min(least, std::abs(v[i]));
  for (int64_t i = 0; i < n * (h / 2) * (w / 2) * c; ++i) {
    const int64_t ch = i % c, ox = i / c % (w / 2), oy = i / c / (w / 2) % (h / 2), image = i / c / (w / 2) / (h / 2);
    const auto at = [&](int64_t dy, int64_t dx) {
      return std::max(v[((image * h + 2 * oy + dy) * w + 2 * ox + dx) * c + ch], 0.0);
    };
    double window[] = {at(0, 0), at(0, 1), at(1, 0), at(1, 1)};
    std::sort(std::begin(window), std::end(window));
    if (window[3] > 0) least = std::min(least, window[3] - window[2]);
  }
  return least;
}

// `gamma` is which of the inputs has the channels; `before` computes up to the ReLU.
using FusedFunction = std::function<Var(std::span<const Var>, const RunningStats&, const BatchNormOptions&)>;
std::vector<Sample> samples_around(const Cases& cases, size_t gamma, const FusedFunction& before,
                                   const FusedFunction& f) {
  std::vector<Sample> list;
  for (const std::vector<Shape>& shapes : cases)
    for (const bool training : {true, false}) {
      const Shape c = shapes[gamma];
      const auto stats = [=](std::span<const Var> in) {  // samples run in other dtypes and devices too
        if (training) return RunningStats{};
        const Tensor& like = in[gamma].value();
        const auto stat = [&](uint64_t stream, double low, double high) {
          return sample_uniform(c, stream, low, high).to(like.dtype()).to(like.device());
        };
        return RunningStats{stat(300, -0.5, 0.5), stat(400, 0.5, 2), {}};
      };
      const BatchNormOptions options{.training = training};
      std::vector<Tensor> inputs;
      std::vector<Var> vars;
      uint64_t stream = 0;
      do {
        inputs.clear();
        vars.clear();
        for (const Shape& s : shapes) inputs.push_back(sample_signed(s, ++stream, 0.25, 2));
        for (const Tensor& t : inputs) vars.emplace_back(t);
      } while (distance_to_kink(before(vars, stats(vars), options).value()) < 0.04);
      list.push_back({str(training ? "training" : "evaluation", ", x ", shapes[0]), inputs,
                      [=](std::span<const Var> in) { return f(in, stats(in), options); }});
    }
  return list;
}
}  // namespace

std::vector<Sample> norm_samples(const Cases& cases, NormFunction f) {
  const auto with = [](NormFunction norm) {
    return [norm](std::span<const Var> in, const RunningStats& running, const BatchNormOptions& options) {
      return norm(in[0], in[1], in[2], running, options);
    };
  };
  return samples_around(cases, 1, with(batch_norm), with(f));
}

std::vector<Sample> conv_norm_samples(const Cases& cases, ConvNormFunction f) {
  const ConvNormFunction before = [](const Var& x, const Var& weight, const Var& bias, const Var& gamma,
                                     const Var& beta, const RunningStats& running, const Conv2dOptions& conv,
                                     const BatchNormOptions& options) {
    return batch_norm(conv2d(x, weight, bias, conv), gamma, beta, running, options);
  };
  const auto with = [](ConvNormFunction conv_norm) {
    return [conv_norm](std::span<const Var> in, const RunningStats& running, const BatchNormOptions& options) {
      return conv_norm(in[0], in[1], in.size() > 4 ? in[4] : Var(), in[2], in[3], running,
                       {.padding = in[1].dim(1) / 2}, options);
    };
  };
  return samples_around(cases, 2, with(before), with(f));
}

Var fused_norm(const OpInfo& info, BatchNormTail tail, const Var& x, const Var& gamma, const Var& beta,
               const RunningStats& running, const BatchNormOptions& options) {
  Fused op(info);
  op.add_batch_norm(x.device(), running, options, tail, 0, 1, 2);
  return apply(std::move(op), {x, gamma, beta});
}

Var fused_conv_norm(const OpInfo& info, BatchNormTail tail, const Var& x, const Var& weight, const Var& bias,
                    const Var& gamma, const Var& beta, const RunningStats& running, const Conv2dOptions& conv,
                    const BatchNormOptions& options) {
  Fused op(info);
  const auto link = bias ? nullptr : std::make_shared<ConvNorm>();
  if (link) link->training = options.training, link->tail = tail;
  if constexpr (kCudaBuild) {
    if (options.training && !bias && tail.relu && !tail.pool)
      op.set_whole([=](Context& ctx, Inputs in) -> std::unique_ptr<Op> {
        const Conv2dShape s = conv2d_shape(in[0], in[1], conv);
        if (!ctx.is_cuda() || !fits_few_channels_norm(s, in[0].dtype())) return nullptr;
        return make_few_channels_norm(s, options, running);
      });
  }
  op.add(make_conv2d(conv, link), bias ? std::vector{0, 1, 4} : std::vector{0, 1});
  op.add_batch_norm(x.device(), running, options, tail, Fused::kPrevious, 2, 3, link);
  return bias ? apply(std::move(op), {x, weight, gamma, beta, bias}) : apply(std::move(op), {x, weight, gamma, beta});
}

}  // namespace ht
