// Learning rate schedules: key points, PyTorch's values, the command line's text, errors.
#include <doctest/doctest.h>

#include <cmath>

#include "core/error.h"
#include "optim/schedule.h"
#include "tests/error_of.h"

using namespace ht;
using namespace ht::optim;

namespace {
void check_values(const Schedule& s, const std::vector<double>& expected) {
  for (size_t t = 0; t < expected.size(); ++t) {
    INFO(s.text, " at step ", t);
    CHECK(s.factor(static_cast<int64_t>(t)) == doctest::Approx(expected[t]).epsilon(1e-12));
  }
}

}  // namespace

TEST_CASE("schedule: constant, step, multi-step as PyTorch") {
  check_values(constant_lr(), {1, 1, 1});
  check_values(step_lr(3, 0.5), {1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125});
  check_values(multi_step_lr({2, 5}, 0.1), {1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01});
  CHECK(step_lr(1, 0).factor(0) == 1);
  CHECK(step_lr(1, 0).factor(1) == 0);
}

TEST_CASE("schedule: cosine as PyTorch, then its last value") {
  const Schedule s = cosine_lr(10, 0.1);
  check_values(s, {1, 0.97797543233281914, 0.91405764746872631, 0.8145033635316129, 0.68905764746872633, 0.55,
                   0.41094235253127376, 0.28549663646838719, 0.18594235253127372, 0.12202456766718092, 0.1});
  CHECK(s.factor(11) == doctest::Approx(0.1));
  CHECK(s.factor(1000) == doctest::Approx(0.1));
  CHECK(cosine_lr(1).factor(0) == 1);
  CHECK(cosine_lr(1).factor(1) == doctest::Approx(0));
}

TEST_CASE("schedule: one-cycle as PyTorch, then its last value") {
  const Schedule s = one_cycle_lr(20);
  check_values(s, {0.04,
                   0.1316718427000253,
                   0.37167184270002529,
                   0.66832815729997475,
                   0.90832815729997474,
                   1,
                   0.98746400623508734,
                   0.95048463201347366,
                   0.89091617757105002,
                   0.81174565394976306,
                   0.71694300179130077,
                   0.61126202193628931,
                   0.500002,
                   0.38874197806371075,
                   0.28306099820869923,
                   0.18825834605023697,
                   0.10908782242895004,
                   0.049519367986526286,
                   0.012539993764912554,
                   4e-06});
  CHECK(s.factor(20) == doctest::Approx(4e-6));
  // A peak between two steps.
  check_values(one_cycle_lr(9, 0.5, 10, 100),
               {0.1, 0.26942958916356985, 0.65013442028034141, 0.95543599055608852, 0.96987646408256123, 0.75025,
                0.41376273525536833, 0.11786080066207054, 0.001});
}

TEST_CASE("schedule: triangular") {
  check_values(triangular_lr(10, 0.2, 0.2, 0.2), {0.2, 0.6, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.2});
  const Schedule s = triangular_lr(100, 0.25);
  CHECK(s.factor(0) == 0);
  CHECK(s.factor(25) == 1);
  CHECK(s.factor(100) == doctest::Approx(0.01));
  CHECK(s.factor(1'000'000'000'000) == doctest::Approx(0.01));
}

TEST_CASE("schedule: warm-up multiplies the first steps of any other") {
  check_values(warmup(4), {0.25, 0.5, 0.75, 1, 1, 1});
  check_values(warmup(1), {1, 1});
  check_values(warmup(2, step_lr(1, 0.5)), {0.5, 0.5, 0.25, 0.125});
  check_values(warmup(4, multi_step_lr({4}, 0.1)), {0.25, 0.5, 0.75, 1, 0.1});
}

TEST_CASE("schedule: every step of every schedule is finite, at least 0 and at most 1") {
  for (const char* text : {"constant", "step:3:0.5", "multistep:5,9", "cosine", "cosine:0.2", "onecycle", "triangular",
                           "triangular:0.5:0.1:0", "warmup:5+cosine", "warmup:3"}) {
    for (const int64_t total : {1, 2, 3, 10, 997}) {
      const Schedule s = parse_schedule(text, total);
      for (int64_t t = 0; t <= total + 5; ++t) {
        const double f = s.factor(t);
        INFO(text, " total ", total, " step ", t, " factor ", f);
        REQUIRE(std::isfinite(f));
        REQUIRE(f >= 0);
        REQUIRE(f <= 1 + 1e-12);
      }
    }
  }
}

