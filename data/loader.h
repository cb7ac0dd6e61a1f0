// Batches of a data set, shuffled, augmented and normalised, made by a thread ahead of the training loop:
//   data::Loader loader(train, {.batch_size = 128, .seed = 1});
//   for (int epoch = 0; epoch < 10; ++epoch)
//     for (auto [x, y] : loader) { ... }
#pragma once

#include <iterator>
#include <memory>

#include "data/augment.h"
#include "data/dataset.h"

namespace ht::data {

struct Batch {
  Tensor x;  // [n, h, w, 3] in LoaderOptions::dtype
  Tensor y;  // i32 [n]
};

struct LoaderOptions {
  int64_t batch_size = 128;  // of each rank
  bool shuffle = true;       // else in the data set's order
  bool drop_last = false;    // leave out the last, smaller batch of an epoch
  AugmentOptions augment{};
  Normalization normalization = Normalization::cifar10();
  DType dtype = DType::f32;
  uint64_t seed = 0;
  int prefetch = 2;  // batches made ahead by a thread; 0 makes each when asked for. The batches are the same.
  // Data parallel: all ranks share one permutation. Step s covers positions [s, s + 1) * batch_size * world of it, of
  // which each rank takes its own part: the union is the batch of one rank with batch size batch_size * world. Without
  // drop_last the ranks' last batches may differ by one image (and be empty when fewer images than ranks are left).
  int rank = 0;
  int world = 1;
  Device device = Device::cpu();  // where batches are delivered
};

// The next batch that a loader delivers. Save it in a checkpoint; seek() returns to it.
struct LoaderPosition {
  int64_t epoch = 0;
  int64_t step = 0;  // within the epoch
  friend bool operator==(LoaderPosition, LoaderPosition) = default;
};

// A cursor over an endless sequence of epochs. A range-for runs from the position to the end of that epoch; the next
// one goes on with the following epoch, or, after `break`, with the batch that comes next. Batches depend on the data
// set, the options and the position only. One loop at a time.
class Loader {
  struct State;

 public:
  // Throws Error on an empty or malformed data set, on options out of range, and when drop_last leaves no batch.
  explicit Loader(ImageDataset set, const LoaderOptions& options = {});
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  const ImageDataset& dataset() const;
  const LoaderOptions& options() const;
  int64_t steps_per_epoch() const;

  // What the next loop, or the running loop's next step, delivers. During the last batch of an epoch it already is
  // {epoch + 1, 0}.
  LoaderPosition position() const;
  // Both throw Error while a loop runs and on a position that does not exist.
  void seek(LoaderPosition position);
  void set_epoch(int64_t epoch) { seek({epoch, 0}); }

  // The next batch, over the ends of epochs. On CUDA it may be part of a captured step, each replay of which makes the
  // batch that is next then; all batches must be whole for that (drop_last, or a set of whole batches). On the CPU it
  // is made here and now. Throws Error while a loop runs.
  Batch next();

  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    Iterator(Iterator&&) noexcept;
    Iterator& operator=(Iterator&&) noexcept;
    ~Iterator();

    Batch operator*() const { return batch_; }
    Iterator& operator++();
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) { return it.loop_ == nullptr; }

   private:
    friend class Loader;
    struct Loop;  // ends the loop and joins its thread when destroyed
    explicit Iterator(std::shared_ptr<State> state);
    std::unique_ptr<Loop> loop_;  // null at the end of the epoch
    Batch batch_;
  };

  // Starts a loop. Throws Error when one is running already, and whatever making the first batch throws.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace ht::data
