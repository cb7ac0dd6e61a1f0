// The `halftone` tool: one program, a subcommand a task.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>

#include "core/safetensors.h"
#include "models/prediction.h"
#include "models/program.h"
#include "ops/registry.h"

namespace {

// The table that amp derives its lists from.
void print_ops() {
  const std::vector<const ht::OpInfo*> ops = ht::all_ops();
  size_t widest = 2;
  for (const ht::OpInfo* op : ops) widest = std::max(widest, op->name.size());
  std::printf("%-*s  %-7s  %s\n", static_cast<int>(widest), "op", "amp", "reason");
  for (const ht::OpInfo* op : ops)
    std::printf("%-*s  %-7s  %s\n", static_cast<int>(widest), std::string(op->name).c_str(),
                std::string(name_of(op->tag)).c_str(), std::string(op->reason).c_str());
}

using ht::models::printable;

// What is in a safetensors file, in the order of its bytes, without reading the numbers.
void inspect(const std::string& path) {
  const ht::SafeTensors file(path);
  std::vector<const std::pair<const std::string, ht::SafeTensors::Entry>*> order;
  size_t name_width = 4, shape_width = 5;
  int64_t elements = 0;
  for (const auto& item : file.entries()) {
    order.push_back(&item);
    name_width = std::max(name_width, item.first.size());
    shape_width = std::max(shape_width, ht::str(item.second.spec.shape).size());
    elements += item.second.spec.shape.numel();
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return a->second.begin < b->second.begin; });
  const auto width = [](size_t n) { return static_cast<int>(n); };
  std::printf("%s: %zu tensors, %lld elements, %zu bytes\n\n", path.c_str(), order.size(),
              static_cast<long long>(elements), file.file_bytes());
  std::printf("%-*s  dtype  %-*s  %10s\n", width(name_width), "name", width(shape_width), "shape", "bytes");
  for (const auto* item : order) {
    const auto& [spec, begin, end] = item->second;
    std::printf("%-*s  %-5s  %-*s  %10zu\n", width(name_width), printable(item->first).c_str(),
                std::string(name_of(spec.dtype)).c_str(), width(shape_width), ht::str(spec.shape).c_str(), end - begin);
  }
  if (!file.metadata().empty()) std::printf("\nmetadata\n");
  for (const auto& [key, text] : file.metadata())
    std::printf("  %s: %s\n", printable(key).c_str(), printable(text).c_str());
}

int run(int argc, const char* const* argv) {
  CLI::App app("Halftone's tools", "halftone");
  app.set_version_flag("--version", ht::models::version_text());
  app.require_subcommand(1);
  app.add_subcommand("ops", "list every op with its amp tag and the reason")->callback(print_ops);
  std::string path;
  CLI::App* inspector = app.add_subcommand("inspect", "print what is in a safetensors file: a checkpoint, or weights");
  inspector->add_option("FILE", path)->required();
  inspector->callback([&] { inspect(path); });
  ht::models::PredictOptions predict;
  CLI::App* predictor = app.add_subcommand("predict", "classify images with a trained network");
  ht::models::add_predict_options(*predictor, predict);
  predictor->callback([&] { ht::models::predict(predict); });
  return ht::models::parse(app, argc, argv).value_or(0);
}

}  // namespace

int main(int argc, char** argv) {
  return ht::models::run_program("halftone", [&] { return run(argc, argv); });
}
