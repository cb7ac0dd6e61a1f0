// Learning rate schedules: pure functions of the number of applied steps. An optimizer multiplies each group's learning
// rate with them and samples them into a table, so that a step on a device needs no word from the host.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ht::optim {

// The factor of the learning rate at each step; defined for every step >= 0, so also past the end of the training.
struct Schedule {
  std::string text;  // as parse_schedule reads it
  std::function<double(int64_t step)> factor;
};

// All throw Error on a count below 1 or a number that is negative or not finite.
Schedule constant_lr();
// gamma^floor(step / size) (PyTorch's StepLR).
Schedule step_lr(int64_t size, double gamma = 0.1);
// gamma^(milestones reached); the milestones must increase (MultiStepLR).
Schedule multi_step_lr(std::vector<int64_t> milestones, double gamma = 0.1);
// Half a cosine from 1 at step 0 to min_factor at total_steps, and that from then on (CosineAnnealingLR up to T_max).
Schedule cosine_lr(int64_t total_steps, double min_factor = 0);
// Smith's 1cycle, both halves cosine: 1 / div at step 0, 1 at pct_start * total_steps - 1, 1 / (div * final_div) at
// total_steps - 1 (OneCycleLR, whose max_lr is the group's lr here).
Schedule one_cycle_lr(int64_t total_steps, double pct_start = 0.3, double div = 25, double final_div = 1e4);
// Straight from `start` at step 0 to 1 at peak * total_steps, then straight to `end` at total_steps.
Schedule triangular_lr(int64_t total_steps, double peak = 0.2, double start = 0, double end = 0.01);
// Multiplies the first `steps` steps of `inner` by (step + 1) / steps; inner's milestones stay where they are.
Schedule warmup(int64_t steps, Schedule inner = constant_lr());

// Reads a schedule from the command line; total_steps is the length of the training.
//   constant | step:SIZE[:GAMMA] | multistep:AT,AT,...[:GAMMA] | cosine[:MIN] | onecycle[:PCT_START[:DIV[:FINAL_DIV]]]
//   triangular[:PEAK[:START[:END]]] | warmup:STEPS[+one of the others]
// Counts are steps; with an e ("step:30e", "warmup:5e+cosine") they are epochs of steps_per_epoch. Throws Error that
// quotes the text and what is wrong.
Schedule parse_schedule(std::string_view text, int64_t total_steps, int64_t steps_per_epoch = 0);

}  // namespace ht::optim
