// VGG16's training step on the GPU, for the benchmarks. Bare: forward, loss, backward, SGD with momentum on a batch
// that lies there, as bench/pytorch_vgg16.py does it. Whole: also a new batch each time, made on the GPU of u8 images
// (flip, crop, cutout, normalised), Nesterov momentum, weight decay and a schedule.
#pragma once

#include <optional>
#include <string>

#include "bench/methods.h"
#include "core/captured_step.h"
#include "core/range.h"
#include "halftone.h"

namespace bench {

class Vgg16Step {
 public:
  Vgg16Step(const std::string& method, int64_t batch, bool whole, bool eager)
      : eager_(eager),
        model_(make_model(method)),
        sgd_(model_.parameters(), sgd_options(whole)),
        amp_(ht::amp::initialize(model_, sgd_, {.level = level_of(method)})),
        captured_(kDevice, [this](std::span<const ht::Tensor>) { work(); }) {
    if (whole) {
      sgd_.set_schedule(ht::optim::triangular_lr(10'000), 10'000);
      const int64_t images = std::max<int64_t>(10'000, 2 * batch);
      train_.emplace(
          ht::data::make_synthetic({.train = images, .test = 10}).train,
          ht::data::LoaderOptions{.batch_size = batch,
                                  .drop_last = true,
                                  .augment = {.flip = ht::data::Flip::random, .crop_pad = 4, .cutout = 8},
                                  .dtype = method == "fp32" || method == "tf32" ? ht::DType::f32 : dtype_of(method),
                                  .device = kDevice});
    } else {
      std::vector<int64_t> labels(static_cast<size_t>(batch));
      for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int64_t>(i * 7 % 10);
      batch_ = {ht::Tensor::normal({batch, 32, 32, 3}, {7, 1}).to(kDevice),
                ht::Tensor::of<int64_t>(labels, {batch}).to(kDevice)};
    }
  }

  void operator()() { eager_ ? work() : captured_({}); }

 private:
  static inline const ht::Device kDevice = ht::Device::cuda();
  static ht::nn::Sequential make_model(const std::string& method) {
    use_method(method);
    ht::manual_seed(7);
    ht::nn::Sequential model = ht::models::vgg16();
    model.to(kDevice);
    return model;
  }
  static ht::optim::SgdOptions sgd_options(bool whole) {
    if (!whole) return {.lr = 0.01, .momentum = 0.9};
    return {.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 5e-4};
  }
  ht::data::Batch next() {
    if (!train_) return batch_;
    const ht::Range range("data", "batch");
    return train_->next();
  }
  void work() {
    const ht::data::Batch batch = next();
    sgd_.zero_grad();
    amp_.backward(ht::cross_entropy(model_(batch.x), batch.y));
    sgd_.step();
  }

  bool eager_;
  ht::nn::Sequential model_;
  ht::optim::Sgd sgd_;
  ht::amp::Amp amp_;
  ht::CapturedStep captured_;
  std::optional<ht::data::Loader> train_;
  ht::data::Batch batch_;
};

}  // namespace bench
