#include "autograd/gradcheck.h"

#include <cmath>
#include <iomanip>

#include "core/allocator.h"

namespace ht {

namespace {
double project(const Tensor& y, const Tensor& weights) {
  double sum = 0;
  for (int64_t i = 0; i < y.numel(); ++i) sum += y.data<double>()[i] * weights.data<double>()[i];
  return sum;
}

std::vector<Var> leaves(std::span<const Tensor> inputs) {
  std::vector<Var> vars;
  for (const Tensor& t : inputs) vars.emplace_back(t.clone(), true);
  return vars;
}
}  // namespace

GradcheckResult gradcheck(std::string_view op, const std::function<Var(std::span<const Var>)>& f,
                          std::span<const Tensor> inputs, const GradcheckOptions& options) {
  for (const Tensor& t : inputs)
    check(t.dtype() == DType::f64 && !t.device().is_cuda(), "gradcheck: inputs must be f64 on the CPU (",
          Named{"input", t}, ")");
  GradcheckResult result;
  const auto failed = [&](const auto&... parts) {
    result.ok = false;
    std::ostringstream out;
    out << std::setprecision(10) << "gradcheck of " << op << ": ";
    (out << ... << parts);
    result.message = out.str();
    return result;
  };

  const PoisonGuard poison;
  const std::vector<Var> vars = leaves(inputs);
  const Var y = f(vars);
  if (y.dtype() != DType::f64) return failed("the output is ", y.value(), ", not f64");
  const Tensor weights = Tensor::uniform(y.shape(), {options.seed, 0}, 0.5, 1.5, DType::f64);
  y.backward(weights, true);
  std::vector<Tensor> analytic;
  for (size_t k = 0; k < vars.size(); ++k) {
    if (!vars[k].grad().defined()) return failed("input ", k, " got no gradient");
    if (vars[k].grad().shape() != vars[k].shape())
      return failed("input ", k, " has shape ", vars[k].shape(), ", its gradient ", vars[k].grad().shape());
    analytic.push_back(vars[k].grad().clone());
  }
  y.backward(weights);

  const no_grad guard;
  for (size_t k = 0; k < vars.size(); ++k) {
    const Tensor& x = vars[k].value();
    const int64_t n = x.numel(), step = std::max<int64_t>(1, n / options.max_elements);
    for (int64_t i = 0; i < n; ++i) {
      const double a = analytic[k].data<double>()[i], twice = vars[k].grad().data<double>()[i];
      if (!(std::abs(twice - 2 * a) <= 1e-12 * std::abs(a) + 1e-300))
        return failed("input ", k, " index ", i, ": a second backward gave ", twice, ", not twice ", a);
    }
    for (int64_t i = 0; i < n; i += step) {
      const double a = analytic[k].data<double>()[i], before = x.data<double>()[i];
      x.data<double>()[i] = before + options.eps;
      const double up = project(f(vars).value(), weights);
      x.data<double>()[i] = before - options.eps;
      const double down = project(f(vars).value(), weights);
      x.data<double>()[i] = before;
      const double numeric = (up - down) / (2 * options.eps);
      const double error = std::abs(a - numeric), scale = std::max(std::abs(a), std::abs(numeric));
      const double relative = scale > 0 ? error / scale : 0;
      if (!(error <= options.atol + options.rtol * scale))
        return failed("input ", k, " index ", i, ": analytic ", a, ", numeric ", numeric, ", relative error ",
                      relative);
      if (scale > 1e-4) result.worst = std::max(result.worst, relative);
    }
  }
  return result;
}

}  // namespace ht
