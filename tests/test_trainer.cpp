// The parts of the training program: options and their checks, evaluation, counting.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <set>

#include "data/synthetic.h"
#include "models/init.h"
#include "models/layers.h"
#include "models/sequential.h"
#include "models/trainer.h"
#include "models/vgg.h"

using namespace ht;
using models::TrainOptions;

namespace {
TrainOptions parsed(std::vector<const char*> args) {
  args.insert(args.begin(), "train_vgg16");
  TrainOptions options;
  const auto code = models::parse_options(static_cast<int>(args.size()), args.data(), options);
  REQUIRE(!code.has_value());
  return options;
}

int code_of(std::vector<const char*> args) {
  args.insert(args.begin(), "train_vgg16");
  TrainOptions options;
  return models::parse_options(static_cast<int>(args.size()), args.data(), options).value_or(-1);
}

// A linear classifier on images.
nn::Sequential classifier(int64_t classes) {
  nn::Sequential net;
  net.add<nn::Flatten>();
  net.add<nn::Linear>(32 * 32 * 3, classes);
  return net;
}
}  // namespace

TEST_CASE("flags: the usual names and their short forms") {
  const TrainOptions o = parsed({"--data",
                                 "d",
                                 "--epochs",
                                 "3",
                                 "--iterations",
                                 "7",
                                 "-b",
                                 "16",
                                 "--lr",
                                 "0.5",
                                 "--momentum",
                                 "0.8",
                                 "--wd",
                                 "0.25",
                                 "--no-nesterov",
                                 "--schedule",
                                 "step:10:0.5",
                                 "--label-smoothing",
                                 "0.1",
                                 "--seed",
                                 "42",
                                 "--device",
                                 "cpu",
                                 "--width",
                                 "0.5",
                                 "--limit",
                                 "100",
                                 "--eval",
                                 "2",
                                 "-e",
                                 "--log",
                                 "x.jsonl",
                                 "-q",
                                 "--threads",
                                 "1",
                                 "-p",
                                 "5",
                                 "--augment",
                                 "full",
                                 "--cutout",
                                 "4"});
  CHECK(o.data == "d");
  CHECK(o.epochs == 3);
  CHECK(o.iterations == 7);
  CHECK(o.batch_size == 16);
  CHECK(o.lr == 0.5);
  CHECK(o.momentum == 0.8);
  CHECK(o.weight_decay == 0.25);
  CHECK(!o.nesterov);
  CHECK(o.schedule == "step:10:0.5");
  CHECK(o.label_smoothing == 0.1);
  CHECK(o.seed == 42);
  CHECK(o.device == Device::cpu());
  CHECK(o.width == 0.5);
  CHECK(o.limit == 100);
  CHECK(o.eval_every == 2);
  CHECK(o.evaluate_only);
  CHECK(o.log == "x.jsonl");
  CHECK(o.quiet);
  CHECK(o.threads == 1);
  CHECK(o.print_freq == 5);
  CHECK(o.augment == models::Augment::full);
  CHECK(o.cutout == 4);
  CHECK(parsed({"--batch-size", "9", "--learning-rate", "0.1", "--weight-decay", "0"}).batch_size == 9);
  CHECK(parsed({"--augment", "none"}).augment == models::Augment::none);
}

