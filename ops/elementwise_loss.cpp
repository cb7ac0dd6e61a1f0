#include "ops/elementwise_loss.h"

#include "ops/samples.h"

namespace ht {

std::vector<Sample> elementwise_loss_samples(Var (*f)(const Var&, const Var&, Reduction), double low, double high,
                                             double gap) {
  std::vector<Sample> samples;
  uint64_t stream = 300;
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{7}, Shape{3, 5}, Shape{1, 4, 3}}) {
      const Tensor target = sample_uniform(shape, stream++, low, high);
      const Tensor x =
          gap > 0 ? sample_signed(shape, stream++, gap, gap + 1) : sample_uniform(shape, stream++, low, high);
      for (int64_t i = 0; gap > 0 && i < x.numel(); ++i) x.data<double>()[i] += target.data<double>()[i];
      samples.push_back({str("x ", shape, reduction == Reduction::mean ? " mean" : " sum"),
                         {x, target},
                         [=](std::span<const Var> in) { return f(in[0], in[1], reduction); }});
    }
  }
  return samples;
}

}  // namespace ht
