// Gradient clipping: by hand and against PyTorch 1.13.
#include <doctest/doctest.h>

#include "tests/optim_helpers.h"

using namespace ht;
using namespace ht::optim;

TEST_CASE("clip: by norm") {
  const Var a = parameter({0}), b = parameter({0, 0}), none = parameter({7});
  const std::vector<Var> params{a, none, b};
  set_grad(a, {3}, DType::f16);
  set_grad(b, {0, -4});
  CHECK(clip_grad_norm_(params, 10).item() == 5);
  CHECK(a.grad().item() == 3);
  CHECK(clip_grad_norm_(params, kInf).item() == 5);
  CHECK(clip_grad_norm_(params, 1).item() == 5);
  CHECK(clip_grad_norm_(params, 1).item() == doctest::Approx(1).epsilon(1e-3));
  CHECK(a.grad_slot().dtype() == DType::f16);
  CHECK(b.grad().at(1) == doctest::Approx(-0.8).epsilon(1e-3));
  CHECK(clip_grad_norm_(params, 0).item() > 0);
  CHECK(b.grad().at(1) == 0);
  CHECK(!none.grad().defined());
  CHECK(clip_grad_norm_({}, 1).item() == 0);
  CHECK(clip_grad_norm_(std::vector{none}, 1).item() == 0);

  // Squares that overflow FP32 do not.
  set_grad(a, {0});
  set_grad(b, {3e30, 4e30});
  CHECK(clip_grad_norm_(params, 1).item() == doctest::Approx(5e30));
  CHECK(b.grad().at(0) == doctest::Approx(0.6));

  // As PyTorch: a non-finite norm is returned and shows in the gradients.
  set_grad(a, {2});
  set_grad(b, {kInf, 1});
  CHECK(clip_grad_norm_(params, 1).item() == kInf);
  CHECK(a.grad().item() == 0);
  CHECK(std::isnan(b.grad().at(0)));
  set_grad(a, {2});
  set_grad(b, {kNaN, 1});
  CHECK(std::isnan(clip_grad_norm_(params, 1).item()));
  CHECK(std::isnan(a.grad().item()));

  CHECK(error_of([&] { clip_grad_norm_(params, -1); }) == "clip_grad_norm_: max_norm is -1; it must be at least 0");
  CHECK(contains(error_of([&] { clip_grad_norm_(params, kNaN); }), "max_norm is nan"));
  CHECK(contains(error_of([&] { clip_grad_norm_(std::vector{a, Var()}, 1); }), "parameter 1 is undefined"));
}

TEST_CASE("clip: by value") {
  const Var p = parameter({0, 0, 0, 0, 0});
  set_grad(p, {-3, 0.5, 2, kInf, kNaN}, DType::bf16);
  clip_grad_value_(std::vector{p}, 1);
  const std::vector<double> g = p.grad().to_vector();
  CHECK(g[0] == -1);
  CHECK(g[1] == 0.5);
  CHECK(g[2] == 1);
  CHECK(g[3] == 1);
  CHECK(std::isnan(g[4]));
  CHECK(contains(error_of([&] { clip_grad_value_(std::vector{p}, -1); }), "clip_grad_value_: value is -1"));
  CHECK(contains(error_of([&] { clip_grad_value_(std::vector{p}, kNaN); }), "value is nan"));
}

TEST_CASE("clip: 20 steps as PyTorch") {
  check_sgd({.lr = 0.1, .momentum = 0.9},
            {-1.3258743286132812, 0.077274270355701447, -1.5589200258255005, 0.97441160678863525, -0.80714035034179688},
            DType::f32, Clip::norm);
  check_sgd({.lr = 0.1, .momentum = 0.9},
            {-1.638529896736145, 0.40835043787956238, -1.5274853706359863, 0.758453369140625, -0.61887466907501221},
            DType::f32, Clip::value);
}
