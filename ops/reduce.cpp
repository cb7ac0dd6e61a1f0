#include "ops/reduce.h"

#include "ops/samples.h"

namespace ht {

std::vector<Sample> reduce_samples(Var (*f)(const Var&, const ReduceOptions&)) {
  struct Case {
    Shape shape;
    ReduceOptions options;
  };
  const Case cases[] = {
      {{7}, {}},
      {{3, 5}, {{}, true}},
      {{3, 5}, {{0}}},
      {{3, 5}, {{-1}, true}},
      {{1, 4, 3}, {{1}}},
      {{2, 3, 1, 5}, {{0, 2, 3}}},
      {{2, 3, 2, 3}, {{-2, 0}, true}},
      {{2, 2, 3, 2, 2}, {{1, 3}}},
      {{3, 1, 2}, {{0, 1, 2}}},
  };
  std::vector<Sample> samples;
  uint64_t stream = 100;
  for (const Case& c : cases) {
    std::string label = str("x ", c.shape, " axes");
    for (const int axis : c.options.axes) label += str(' ', axis);
    samples.push_back({std::move(label),
                       {sample_signed(c.shape, stream++, 0.2, 2)},
                       [f, options = c.options](std::span<const Var> in) { return f(in[0], options); }});
  }
  return samples;
}

}  // namespace ht