TEST_CASE("schedule: text is read with its defaults, and a schedule's own text reads back") {
  const auto same = [](const Schedule& a, const Schedule& b) {
    for (int64_t t = 0; t < 120; ++t) REQUIRE(a.factor(t) == b.factor(t));
    CHECK(a.text == b.text);
  };
  same(parse_schedule("constant", 100), constant_lr());
  same(parse_schedule("step:30", 100), step_lr(30, 0.1));
  same(parse_schedule("step:30:0.5", 100), step_lr(30, 0.5));
  same(parse_schedule("multistep:60,90:0.2", 100), multi_step_lr({60, 90}, 0.2));
  same(parse_schedule("cosine", 100), cosine_lr(100));
  same(parse_schedule("cosine:1e-2", 100), cosine_lr(100, 0.01));
  same(parse_schedule("onecycle:0.3", 100), one_cycle_lr(100));
  same(parse_schedule("onecycle:0.4:10:50", 100), one_cycle_lr(100, 0.4, 10, 50));
  same(parse_schedule("triangular:0.2", 100), triangular_lr(100));
  same(parse_schedule("warmup:20", 100), warmup(20));
  same(parse_schedule("warmup:20+cosine", 100), warmup(20, cosine_lr(100)));
  same(parse_schedule("warmup:2e+multistep:3e,5e", 100, 10), warmup(20, multi_step_lr({30, 50})));
  for (const char* text : {"constant", "step:7:0.3", "multistep:2,50:0.25", "cosine:0.125", "onecycle:0.25:20:100",
                           "triangular:0.25:0.5:0.125", "warmup:5+cosine"})
    same(parse_schedule(parse_schedule(text, 100).text, 100), parse_schedule(text, 100));
}

TEST_CASE("schedule: errors quote the text and say what is wrong") {
  const auto parse = [](const char* text, int64_t total = 100) {
    return error_of([&] { parse_schedule(text, total); });
  };
  CHECK(contains(parse("cosin"), "schedule 'cosin': 'cosin' is unknown; use constant, step:SIZE[:GAMMA]"));
  CHECK(contains(parse(""), "'' is unknown"));
  CHECK(contains(parse("step"), "schedule 'step': step takes 1 to 2 values after it, given 0"));
  CHECK(contains(parse("constant:1"), "constant takes 0 values after it, given 1"));
  CHECK(contains(parse("cosine:0.1:3"), "cosine takes 0 to 1 values after it, given 2"));
  CHECK(contains(parse("step:abc"), "schedule 'step:abc': 'abc' is not a count of steps (500) or epochs (5e)"));
  CHECK(contains(parse("step:"), "'' is not a count"));
  CHECK(contains(parse("step:30x"), "'30x' is not a count"));
  CHECK(contains(parse("step:1.5"), "'1.5' is not a count"));
  CHECK(contains(parse("step:99999999999999999999"), "is not a count"));
  CHECK(contains(parse("step:30:0.1x"), "'0.1x' is not a number"));
  CHECK(contains(parse("step:0"), "schedule step: size is 0; it must be at least 1"));
  CHECK(contains(parse("step:-3"), "size is -3"));
  CHECK(contains(parse("step:30:nan"), "gamma is nan"));
  CHECK(contains(parse("step:30:-1"), "gamma is -1; it must be finite and at least 0"));
  CHECK(contains(parse("step:30:inf"), "gamma is inf"));
  CHECK(contains(parse("multistep:60,30"), "milestone 1 is 30, not above 60 before it"));
  CHECK(contains(parse("multistep:60,60"), "they must increase"));
  CHECK(contains(parse("multistep:60,"), "'' is not a count"));
  CHECK(contains(parse("cosine", 0), "schedule cosine: total_steps is 0"));
  CHECK(contains(parse("onecycle:1"), "pct_start is 1; it must lie between 0 and 1"));
  CHECK(contains(parse("onecycle:0.3:0.5"), "div is 0.5"));
  CHECK(contains(parse("triangular:0"), "peak is 0; it must lie between 0 and 1"));
  CHECK(contains(parse("triangular:nan"), "peak is nan"));
  CHECK(contains(parse("warmup:0+cosine"), "schedule warmup: steps is 0"));
  CHECK(contains(parse("cosine+warmup:5"), "+ joins a warmup and one other schedule"));
  CHECK(contains(parse("warmup:5+warmup:5"), "+ joins"));
  CHECK(contains(parse("warmup:5+cosine+constant"), "+ joins"));
  CHECK(contains(parse("warmup:5+"), "'' is unknown"));
  CHECK(contains(parse("step:3e"), "'3e' counts epochs, but steps_per_epoch is 0"));
  CHECK(contains(error_of([] { parse_schedule("step:9000000000000000000e", 10, 10); }), "is too large"));
  CHECK(contains(error_of([] { multi_step_lr({}); }), "no milestones"));
  CHECK(contains(error_of([] { warmup(3, Schedule{}); }), "has no factor"));
}
