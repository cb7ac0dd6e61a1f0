// Runs the built programs as a person would: bad flags, bad data, Ctrl-C, the log, the same seed twice.
#include <doctest/doctest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/process.h"

using namespace ht;
using nlohmann::json;

namespace {
Result train(const Folder& folder, std::vector<std::string> args) {
  return Process(program("train_vgg16"), std::move(args), folder).wait();
}

// A run of a second or so.
std::vector<std::string> small(std::vector<std::string> more) {
  std::vector<std::string> args{"--device",     "cpu", "--width", "0.05", "-b", "8",
                                "--iterations", "6",   "--limit", "32",   "-p", "2"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::vector<json> read_log(const std::string& path) {
  std::ifstream in(path);
  std::vector<json> out;
  for (std::string line; std::getline(in, line);) out.push_back(json::parse(line));
  return out;
}
}  // namespace

TEST_CASE("--help and --version") {
  const Folder folder;
  Result r = train(folder, {"--version"});
  CHECK(r.code == 0);
  CHECK(contains(r.out, "halftone 0."));
  r = train(folder, {"--help"});
  CHECK(r.code == 0);
  for (const char* flag : {"--data", "--epochs", "--iterations", "--batch-size", "--lr", "--schedule", "--log",
                           "--quiet", "--tune", "--tf32", "--deterministic", "--eager", "--workspace-limit", "--amp",
                           "--loss-scale", "--policy", "--amp-report"})
    CHECK(contains(r.out, flag));
}

TEST_CASE("bad usage: code 2, the reason on stderr, nothing on stdout, no log") {
  const Folder folder;
  const std::string log = folder / "log.jsonl";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--frobnicate"}, "--frobnicate"},
      {{"--lr", "nan"}, "--lr: nan must be finite"},
      {{"--lr", "-1"}, "--lr: -1 must be"},
      {{"--batch-size", "0"}, "--batch-size: 0 is too small"},
      {{"--schedule", "bogus"}, "schedule"},
      {{"--device", "gpu"}, "device: 'gpu' is unknown"},
      {{"--tune", "slow"}, "tune: 'slow' is unknown; use off, fast or full"},
      {{"--tune", "full", "--deterministic"}, "--tune: full cannot go with --deterministic"},
      {{"--amp", "O4"}, "--amp: amp: the level 'O4' is unknown; use O0, O1"},
      {{"--amp", "O1", "--loss-scale", "big"}, "--loss-scale: amp: the loss scale 'big' is neither"},
      {{"--loss-scale", "8"}, "loss_scale contradicts level O0"},
      {{"--amp", "O1", "--policy", "/no/such.json"}, "amp policy: cannot read '/no/such.json'"},
      {{"--amp", "O2", "--policy", "x.json"}, "policy_file"},
      {{"--amp-report", "x.json"}, "--amp-report: --amp O0 casts nothing to report; add --amp O1"},
      {{"--workspace-limit", "-1"}, "--workspace-limit: -1 is too small"},
      {{"--workspace-limit", "9999999"}, "it is in MiB"}};
  for (auto [args, reason] : cases) {
    args.insert(args.end(), {"--log", log});
    const Result r = train(folder, args);
    CHECK(r.code == 2);
    CHECK(r.out == "");
    CHECK_MESSAGE(contains(r.err, reason), r.err);
    CHECK(!fs::exists(log));
  }
}

TEST_CASE("bad data, log and batch: code 1, the reason, nothing else") {
  const Folder folder;
  fs::create_directories(folder / "empty");
  const std::string log = folder / "log.jsonl";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--data", folder / "missing", "--log", log}, "missing"},
      {{"--data", folder / "empty", "--log", log}, "data_batch_1.bin"},
      {{"--log", folder / "no/such/folder/log.jsonl"}, "log: cannot write"},
      {{"--log", folder.path.string()}, "log: cannot write"},
      {{"--limit", "10", "-b", "11", "--log", log}, "--batch-size: 11 is larger than the training set of 10"}};
  for (auto [args, reason] : cases) {
    args.insert(args.end(), {"--device", "cpu", "--width", "0.05"});
    const Result r = train(folder, args);
    CHECK(r.code == 1);
    CHECK(r.out == "");
    CHECK_MESSAGE(contains(r.err, "train_vgg16: error: "), r.err);
    CHECK_MESSAGE(contains(r.err, reason), r.err);
    CHECK(!fs::exists(log));
  }
}

