// `predict`: the same as `halftone predict`, as a program.
#include <CLI/CLI.hpp>

#include "models/prediction.h"
#include "models/program.h"

int main(int argc, char** argv) {
  return ht::models::run_program("predict", [&] {
    CLI::App app("Classifies images with a trained network.", "predict");
    app.set_version_flag("--version", ht::models::version_text());
    ht::models::PredictOptions options;
    ht::models::add_predict_options(app, options);
    if (const auto exit_code = ht::models::parse(app, argc, argv)) return *exit_code;
    ht::models::predict(options);
    return 0;
  });
}