TEST_CASE("flags: bad ones are refused with code 2") {
  for (const std::vector<const char*>& args :
       std::vector<std::vector<const char*>>{{"--unknown"},
                                             {"stray"},
                                             {"--lr"},
                                             {"--lr", "fast"},
                                             {"--lr", "-0.1"},
                                             {"--lr", "nan"},
                                             {"--lr", "inf"},
                                             {"--momentum", "1"},
                                             {"--momentum", "-0.5"},
                                             {"--weight-decay", "nan"},
                                             {"--label-smoothing", "1"},
                                             {"--label-smoothing", "nan"},
                                             {"--epochs", "0"},
                                             {"--epochs", "-3"},
                                             {"--epochs", "1.5"},
                                             {"--epochs", "99999999999999999999"},
                                             {"--iterations", "-1"},
                                             {"-b", "0"},
                                             {"--limit", "-5"},
                                             {"--threads", "-1"},
                                             {"--width", "0"},
                                             {"--width", "nan"},
                                             {"--width", "99"},
                                             {"--seed", "-1"},
                                             {"--device", "tpu"},
                                             {"--schedule", "sometimes"},
                                             {"--augment", "mixup"},
                                             {"--cutout", "-1"},
                                             {"--momentum", "0"},  // Nesterov is on
                                             {"-p", "0"},
                                             {"--eval", "-1"}})
    CHECK_MESSAGE(code_of(args) == 2, str(args[0], " ", args.size() > 1 ? args[1] : ""));
  CHECK(code_of({"--momentum", "0", "--no-nesterov"}) == -1);
}

TEST_CASE("validation names the flag, the value and the remedy") {
  TrainOptions o;
  o.lr = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_WITH(models::validate(o), "--lr: nan must be finite and not negative");
  o = {};
  o.batch_size = -4;
  CHECK_THROWS_WITH(models::validate(o), "--batch-size: -4 is too small; use 1 or more");
}

TEST_CASE("steps of a run") {
  TrainOptions o;
  o.epochs = 3;
  CHECK(models::total_steps(o, 10) == 30);
  o.iterations = 25;
  CHECK(models::total_steps(o, 10) == 25);
  o.iterations = 31;
  CHECK(models::total_steps(o, 10) == 30);
  CHECK(parsed({"--iterations", "5000"}).epochs == 5000);  // as many epochs as it takes
}

TEST_CASE("a batch larger than the set") {
  TrainOptions o;
  o.limit = 20;
  o.batch_size = 21;
  CHECK_THROWS_WITH(models::load_data(o), "--batch-size: 21 is larger than the training set of 20 images");
  o.data = "/nowhere";
  CHECK_THROWS_AS(models::load_data(o), Error);
}

TEST_CASE("a validation set is held out of the training set, by the seed") {
  TrainOptions o;
  o.batch_size = 10;
  o.limit = 100;
  o.val_size = 30;
  const models::DataSets sets = models::load_data(o), again = models::load_data(o);
  CHECK(sets.train.size() == 70);
  CHECK(sets.validation.size() == 30);
  CHECK(sets.validation.labels.to_vector() == again.validation.labels.to_vector());
  const auto image = [](const data::ImageDataset& set, int64_t i) { return set.images.rows(i, i + 1).to_vector(); };
  std::set<std::vector<double>> seen;
  for (int64_t i = 0; i < 70; ++i) seen.insert(image(sets.train, i));
  for (int64_t i = 0; i < 30; ++i) CHECK(!seen.contains(image(sets.validation, i)));
  o.seed = 1;
  CHECK(models::load_data(o).validation.labels.to_vector() != sets.validation.labels.to_vector());
  o.val_size = 100;
  CHECK_THROWS_WITH(models::load_data(o), "--val-size: 100 leaves none of the 100 training images to train on");
}

TEST_CASE("--no-decay-norm: parameters of rank 1 in a group that does not decay") {
  const nn::Sequential net = models::vgg16({.width = 0.05});
  const auto all = models::parameter_groups(net, parsed({"--wd", "0.25"}));
  REQUIRE(all.size() == 1);
  CHECK(all[0].params.size() == net.parameters().size());
  const auto groups = models::parameter_groups(net, parsed({"--wd", "0.25", "--lr", "2", "--no-decay-norm"}));
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].params.size() == 16);  // convolutions
  CHECK(groups[1].params.size() == 30);  // gamma and beta of 15 norms
  CHECK(groups[0].options.weight_decay == 0.25);
  CHECK(groups[1].options.weight_decay == 0);
  CHECK(groups[1].options.lr == 2);
  for (const Var& p : groups[1].params) CHECK(p.shape().rank() == 1);
}

