// Every registered op against central differences, on every sample that the op names.
#include <doctest/doctest.h>

#include "autograd/gradcheck.h"
#include "ops/registry.h"

using namespace ht;

TEST_CASE("gradcheck: every op, every sample") {
  for (const OpInfo* op : all_ops()) {
    const std::vector<Sample> samples = op->samples();
    CHECK_MESSAGE(!samples.empty(), op->name);
    for (const Sample& s : samples) {
      const GradcheckResult r = gradcheck(str(op->name, " (", s.label, ")"), s.function, s.inputs);
      CHECK_MESSAGE(r.ok, r.message);
    }
  }
}
