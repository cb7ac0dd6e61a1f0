// What a user of the installed package can do: make a Var, call an op, walk back, read the gradient and the registry.
#include <iostream>
#include <vector>

#include "ops/ops.h"
#include "ops/registry.h"

int main() {
  const ht::Var x(ht::Tensor::from({-1, 2, 3}, {3}), true);
  ht::relu(x).backward(ht::Tensor::full({3}, 2.0));
  const std::vector<double> dx = x.grad().to_vector();
  std::cout << ht::all_ops().size() << " ops; the gradient of 2 relu(x) at -1, 2, 3 is " << dx[0] << ", " << dx[1]
            << ", " << dx[2] << '\n';
  return dx == std::vector<double>{0, 2, 2} && !ht::all_ops().empty() ? 0 : 1;
}