TEST_CASE("--head-lr: a group of the last weight") {
  const nn::Sequential net = models::vgg16({.width = 0.05});
  const auto groups = models::parameter_groups(net, parsed({"--lr", "2", "--head-lr", "0.25"}));
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].params.size() == net.parameters().size() - 1);
  CHECK(groups[0].options.lr == 2);
  CHECK(groups[1].options.lr == 0.5);
  CHECK(groups[1].options.weight_decay == groups[0].options.weight_decay);
  REQUIRE(groups[1].params.size() == 1);
  CHECK(groups[1].params[0].state() == net.parameters().back().state());
  const auto three = models::parameter_groups(net, parsed({"--head-lr", "0.25", "--no-decay-norm"}));
  REQUIRE(three.size() == 3);
  CHECK(three[0].params.size() == 15);
  CHECK(three[1].params.size() == 30);
  CHECK(three[2].params[0].state() == net.parameters().back().state());
  CHECK(code_of({"--head-lr", "-1"}) == 2);
}

TEST_CASE("--flip: each image mirrored at random, or every other epoch") {
  CHECK(models::train_loader_options(parsed({"--augment", "flip"})).augment.flip == data::Flip::random);
  CHECK(models::train_loader_options(parsed({"--augment", "flip", "--flip", "alternating"})).augment.flip ==
        data::Flip::alternating);
  CHECK(models::train_loader_options(parsed({"--augment", "none", "--flip", "alternating"})).augment.flip ==
        data::Flip::none);
  CHECK(code_of({"--flip", "never"}) != 0);
}

TEST_CASE("--recipe sets what is not given by name") {
  const TrainOptions best = parsed({"--recipe", "best"});
  CHECK(best.epochs == 47);
  CHECK(best.batch_size == 256);
  CHECK(best.head_lr == 0.1);
  CHECK(best.alternate_flip);
  CHECK(best.lr == 0.1);
  CHECK(best.schedule == "triangular:0.2");
  CHECK(best.label_smoothing == 0.1);
  CHECK(best.augment == models::Augment::crop);
  CHECK(best.cutout == 12);
  CHECK(best.init == models::Init::dirac);
  CHECK(best.ema > 0.99);
  CHECK(best.nesterov);
  CHECK(!best.decay_norm);
  const TrainOptions changed = parsed({"--recipe", "fast", "--epochs", "3", "--lr", "0.5", "--cutout", "0", "--ema",
                                       "0", "--augment", "flip", "--init", "uniform", "--decay-norm"});
  CHECK(changed.epochs == 3);
  CHECK(changed.lr == 0.5);
  CHECK(changed.cutout == 0);
  CHECK(changed.ema == 0);
  CHECK(changed.augment == models::Augment::flip);
  CHECK(changed.init == models::Init::uniform);
  CHECK(changed.decay_norm);
  CHECK(changed.label_smoothing == 0.1);
  CHECK(code_of({"--recipe", "slow"}) == 2);
  CHECK(code_of({"--ema", "1"}) == 2);
  CHECK(code_of({"--ema-every", "0"}) == 2);
  CHECK(code_of({"--init", "zero"}) == 2);
}

TEST_CASE("kaiming_fan_out_: every weight but the last") {
  nn::Sequential net;
  net.add<nn::Conv2d>(16, 32, 3);
  net.add<nn::Linear>(32, 10);
  const auto before = net.state_dict();
  nn::kaiming_fan_out_(net);
  double squares = 0;
  for (const double v : net.parameters()[0].value().to_vector()) squares += v * v / (16 * 32 * 9);
  CHECK(squares == doctest::Approx(2.0 / (32 * 9)).epsilon(0.1));
  const auto after = net.state_dict();
  for (const char* same : {"0.bias", "1.weight", "1.bias"})
    CHECK(before.at(same).to_vector() == after.at(same).to_vector());
}