TEST_CASE("a run: first line, steps, epochs, summary; the log says the same") {
  const Folder folder;
  const std::string log = folder / "log.jsonl";
  const Result r = train(folder, small({"--log", log}));
  CHECK_MESSAGE(r.code == 0, r.err);
  CHECK(r.err == "");
  const std::string first = r.out.substr(0, r.out.find('\n'));
  for (const char* part : {"train_vgg16 0.", "cpu", "f32", "vgg16 width 0.05", "parameters", "32 training"})
    CHECK_MESSAGE(contains(first, part), first);
  CHECK(contains(r.out, "not CIFAR-10"));
  CHECK(contains(r.out, "epoch 2/2"));
  CHECK(contains(r.out, "finished: 6 steps"));
  CHECK(!contains(r.out, "\r"));  // no bar when stdout is a file

  const std::vector<json> lines = read_log(log);
  REQUIRE(lines.size() == 1 + 6 + 2 + 1);
  CHECK(lines[0]["type"] == "config");
  CHECK(lines[0]["generated"] == true);
  CHECK(lines[1]["step"] == 1);
  CHECK(lines[5]["type"] == "epoch");
  CHECK(lines[5]["test_accuracy"].is_number());
  CHECK(lines.back()["type"] == "summary");
  CHECK(lines.back()["status"] == "finished");
  CHECK(lines.back()["steps"] == 6);

  const Result quiet = train(folder, small({"--quiet"}));
  CHECK(!contains(quiet.out, "ETA"));
  CHECK(contains(quiet.out, "finished: 6 steps"));
  const Result average = train(folder, small({"--ema", "0.9", "--val-size", "8", "--log", log}));
  CHECK_MESSAGE(average.code == 0, average.err);
  const json summary = read_log(log).back();
  for (const char* field :
       {"validation_accuracy", "validation_ema_loss", "best_validation_accuracy", "test_accuracy", "test_ema_accuracy"})
    CHECK_MESSAGE(summary[field].is_number(), field);
  const Result only = train(folder, small({"--evaluate"}));
  CHECK(only.code == 0);
  CHECK(contains(only.out, "test accuracy"));
}

TEST_CASE("on the CPU the first line names the flags that do nothing there") {
  const Folder folder;
  const auto first_line = [&](std::vector<std::string> flags) {
    const Result r = train(folder, small(std::move(flags)));
    CHECK_MESSAGE(r.code == 0, r.err);
    CHECK(!contains(r.out, "plan: "));
    return r.out.substr(0, r.out.find('\n'));
  };
  CHECK(contains(first_line({"--tf32", "--tune", "full", "--workspace-limit", "64", "--eager"}),
                 "threads (no effect here: --tf32, --tune, --workspace-limit, --eager) | f32 |"));
  const std::string plain = first_line({"--deterministic"});
  CHECK(contains(plain, "threads, deterministic | f32 |"));
  CHECK(!contains(plain, "no effect"));
}

