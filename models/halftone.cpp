// The `halftone` tool: one program, a subcommand a task.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

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

int run(int argc, const char* const* argv) {
  CLI::App app("Halftone's tools", "halftone");
  app.set_version_flag("--version", ht::models::version_text());
  app.require_subcommand(1);
  app.add_subcommand("ops", "list every op with its amp tag and the reason")->callback(print_ops);
  return ht::models::parse(app, argc, argv).value_or(0);
}

}  // namespace

int main(int argc, char** argv) {
  return ht::models::run_program("halftone", [&] { return run(argc, argv); });
}