TEST_CASE("kaiming_dirac_: the kernels that have a channel of their own pass it on") {
  nn::Sequential net;
  net.add<nn::Conv2d>(3, 5, 3);
  net.add<nn::Linear>(6, 4);
  net.add<nn::Linear>(4, 2);
  const auto before = net.state_dict();
  manual_seed(1);
  nn::kaiming_fan_out_(net);
  const auto random = net.state_dict().at("0.weight").to_vector();
  manual_seed(1);
  nn::kaiming_dirac_(net);
  const auto conv = net.state_dict().at("0.weight").to_vector();  // [5, 3, 3, 3], as PyTorch has it
  for (int out = 0; out < 3; ++out)
    for (int at = 0; at < 27; ++at) CHECK(conv[static_cast<size_t>(out * 27 + at)] == (at == 9 * out + 4 ? 1 : 0));
  for (size_t i = 3 * 27; i < conv.size(); ++i) CHECK(conv[i] == random[i]);
  const auto linear = net.state_dict().at("1.weight").to_vector();  // [4, 6]
  for (size_t i = 0; i < linear.size(); ++i) CHECK(linear[i] == (i % 6 == i / 6 ? 1 : 0));
  CHECK(net.state_dict().at("2.weight").to_vector() == before.at("2.weight").to_vector());
}

TEST_CASE("evaluate_mirrored: the mean logits of an image and its mirror image") {
  const data::ImageDataset set = data::make_synthetic({.train = 1, .test = 50}).test;
  manual_seed(3);
  nn::Sequential net = classifier(10);
  const data::LoaderOptions options{.batch_size = 16, .shuffle = false};
  data::Loader loader(set, options), mirrored(set.mirrored(), options);
  double loss = 0, correct = 0;
  const no_grad guard;
  auto other = mirrored.begin();
  for (const auto& [x, y] : loader) {
    const Var logits = (net(x) + net((*other).x)) * 0.5;
    loss += cross_entropy(logits, y).item() * static_cast<double>(x.dim(0)) / 50;
    correct += static_cast<double>(models::count_correct(logits.value(), y));
    ++other;
  }
  const models::Evaluation e = models::evaluate_mirrored(net, loader);
  CHECK(e.images == 50);
  CHECK(e.loss == doctest::Approx(loss));
  CHECK(e.accuracy == doctest::Approx(correct / 50));
  CHECK(e.loss != doctest::Approx(models::evaluate(net, loader).loss));
}

TEST_CASE("correct rows: the largest logit at the label; NaN is never right") {
  const double nan = std::nan("");
  const Tensor logits = Tensor::from({1, 2, 0, 3, 2, 1, nan, nan, nan}, {3, 3});
  CHECK(models::count_correct(logits, Tensor::from({1, 1, 0}, {3}, DType::i32)) == 1);
  CHECK(models::count_correct(Tensor::empty({0, 3}), Tensor::empty({0}, DType::i32)) == 0);
}

TEST_CASE("evaluate: means over all images whatever the batches; restores the mode; records nothing") {
  const data::ImageDataset set = data::make_synthetic({.train = 1, .test = 50}).test;
  manual_seed(3);
  nn::Sequential net = classifier(10);
  data::LoaderOptions options;
  options.shuffle = false;
  options.batch_size = 16;  // 3 batches and a rest of 2
  data::Loader in_parts(set, options);
  options.batch_size = 50;
  data::Loader at_once(set, options);
  const models::Evaluation a = models::evaluate(net, in_parts), b = models::evaluate(net, at_once);
  CHECK(a.images == 50);
  CHECK(a.accuracy == b.accuracy);
  CHECK(a.loss == doctest::Approx(b.loss).epsilon(1e-5));
  CHECK(net.training());
  CHECK(!net.parameters()[0].grad().defined());
  net.eval();
  const models::Evaluation stopped = models::evaluate(net, in_parts, [] { return true; });
  CHECK(stopped.images == 16);
  CHECK(stopped.cut_short);
  CHECK(!a.cut_short);
  CHECK(!net.training());
}
