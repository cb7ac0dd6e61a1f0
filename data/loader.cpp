#include "data/loader.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "core/build.h"
#include "core/captured_step.h"

namespace ht::data {

struct Loader::State {
  ImageDataset set;
  LoaderOptions options;
  Tensor table;  // [3, 256]
  int64_t steps = 0;
  LoaderPosition position;
  bool looping = false;
  Tensor images, labels;  // where batches are made: on the delivering device

  // The part of the permutation that is this rank's at a step: [begin, end).
  std::pair<int64_t, int64_t> part(LoaderPosition at) const {
    const int64_t global = options.batch_size * options.world, first = at.step * global;
    const int64_t n = std::min(global, set.size() - first);
    return {first + n * options.rank / options.world, first + n * (options.rank + 1) / options.world};
  }

  // On the device: an epoch's order, and where in it the next batch begins. Made when first asked for and never moved,
  // since captured steps read them. The host knows where the cursor stands.
  Tensor device_order, cursor;
  int64_t cursor_first = 0, cursor_epoch = 0;

  std::vector<int32_t> order{};  // of the epoch below
  int64_t order_epoch = -1;

  // Brings the order to the position's epoch; a loop's thread reads it, so not while one runs on the CPU.
  void bring_order() {
    if (order_epoch == position.epoch) return;
    if (options.shuffle) {
      order = permutation(set.size(), options.seed, static_cast<uint64_t>(position.epoch));
    } else if (order.empty()) {
      order.resize(static_cast<size_t>(set.size()));
      std::iota(order.begin(), order.end(), 0);
    }
    order_epoch = position.epoch;
  }

  int64_t stride() const { return options.batch_size * options.world; }
  bool in_place() const { return cursor && cursor_epoch == position.epoch && cursor_first == part(position).first; }
  void place_on_device() {
    bring_order();
    cursor_first = part(position).first, cursor_epoch = position.epoch;
    const int64_t now[kCursorSize] = {cursor_first, cursor_epoch, 0};
    const Tensor order_now = Tensor::of<int32_t>(order, {set.size()});
    const Tensor cursor_now = Tensor::of<int64_t>(now, {kCursorSize});
    if (cursor) return device_order.copy_(order_now), cursor.copy_(cursor_now);
    device_order = order_now.to(options.device), cursor = cursor_now.to(options.device);
  }

  // The batch of the position; the images never leave the device.
  Batch make_on_device() {
    check(in_place() || !is_recording(),
          "loader: a captured step's first batch must be made before the recording, by the same loader");
    if (!in_place()) place_on_device();
    const auto [begin, end] = part(position);
    Batch batch{Tensor::empty(images.shape().with(0, end - begin), options.dtype, options.device),
                Tensor::empty({end - begin}, DType::i32, options.device)};
    if constexpr (kCudaBuild)
      augment_cuda(images, labels, device_order, cursor, stride(), options.augment, table, options.seed, batch.x,
                   batch.y);
    return batch;
  }

  // After a batch was queued: the position of the next one. A replay cannot look at the end of an epoch, so the device
  // gets the next epoch's order as soon as it is due.
  void advance() {
    cursor_first += stride();
    if (++position.step < steps) return;
    position = {position.epoch + 1, 0};
    if (cursor) place_on_device();
  }

  Batch make(LoaderPosition at) const {
    const auto [begin, end] = part(at);
    const auto mine = std::span(order).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    Batch batch{augment(set.images, mine, options.augment, table, options.seed, static_cast<uint64_t>(at.epoch)),
                Tensor::empty({end - begin}, DType::i32)};
    const int32_t* labels = set.labels.data<int32_t>();
    int32_t* y = batch.y.data<int32_t>();
    for (const int32_t i : mine) *y++ = labels[i];
    return batch;
  }
};

// One run from the position to the end of its epoch.
struct Loader::Iterator::Loop {
  std::shared_ptr<State> state;
  LoaderPosition next;  // that the consumer gets

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Batch> ready;     // guarded by mutex, like the two below
  std::exception_ptr failure;  // of the batch after those in `ready`
  bool stop = false;
  std::thread worker;

  explicit Loop(std::shared_ptr<State> s) : state(std::move(s)), next(state->position) {
    if (!state->options.device.is_cuda()) {  // the device makes its batches itself
      state->bring_order();
      if (state->options.prefetch > 0) worker = std::thread([this] { work(); });
    }
    state->looping = true;
  }

  ~Loop() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    if (worker.joinable()) worker.join();
    state->looping = false;
  }

