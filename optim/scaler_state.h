// The loss scaler as its device keeps it, and all the rules by which it moves: plain structs and functions, the same in
// the CPU's loops and in CUDA's kernels. A training step reads none of it on the host.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/dtype.h"

namespace ht::optim {

struct ScalerOptions {
  bool dynamic = true;  // else the scale stays; steps are skipped all the same
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  double min_scale = 1;
  double max_scale = 16777216;     // 2^24
  int64_t growth_interval = 2000;  // good steps in a row before the scale grows
  int64_t max_consecutive_skips = 50;
};

// One a loss.
struct ScalerState {
  float scale = 1;
  int32_t growth_tracker = 0;  // good steps since the scale last moved
  // Since the last step:
  int32_t bad_gradient = 0;  // a gradient was not finite
  int32_t bad_loss = 0;      // the loss itself was not: the model diverges, whatever the scale
  float used_scale = 1;      // of its newest backward
  int32_t first_bad = -1;    // the parameter whose gradient went bad first in backward's order: the last of the list
};

// One an optimizer: what the newest step found and decided, and the skipped steps so far.
struct StepRecord {
  int32_t bad_gradient = 0, first_bad = -1;  // of the step's own check
  int32_t skip = 0;                          // the verdict
  int32_t last_bad = -1, last_bad_loss = 0;  // of the last skipped step
  float last_scale = 1;
  double unscale = 1;  // gradients are multiplied with these two
  double clip = 1;
  double norm = 0;  // of all unscaled gradients, where a step clips by it
  int64_t skips = 0, consecutive_skips = 0;
};

// A backward of loss `id` starts; the first one since a step clears what the last one found. Gives the scale.
HT_HD inline float begin_backward(ScalerState* states, int count, int id, bool first, bool loss_is_finite) {
  for (int i = 0; first && i < count; ++i) states[i].bad_gradient = states[i].bad_loss = 0, states[i].first_bad = -1;
  if (!loss_is_finite) states[id].bad_loss = 1;
  return states[id].used_scale = states[id].scale;
}

// Skip the step? And by what are gradients multiplied? `scaled`: they hold the scale of the only loss. `squares`: their
// sum of squares as they are. Without a scaler (count 0) no step is skipped.
HT_HD inline void judge(StepRecord& r, const ScalerState* states, int count, bool scaled, double squares,
                        double max_norm) {
  bool bad = count > 0 && r.bad_gradient;
  for (int i = 0; i < count; ++i) bad = bad || states[i].bad_gradient || states[i].bad_loss;
  r.skip = bad;
  r.unscale = scaled ? 1.0 / static_cast<double>(states[0].scale) : 1.0;
  r.norm = std::sqrt(squares) * r.unscale;
  const double factor = max_norm / (r.norm + 1e-6);
  r.clip = max_norm < std::numeric_limits<double>::infinity() && !(factor >= 1) ? factor : 1.0;
}

// One scaler after a step. A bad loss leaves it alone: no scale mends a model that diverges.
HT_HD inline void move_scale(ScalerState& s, const ScalerOptions& o) {
  if (s.bad_loss) return;
  if (s.bad_gradient) {
    s.growth_tracker = 0;
    if (o.dynamic)
      s.scale = static_cast<float>(std::fmax(static_cast<double>(s.scale) * o.backoff_factor, o.min_scale));
  } else if (o.dynamic && ++s.growth_tracker >= o.growth_interval) {
    s.growth_tracker = 0;
    s.scale = static_cast<float>(std::fmin(static_cast<double>(s.scale) * o.growth_factor, o.max_scale));
  }
}

// After the update: counters, and the scales of the losses in `moving` (bit i for loss i). The flags stay until the
// next backward, so that a second optimizer of the same losses skips, too.
HT_HD inline void settle(StepRecord& r, ScalerState* states, int count, bool scaled, uint64_t moving,
                         const ScalerOptions& o) {
  if (scaled && r.bad_gradient) {
    states[0].bad_gradient = 1;
    states[0].first_bad = r.first_bad;
  }
  if (r.skip) {
    ++r.skips;
    ++r.consecutive_skips;
    r.last_bad = r.first_bad;
    r.last_bad_loss = 0;
    for (int i = 0; i < count; ++i) {
      if (states[i].bad_gradient || states[i].bad_loss) r.last_scale = states[i].used_scale;
      if (states[i].first_bad > r.last_bad) r.last_bad = states[i].first_bad;
      if (states[i].bad_loss) r.last_bad_loss = 1;
    }
  } else {
    r.consecutive_skips = 0;
  }
  for (int i = 0; i < count; ++i)
    if (moving >> i & 1) move_scale(states[i], o);
  r.bad_gradient = 0;
  r.first_bad = -1;
}

// A gradient as an update uses it: unscaled, then clipped.
template <class A>
struct GradTransform {
  A unscale = 1, clip = 1, limit = std::numeric_limits<A>::infinity();

  bool is_identity() const { return unscale == 1 && clip == 1 && limit == std::numeric_limits<A>::infinity(); }
  HT_HD A operator()(A g) const {
    g = g * unscale * clip;
    return g > limit ? limit : g < -limit ? -limit : g;  // NaN stays NaN
  }
};
template <class A>
HT_HD GradTransform<A> grad_transform(const StepRecord* r, double clip_value) {
  GradTransform<A> t;
  if (r) t.unscale = static_cast<A>(r->unscale), t.clip = static_cast<A>(r->clip);
  t.limit = static_cast<A>(clip_value);
  return t;
}

}  // namespace ht::optim