TEST_CASE("mixed precision: scale, skips and applied steps in the log, a report and its plot") {
  const Folder folder;
  const std::string log = folder / "log.jsonl", report = folder / "amp.json", policy = folder / "policy.json";
  std::ofstream(policy) << R"({"max_pool2d": "deny"})";
  const Result r = train(folder, small({"--amp", "O1", "--policy", policy, "--amp-report", report, "--log", log}));
  CHECK_MESSAGE(r.code == 0, r.err);
  CHECK(contains(r.out, "O1 f16, loss scale dynamic"));
  CHECK(contains(r.out, "steps applied"));
  const std::vector<json> lines = read_log(log);
  CHECK(lines[0]["amp"] == "O1");
  CHECK(lines[0]["dtype"] == "f16");
  CHECK(lines.back()["applied_steps"].get<int>() + lines.back()["skipped_steps"].get<int>() == 6);
  CHECK(lines[1]["loss_scale"].is_number());
  const json written = json::parse(read(report));
  CHECK(written["dtype"] == "f16");
  CHECK(written["casts"].size() > 13);
  CHECK(contains(read(report + ".svg"), "</svg>"));

  for (const char* level : {"O2", "O3", "fp16", "bf16"}) {
    const Result other = train(folder, small({"--amp", level, "--log", log}));
    CHECK_MESSAGE(other.code == 0, level, ": ", other.err);
    CHECK(contains(other.out, std::string(level) + (std::string(level) == "bf16" ? " bf16" : " f16")));
  }
  const Result fixed = train(folder, small({"--amp", "O1", "--loss-scale", "128", "--log", log}));
  CHECK(read_log(log).back()["loss_scale"] == 128);
  CHECK(contains(fixed.out, "loss scale 128"));
}

TEST_CASE("the same seed twice gives the same losses, another seed others") {
  const Folder folder;
  const auto losses = [&](const std::string& seed) {
    const std::string log = folder / "log.jsonl";
    CHECK(train(folder, small({"--seed", seed, "--augment", "full", "--eval", "0", "--log", log})).code == 0);
    std::vector<double> out;
    for (const json& line : read_log(log))
      if (line["type"] == "step") out.push_back(line["loss"]);
    return out;
  };
  const auto a = losses("5"), b = losses("5"), c = losses("6");
  CHECK(a.size() == 6);
  CHECK(a == b);
  CHECK(a != c);
}