  void work() {
    for (LoaderPosition at = next; at.step < state->steps; ++at.step) {
      std::optional<Batch> batch;
      std::exception_ptr error;
      try {
        batch = state->make(at);
      } catch (...) {
        error = std::current_exception();
      }
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stop || ready.size() < static_cast<size_t>(state->options.prefetch); });
      if (stop) return;
      if (batch) ready.push_back(std::move(*batch));
      failure = error;
      changed.notify_all();
      if (error) return;
    }
  }

  Batch take() {
    if (state->options.device.is_cuda()) return state->make_on_device();
    if (!worker.joinable()) return state->make(next);
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !ready.empty() || failure; });
    if (ready.empty()) std::rethrow_exception(failure);
    Batch batch = std::move(ready.front());
    ready.pop_front();
    changed.notify_all();
    return batch;
  }

  // False at the end of the epoch.
  bool step(Batch& batch) {
    if (next.step == state->steps) return false;
    batch = {};
    batch = take();
    ++next.step;
    state->advance();
    return true;
  }
};

Loader::Iterator::Iterator(std::shared_ptr<State> state) : loop_(std::make_unique<Loop>(std::move(state))) { ++*this; }
Loader::Iterator::~Iterator() = default;
Loader::Iterator::Iterator(Iterator&&) noexcept = default;
Loader::Iterator& Loader::Iterator::operator=(Iterator&&) noexcept = default;

Loader::Iterator& Loader::Iterator::operator++() {
  check(loop_ != nullptr, "loader: ++ past the end of the epoch");
  if (!loop_->step(batch_)) {
    loop_.reset();
    batch_ = {};
  }
  return *this;
}

Loader::Loader(ImageDataset set, const LoaderOptions& options) {
  check(set.size() > 0, "loader: the data set is empty (source: '", set.source, "')");
  set.validate("loader");
  const int64_t n = set.size();
  check(options.batch_size >= 1, "loader: batch size ", options.batch_size, "; use 1 or more");
  check(options.world >= 1 && options.rank >= 0 && options.rank < options.world, "loader: rank ", options.rank,
        " is outside a world of ", options.world);
  check(options.prefetch >= 0, "loader: prefetch ", options.prefetch, "; use 0 or more");
  check(options.batch_size <= INT64_MAX / options.world, "loader: batch size ", options.batch_size, " x ",
        options.world, " ranks is too large");
  check_augment(options.augment, set.images.dim(1), set.images.dim(2), "loader");
  const int64_t global = options.batch_size * options.world;
  const int64_t steps = n / global + (!options.drop_last && n % global != 0);
  check(steps > 0, "loader: a batch of ", options.batch_size, " x ", options.world,
        " rank(s) is larger than the set of ", n,
        " images, and drop_last leaves no batch; lower the batch size or turn drop_last off");
  const Tensor table = normalization_table(options.normalization, options.dtype).to(options.device);
  const Tensor images = set.images.to(options.device), labels = set.labels.to(options.device);
  state_ = std::make_shared<State>(State{std::move(set), options, table, steps, {}, false, images, labels, {}, {}});
}

Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

const ImageDataset& Loader::dataset() const { return state_->set; }
const LoaderOptions& Loader::options() const { return state_->options; }
int64_t Loader::steps_per_epoch() const { return state_->steps; }
LoaderPosition Loader::position() const { return state_->position; }

void Loader::seek(LoaderPosition position) {
  check(!state_->looping, "loader: the position cannot change while a loop runs");
  check(position.epoch >= 0 && position.step >= 0 && position.step < state_->steps, "loader: position (epoch ",
        position.epoch, ", step ", position.step, ") does not exist; epochs count from 0 and have ", state_->steps,
        " steps");
  state_->position = position;
  if (state_->cursor && !state_->in_place()) state_->place_on_device();
}

Batch Loader::next() {
  State& s = *state_;
  check(!s.looping, "loader: next() while a loop over this loader runs; end the loop first");
  if (!s.options.device.is_cuda()) {
    s.bring_order();
    Batch batch = s.make(s.position);
    s.advance();
    return batch;
  }
  if (!is_recording()) {
    Batch batch = s.make_on_device();
    s.advance();
    return batch;
  }
  check(s.steps * s.stride() <= s.set.size(),
        "loader: the last batch of an epoch is smaller, which a captured step cannot repeat; set drop_last");
  on_replay([state = state_] { state->advance(); });
  return s.make_on_device();
}

Loader::Iterator Loader::begin() {
  check(!state_->looping, "loader: a loop over this loader is already running; end it first");
  return Iterator(state_);
}

}  // namespace ht::data
