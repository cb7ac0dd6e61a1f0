#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "core/allocator.h"
#include "core/parallel.h"
#include "data/loader.h"
#include "tests/data_helpers.h"
#include "tests/error_of.h"

namespace ht::data {

namespace {
const Normalization kBytes{.mean = {0, 0, 0}, .std = {1.0f / 255, 1.0f / 255, 1.0f / 255}};

// Which images of a numbered_set a batch holds.
std::vector<int> numbers(const Batch& batch) {
  std::vector<int> out;
  for (int64_t i = 0; i < batch.x.dim(0); ++i) out.push_back(static_cast<int>(batch.x.at(i * 48) + 0.5));
  return out;
}

// All numbers of a loop, in order; y is checked against the images.
std::vector<int> run(Loader& loader) {
  std::vector<int> all;
  for (auto [x, y] : loader) {
    const std::vector<int> part = numbers({x, y});
    REQUIRE(y.dtype() == DType::i32);
    REQUIRE(y.shape() == Shape{static_cast<int64_t>(part.size())});
    for (size_t i = 0; i < part.size(); ++i) CHECK(y.at(static_cast<int64_t>(i)) == 3 * part[i] % 10);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::vector<int> counting(int n) {
  std::vector<int> all;
  for (int i = 0; i < n; ++i) all.push_back(i);
  return all;
}

std::vector<int> sorted(std::vector<int> v) {
  std::sort(v.begin(), v.end());
  return v;
}
}  // namespace

TEST_CASE("Every image once an epoch, in another order each epoch") {
  Loader loader(numbered_set(23), {.batch_size = 5, .normalization = kBytes, .seed = 1});
  CHECK(loader.steps_per_epoch() == 5);
  std::set<std::vector<int>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    CHECK(loader.position() == LoaderPosition{epoch, 0});
    const std::vector<int> order = run(loader);
    CHECK(sorted(order) == counting(23));
    CHECK(order != counting(23));
    orders.insert(order);
  }
  CHECK(orders.size() == 4);
  loader.set_epoch(0);  // the same epoch gives the same order
  CHECK(orders.count(run(loader)) == 1);
  Loader other(numbered_set(23), {.batch_size = 5, .normalization = kBytes, .seed = 2});
  CHECK(orders.count(run(other)) == 0);
}

TEST_CASE("Batch shapes, the last batch, drop_last and no shuffle") {
  const auto sizes = [](Loader& loader) {
    std::vector<int64_t> out;
    for (auto [x, y] : loader) out.push_back(x.dim(0));
    return out;
  };
  Loader keep(numbered_set(10), {.batch_size = 4});
  CHECK(sizes(keep) == std::vector<int64_t>{4, 4, 2});
  Loader drop(numbered_set(10), {.batch_size = 4, .drop_last = true});
  CHECK(sizes(drop) == std::vector<int64_t>{4, 4});
  Loader even(numbered_set(8), {.batch_size = 4, .drop_last = true});
  CHECK(sizes(even) == std::vector<int64_t>{4, 4});
  Loader large(numbered_set(8), {.batch_size = 100});
  CHECK(sizes(large) == std::vector<int64_t>{8});
  Loader plain(numbered_set(10), {.batch_size = 4, .shuffle = false, .normalization = kBytes});
  CHECK(run(plain) == counting(10));
  CHECK(run(plain) == counting(10));
  Loader half(random_set(6), {.batch_size = 6, .dtype = DType::bf16});
  for (auto [x, y] : half) {
    CHECK(x.shape() == Shape{6, 32, 32, 3});
    CHECK(x.dtype() == DType::bf16);
  }
}

TEST_CASE("Prefetch and thread count change nothing") {
  const ImageDataset set = random_set(50);
  std::vector<Tensor> want;
  for (const int prefetch : {0, 1, 2, 7})
    for (const int threads : {1, 2}) {
      const int before = num_threads();
      set_num_threads(threads);
      Loader loader(set, {.batch_size = 20, .augment = {Flip::random, 4, 8}, .seed = 4, .prefetch = prefetch});
      std::vector<Tensor> got;
      for (int epoch = 0; epoch < 2; ++epoch)
        for (auto [x, y] : loader) got.push_back(x), got.push_back(y);
      set_num_threads(before);
      if (want.empty()) want = got;
      REQUIRE(got.size() == 12);
      for (size_t i = 0; i < got.size(); ++i) CHECK(same_bytes(got[i], want[i]));
    }
}

TEST_CASE("Augmentation follows the epoch") {
  Loader loader(random_set(4), {.batch_size = 4, .shuffle = false, .augment = {Flip::none, 4, 0}});
  std::vector<Tensor> epochs;
  for (int epoch = 0; epoch < 2; ++epoch)
    for (auto [x, y] : loader) epochs.push_back(x);
  CHECK(!same_bytes(epochs[0], epochs[1]));
}

TEST_CASE("Ranks share one permutation: disjoint, complete, and together the large batch") {
  for (const int world : {2, 3, 4})
    for (const bool drop_last : {false, true}) {
      Loader whole(numbered_set(50),
                   {.batch_size = 3 * world, .drop_last = drop_last, .normalization = kBytes, .seed = 6});
      std::vector<std::vector<int>> batches;
      for (auto [x, y] : whole) batches.push_back(numbers({x, y}));
      std::vector<std::vector<int>> joined(batches.size());
      for (int rank = 0; rank < world; ++rank) {
        Loader part(numbered_set(50), {.batch_size = 3,
                                       .drop_last = drop_last,
                                       .normalization = kBytes,
                                       .seed = 6,
                                       .rank = rank,
                                       .world = world});
        REQUIRE(part.steps_per_epoch() == whole.steps_per_epoch());
        size_t step = 0;
        for (auto [x, y] : part) {
          const std::vector<int> mine = numbers({x, y});
          if (step + 1 < batches.size() || drop_last) CHECK(mine.size() == 3);
          joined[step].insert(joined[step].end(), mine.begin(), mine.end());
          ++step;
        }
        CHECK(step == batches.size());
      }
      CHECK(joined == batches);
    }
}

TEST_CASE("Fewer images left than ranks: some last batches are empty") {
  std::vector<int> all;
  for (int rank = 0; rank < 4; ++rank) {
    Loader loader(numbered_set(9), {.batch_size = 2, .normalization = kBytes, .rank = rank, .world = 4});
    const std::vector<int> mine = run(loader);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  CHECK(sorted(all) == counting(9));
}

TEST_CASE("Break stops cleanly; the next loop goes on, and a saved position returns") {
  for (const int prefetch : {0, 2}) {
    const LoaderOptions options{.batch_size = 4, .normalization = kBytes, .seed = 3, .prefetch = prefetch};
    Loader straight(numbered_set(22), options);
    std::vector<int> want = run(straight);
    const std::vector<int> second = run(straight);
    want.insert(want.end(), second.begin(), second.end());

    Loader loader(numbered_set(22), options);
    std::vector<int> got;
    LoaderPosition saved;
    for (const Batch& batch : loader) {
      const std::vector<int> part = numbers(batch);
      got.insert(got.end(), part.begin(), part.end());
      if (got.size() == 8) {
        saved = loader.position();
        break;
      }
    }
    CHECK(saved == LoaderPosition{0, 2});
    CHECK(loader.position() == saved);
    for (int loop = 0; loop < 2; ++loop) {
      const std::vector<int> part = run(loader);
      got.insert(got.end(), part.begin(), part.end());
    }
    CHECK(got == want);

    Loader resumed(numbered_set(22), options);
    resumed.seek(saved);
    CHECK(run(resumed) == std::vector<int>(want.begin() + 8, want.begin() + 22));
    CHECK(resumed.position() == LoaderPosition{1, 0});
    for (auto [x, y] : resumed) break;
    CHECK(resumed.position() == LoaderPosition{1, 1});
  }
}

TEST_CASE("next() delivers the loop's batches, over the ends of epochs, from wherever the loader stands") {
  const LoaderOptions options{.batch_size = 4, .normalization = kBytes, .seed = 3};
  Loader loop(numbered_set(10), options), single(numbered_set(10), options);
  std::vector<int> want = run(loop), got;
  const std::vector<int> second = run(loop);
  want.insert(want.end(), second.begin(), second.end());
  for (int i = 0; i < 6; ++i) {
    const std::vector<int> part = numbers(single.next());
    got.insert(got.end(), part.begin(), part.end());
  }
  CHECK(got == want);
  CHECK(single.position() == LoaderPosition{2, 0});
  single.seek({0, 1});
  CHECK(numbers(single.next()) == std::vector<int>(want.begin() + 4, want.begin() + 8));
  CHECK(run(single) == std::vector<int>(want.begin() + 8, want.begin() + 10));  // a loop goes on where next() was
  for (auto [x, y] : single) {
    CHECK(error_of([&] { single.next(); }).find("next() while a loop over this loader runs") != std::string::npos);
    break;
  }
}

TEST_CASE("During the last batch the position is the next epoch's first") {
  Loader loader(numbered_set(6), {.batch_size = 4});
  std::vector<int64_t> steps;
  for (auto [x, y] : loader) steps.push_back(loader.position().epoch * 100 + loader.position().step);
  CHECK(steps == std::vector<int64_t>{1, 100});
}

TEST_CASE("A loader dropped or moved in mid-loop, and one never run") {
  for (int i = 0; i < 20; ++i) {
    Loader unused(random_set(8), {.batch_size = 1});
    auto loader = std::make_unique<Loader>(random_set(64), LoaderOptions{.batch_size = 1, .prefetch = 3});
    auto it = loader->begin();
    Loader moved = std::move(*loader);
    loader.reset();
    ++it;
    CHECK(moved.position() == LoaderPosition{0, 2});
  }
}

TEST_CASE("One loop at a time, and no seeking inside it") {
  Loader loader(numbered_set(6), {.batch_size = 2});
  for (auto [x, y] : loader) {
    CHECK(contains(error_of([&] { loader.begin(); }), "a loop over this loader is already running"));
    CHECK(contains(error_of([&] { loader.set_epoch(3); }), "cannot change while a loop runs"));
  }
  try {
    for (auto [x, y] : loader) fail("body");
  } catch (const Error&) {
  }
  CHECK(loader.position() == LoaderPosition{1, 1});
  CHECK_NOTHROW(loader.set_epoch(0));
  CHECK(contains(error_of([&] {
                   loader.seek({0, 3});
                 }),
                 "(epoch 0, step 3) does not exist; epochs count from 0 and have 3"));
  CHECK(contains(error_of([&] { loader.seek({-1, 0}); }), "epoch -1"));
  CHECK_NOTHROW(loader.seek({7, 2}));
}

TEST_CASE("An error in the thread reaches the loop, after the batches made before it") {
  for (const int prefetch : {0, 2}) {
    // Each batch of 64 images takes 786 kB; memory ends while the loop keeps all of them.
    Loader loader(random_set(64 * 40), {.batch_size = 64, .shuffle = false, .prefetch = prefetch});
    empty_cache();
    set_memory_limit(memory_stats().reserved + (size_t{12} << 20));
    std::vector<Batch> kept;
    const std::string text = error_of([&] {
      for (const Batch& batch : loader) kept.push_back(batch);
    });
    set_memory_limit(0);
    CHECK(contains(text, "out of memory"));
    CHECK(kept.size() >= 1);
    CHECK(kept.size() < 40);
    CHECK(loader.position() == LoaderPosition{0, static_cast<int64_t>(kept.size())});
    kept.clear();
    int64_t rest = 0;
    const int64_t from = loader.position().step;
    for (auto [x, y] : loader) ++rest;  // goes on where it failed
    CHECK(from + rest == 40);
  }
}

TEST_CASE("Bad options are named") {
  const auto error = [](int64_t n, const LoaderOptions& options) {
    return error_of([&] { Loader(numbered_set(n), options); });
  };
  CHECK(contains(error(0, {}), "the data set is empty (source: 'random')"));
  CHECK(contains(error_of([] { Loader(ImageDataset{}, {}); }), "the data set is empty"));
  CHECK(contains(error(5, {.batch_size = 0}), "batch size 0; use 1 or more"));
  CHECK(contains(error(5, {.batch_size = -3}), "batch size -3"));
  CHECK(contains(error(5, {.batch_size = 6, .drop_last = true}),
                 "a batch of 6 x 1 rank(s) is larger than the set of 5 images, and drop_last leaves no batch"));
  CHECK(contains(error(5, {.batch_size = 3, .drop_last = true, .world = 2}), "a batch of 3 x 2 rank(s)"));
  CHECK(error(5, {.batch_size = 5, .drop_last = true}) == "no error");
  CHECK(contains(error(5, {.batch_size = INT64_MAX, .world = 2}), "too large"));
  CHECK(error(5, {.batch_size = INT64_MAX}) == "no error");
  CHECK(contains(error(5, {.rank = 2, .world = 2}), "rank 2 is outside a world of 2"));
  CHECK(contains(error(5, {.world = 0}), "a world of 0"));
  CHECK(contains(error(5, {.prefetch = -1}), "prefetch -1"));
  CHECK(contains(error(5, {.augment = {.crop_pad = 4}}), "loader: crop_pad 4 is outside [0, 4) for images of 4x4"));
  CHECK(contains(error(5, {.dtype = DType::i32}), "i32 is not floating"));
  CHECK(contains(error(5, {.normalization = {.std = {0, 1, 1}}}), "std 0 of channel 0"));
}

}  // namespace ht::data