TEST_CASE("Ctrl-C and SIGTERM end after the step with a summary and whole lines") {
  for (const int number : {SIGINT, SIGTERM}) {
    const Folder folder;
    const std::string log = folder / "log.jsonl";
    const Process run(program("train_vgg16"), small({"--iterations", "1000000", "--eval", "0", "--log", log}), folder);
    for (int i = 0; i < 600 && !contains(read(log), "\"step\":3"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    run.signal(number);
    const Result r = run.wait();
    CHECK(r.code == 128 + number);
    CHECK(contains(r.out, "stopped by"));
    const std::vector<json> lines = read_log(log);
    REQUIRE(lines.size() >= 4);
    CHECK(lines.back()["type"] == "summary");
    CHECK(lines.back()["status"] == "interrupted");
    CHECK(lines[lines.size() - 2]["type"] == "epoch");
  }
}

TEST_CASE("a run that a signal stops is saved, and --resume goes on from there to the end") {
  const Folder folder;
  const std::string log = folder / "log.jsonl", saved = folder / "saved";
  const auto args = [&](const std::string& n) {
    return small({"--iterations", n, "--schedule", "constant", "--eval", "0", "--log", log, "--save", saved,
                  "--save-every", "1000e", "--resume", saved});
  };
  fs::create_directories(saved);
  const Process run(program("train_vgg16"), args("1000000"), folder);
  for (int i = 0; i < 600 && !contains(read(log), "\"step\":3"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  run.signal(SIGTERM);
  CHECK(run.wait().code == 128 + SIGTERM);
  const int64_t steps = read_log(log).back()["steps"];
  const auto name = [](int64_t step) {
    std::string digits = std::to_string(step);
    return "step-" + digits.insert(0, 9 - digits.size(), '0') + ".safetensors";
  };
  REQUIRE(fs::exists(fs::path(saved) / name(steps)));

  const Result rest = train(folder, args(std::to_string(steps + 3)));
  CHECK_MESSAGE(rest.code == 0, rest.err);
  CHECK_MESSAGE(contains(rest.out, "after step " + std::to_string(steps)), rest.out);
  CHECK(fs::exists(fs::path(saved) / name(steps + 3)));
  const std::vector<json> lines = read_log(log);  // goes on in the same file
  CHECK(lines.front()["type"] == "config");
  CHECK(lines.back()["steps"] == steps + 3);
  CHECK(lines[lines.size() - 3]["step"] == steps + 3);
}

TEST_CASE("bad checkpoint flags") {
  const Folder folder;
  CHECK(contains(train(folder, small({"--keep", "3"})).err, "nothing is saved without --save"));
  CHECK(contains(train(folder, small({"--save", folder / "x", "--save-every", "often"})).err, "--save-every: 'often'"));
  const Result absent = train(folder, small({"--resume", folder / "absent"}));
  CHECK(absent.code == 1);
  CHECK_MESSAGE(contains(absent.err, "No such file"), absent.err);
}

TEST_CASE("--weights: a run begins with a file's weights") {
  const Folder folder;
  const std::string saved = folder / "saved", log = folder / "log.jsonl";
  CHECK(train(folder, small({"--save", saved, "--log", log})).code == 0);
  const json before = read_log(log).back();
  const std::string file = saved + "/step-000000006.safetensors";
  Result r = train(folder, small({"--weights", file, "--evaluate", "--seed", "9", "--log", log}));
  CHECK_MESSAGE(r.code == 0, r.err);
  const json after = read_log(log).back();
  CHECK(after["test_accuracy"] == before["test_accuracy"]);
  CHECK(after["test_loss"] == before["test_loss"]);
  r = train(folder, small({"--weights", file, "--width", "0.25"}));
  CHECK(r.code == 1);
  CHECK_MESSAGE(contains(r.err, "mismatched [features.0.weight"), r.err);
}

TEST_CASE("a learning rate beyond reason: the run says where it diverged") {
  const Folder folder;
  const Result r = train(folder, small({"--lr", "1e30", "--iterations", "50", "--schedule", "constant"}));
  CHECK(r.code == 1);
  CHECK_MESSAGE(contains(r.err, "training has diverged"), r.err);
}

TEST_CASE("halftone ops prints every op with its tag") {
  const Folder folder;
  Result r = Process(program("halftone"), {"ops"}, folder).wait();
  CHECK(r.code == 0);
  CHECK(contains(r.out, "conv2d"));
  CHECK(contains(r.out, "allow"));
  CHECK(contains(r.out, "exact in any type"));  // relu's reason
  CHECK(Process(program("halftone"), {"--version"}, folder).wait().code == 0);
  CHECK(Process(program("halftone"), {}, folder).wait().code == 2);
  r = Process(program("halftone"), {"frobnicate"}, folder).wait();
  CHECK(r.code == 2);
  CHECK(r.out == "");
}

TEST_CASE("halftone inspect prints names, dtypes, shapes, bytes and metadata") {
  const Folder folder;
  CHECK(train(folder, small({"--iterations", "1", "--eval", "0", "--save", folder / "saved"})).code == 0);
  const std::string path = folder / "saved/step-000000001.safetensors";
  Result r = Process(program("halftone"), {"inspect", path}, folder).wait();
  CHECK(r.code == 0);
  for (const char* part : {"tensors, ", "features.0.weight", "[8,3,3,3]", "       864", "num_batches_tracked", "i64",
                           "optimizer.applied_steps", "metadata", "format: pt", "halftone.state: {", "--batch-size"})
    CHECK_MESSAGE(contains(r.out, part), part, "\n", r.out);
  CHECK(Process(program("halftone"), {"inspect"}, folder).wait().code == 2);
  fs::resize_file(path, 100);
  r = Process(program("halftone"), {"inspect", path}, folder).wait();
  CHECK(r.code == 1);
  CHECK_MESSAGE(contains(r.err, "it is cut short"), r.err);
  CHECK(r.out == "");
}
