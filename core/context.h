// What an op needs besides its inputs: the device, its random numbers and, on CUDA, streams, library handles and
// workspace. One Context a thread and device.
#pragma once

#include <cstdint>
#include <memory>

#include "core/device.h"
#include "core/philox.h"

namespace ht {

struct CudaContext;  // core/cuda_context.h

// Hands out independent Philox streams: one per draw (a dropout mask, an initialisation).
class Generator {
 public:
  void manual_seed(uint64_t seed) { seed_ = seed, next_ = 0; }
  PhiloxStream next() { return {seed_, next_++}; }
  uint64_t seed() const { return seed_; }
  uint64_t position() const { return next_; }
  void set_position(uint64_t position) { next_ = position; }  // resume

 private:
  uint64_t seed_ = 0;
  uint64_t next_ = 0;
};

class Context {
 public:
  // This thread's context of a device. Throws Error for a CUDA device that is not there, or in a CPU-only build.
  static Context& of(Device device);

  Device device() const { return device_; }
  bool is_cuda() const { return device_.is_cuda(); }
  Generator& generator() { return generator_; }
  CudaContext& cuda();  // throws Error on a CPU context
  void join();          // on CUDA: what is queued from now on waits for parameter gradients that run beside
  void synchronize();   // waits for all work queued by this thread; nothing to do on the CPU

  explicit Context(Device device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

 private:
  Device device_;
  Generator generator_;
  std::shared_ptr<CudaContext> cuda_;
};

// Seeds the generators of all devices for this thread: initialisation, dropout.
void manual_seed(uint64_t seed);

// Same bits run to run on the same machine and thread count: no float atomics, deterministic plans, direct convolution.
void set_deterministic(bool on);
bool deterministic();

}  // namespace ht
