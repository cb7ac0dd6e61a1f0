// What predictions look like to a person: tables, JSON lines, a drawing of the worst mistakes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "data/pictures.h"

namespace ht::models {

struct Predictions {
  Tensor probabilities;     // f32 [n, classes] on the CPU
  data::Pictures pictures;  // with a name for each class

  int64_t size() const { return probabilities.dim(0); }
  int64_t classes() const { return probabilities.dim(1); }
  float probability(int64_t image, int64_t c) const { return probabilities.data<float>()[image * classes() + c]; }
  int64_t label(int64_t image) const { return pictures.set.labels.data<int32_t>()[image]; }
  const std::string& class_name(int64_t c) const { return pictures.set.class_names[static_cast<size_t>(c)]; }
  // The n most probable classes, the best first, at most all; of equal ones the one with the lower number.
  std::vector<int64_t> top(int64_t image, int64_t n) const;
};

// How often images of class t, a row, were taken for class p, a column. [classes][classes]
using Confusion = std::vector<std::vector<int64_t>>;
Confusion confusion_of(const Predictions& p);

// A line an image with its `n` most probable classes.
std::string top_text(const Predictions& p, int64_t n);
// Accuracy, and a line a class: images, accuracy, and the confusion matrix.
std::string confusion_text(const Predictions& p);
// An object a line: {"type": "image", "image", "top": [{"class", "probability"}, ...]} and, when labelled, "label",
// "correct" and a last one {"type": "summary", "images", "accuracy", "classes", "class_accuracy", "confusion"}.
std::string json_lines(const Predictions& p, int64_t n);

// An SVG of at most `n` images that were taken for another class, the most probable mistake first. Throws Error in a
// build without libpng.
std::string mistakes_svg(const Predictions& p, int64_t n);

}  // namespace ht::models
