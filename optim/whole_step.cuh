// A step in one launch: the update's blocks also inspect the gradients before it, agree on the verdict by meeting in
// global memory, and count and settle after it. For so few blocks that all of them run at once.
#pragma once

#include "optim/multi_tensor.cuh"

namespace ht::optim {

// What the threads of a block know of the step: in shared memory.
struct StepView {
  StepRecord record;  // as it will be, before it is settled
  ScalerState state;  // likewise
  double lr;
  int64_t applied;            // steps so far
  int64_t steps[kTableSize];  // updates of each parameter so far
  int32_t now;                // the place of the meeting
  int32_t bad;                // the block's largest parameter with a bad gradient, + 1
};

__device__ inline StepView& step_view() {
  __shared__ alignas(StepView) unsigned char bytes[sizeof(StepView)];
  return *reinterpret_cast<StepView*>(bytes);
}

// At most `blocks`, and no more than run at once: they wait for each other.
template <class... P>
unsigned at_once(const CudaContext& cuda, void (*kernel)(P...), unsigned blocks) {
  int an_sm = 0;
  HT_CUDA_CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&an_sm, kernel, kBlock, 0));
  return std::min(blocks, static_cast<unsigned>(an_sm * cuda.sm_count));
}

// Waits until all blocks have arrived at a place and gives what they brought, which lies in the same 8 bytes: nothing
// else of theirs is read, so that no fence is needed. One thread.
__device__ inline int32_t wait_for_blocks(const Meeting::Place& place) {
  unsigned long long both;
  do {
    both = *reinterpret_cast<const volatile unsigned long long*>(&place);
  } while (static_cast<uint32_t>(both) < gridDim.x);
  return static_cast<int32_t>(both >> 32);
}

// Sends for elements [begin, end) of a tensor of T, four a thread, so that they are in the L1 cache when they are read.
template <class T>
__device__ __forceinline__ void send_for(const void* tensor, int64_t begin, int64_t end) {
  const int64_t i = begin + int64_t{threadIdx.x} * 4;
  if (tensor && i < end)
    asm volatile("{\n .reg .b32 unused;\n ld.global.u8 unused, [%0];\n}" ::"l"(static_cast<const T*>(tensor) + i));
}

// Called by all threads before the update of parameters of type P. What the step will write is read here alone, into
// shared memory, before the block arrives: no other block writes it earlier.
template <class P>
__device__ void meet(const TensorTable& table, const WholeStep& w, const double* rates, int64_t rate_count,
                     StepView& s) {
  constexpr int kClerk = kBlock - 1;  // where a chunk of halves gives least to do
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < table.count) s.steps[thread] = *table.step[thread];
  if (thread == kClerk) {
    s.now = w.meeting->now;
    s.applied = *w.applied;
    s.lr = rate_now(rates, rate_count, w.applied);
    s.bad = 0;
    if (w.record) {  // all of the verdict but the gradients' part
      s.record = *w.record;
      s.state = *w.state;
      if (w.loss)
        with_floating_type(w.loss_dtype, [&]<class T>() {
          begin_backward(&s.state, 1, 0, w.first, finite_bits(*static_cast<const T*>(w.loss)));
        });
      judge(s.record, &s.state, 1, w.scaled, 0, std::numeric_limits<double>::infinity());
    }
  }
  int32_t bad = 0;
  for_chunks_back(table, [&](int t, int64_t begin, int64_t end) {
    send_for<P>(table.at[t][0], begin, end);
    send_for<acc_t<P>>(table.at[t][2], begin, end);
    send_for<acc_t<P>>(table.at[t][3], begin, end);
    if (!w.record)
      with_floating_type(table.grad[t], [&]<class G>() { send_for<G>(table.at[t][1], begin, end); });
    else
      for_gradient<1>(table, t, begin, end, [&](auto g) {
        if (!finite_bits(g)) bad = max(bad, table.index[t] + 1);
      });
  });
  if (w.record) {
    __syncthreads();
    if (bad) atomicMax(&s.bad, bad);
  }
  __syncthreads();
  if (thread == kClerk) {
    Meeting::Place& place = w.meeting->place[s.now];
    if (w.record && s.bad) {
      atomicMax(&place.bad, s.bad);
      __threadfence();
    }
    atomicAdd(&place.arrived, 1u);
    if (w.record) {
      const int32_t bad = wait_for_blocks(place);
      if (bad) s.record.bad_gradient = s.record.skip = 1, s.record.first_bad = bad - 1;
    }
  }
  if (w.record) __syncthreads();  // else nobody waits for the others
}

// Called by all threads after the update: the first block writes what the step leaves.
__device__ inline void settle_together(const TensorTable& table, const WholeStep& w, const StepView& s) {
  if (blockIdx.x != 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0 && !w.record) wait_for_blocks(w.meeting->place[s.now]);  // else it has
  __syncthreads();
  const bool skip = w.record && s.record.skip;
  if (!skip && thread < table.count) *table.step[thread] = s.steps[thread] + 1;
  if (thread != 0) return;
  if (!skip) *w.applied = s.applied + 1;
  if (w.record) {
    StepRecord record = s.record;
    ScalerState state = s.state;
    settle(record, &state, 1, w.scaled, w.moving, w.options);
    *w.record = record;
    *w.state = state;
    if (w.seed) *w.seed = state.scale;
  }
  w.meeting->place[1 - s.now] = {};
  w.meeting->now = 1 - s.now;
}

}  // namespace ht::optim
