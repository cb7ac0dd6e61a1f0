#include "optim/schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace ht::optim {

namespace {
constexpr std::string_view kForms =
    "constant, step:SIZE[:GAMMA], multistep:AT,AT[:GAMMA], cosine[:MIN], onecycle[:PCT_START[:DIV[:FINAL_DIV]]], "
    "triangular[:PEAK[:START[:END]]], or warmup:STEPS+ before one of them";

void check_count(std::string_view schedule, std::string_view field, int64_t value) {
  check(value >= 1, "schedule ", schedule, ": ", field, " is ", value, "; it must be at least 1");
}

void check_factor(std::string_view schedule, std::string_view field, double value) {
  check(std::isfinite(value) && value >= 0, "schedule ", schedule, ": ", field, " is ", value,
        "; it must be finite and at least 0");
}

void check_fraction(std::string_view schedule, std::string_view field, double value) {
  check(value > 0 && value < 1, "schedule ", schedule, ": ", field, " is ", value,
        "; it must lie between 0 and 1 (a fraction of the training)");
}

// From `a` to `b` along half a cosine, t in [0, 1].
double cosine_between(double a, double b, double t) { return b + (a - b) * 0.5 * (1 + std::cos(std::numbers::pi * t)); }

double line_between(double a, double b, double t) { return a + (b - a) * t; }
}  // namespace

Schedule constant_lr() {
  return {"constant", [](int64_t) { return 1.0; }};
}

Schedule step_lr(int64_t size, double gamma) {
  check_count("step", "size", size);
  check_factor("step", "gamma", gamma);
  return {str("step:", size, ":", gamma), [=](int64_t step) { return std::pow(gamma, double(step / size)); }};
}

Schedule multi_step_lr(std::vector<int64_t> milestones, double gamma) {
  check(!milestones.empty(), "schedule multistep: no milestones");
  check_factor("multistep", "gamma", gamma);
  std::string text = "multistep:";
  for (size_t i = 0; i < milestones.size(); ++i) {
    check_count("multistep", str("milestone ", i), milestones[i]);
    check(i == 0 || milestones[i - 1] < milestones[i], "schedule multistep: milestone ", i, " is ", milestones[i],
          ", not above ", i == 0 ? 0 : milestones[i - 1], " before it; they must increase");
    text += str(i ? "," : "", milestones[i]);
  }
  return {text + str(":", gamma), [milestones = std::move(milestones), gamma](int64_t step) {
            const auto reached = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
            return std::pow(gamma, double(reached));
          }};
}

Schedule cosine_lr(int64_t total_steps, double min_factor) {
  check_count("cosine", "total_steps", total_steps);
  check_factor("cosine", "min_factor", min_factor);
  return {str("cosine:", min_factor), [=](int64_t step) {
            return cosine_between(1, min_factor, double(std::min(step, total_steps)) / double(total_steps));
          }};
}

Schedule one_cycle_lr(int64_t total_steps, double pct_start, double div, double final_div) {
  check_count("onecycle", "total_steps", total_steps);
  check_fraction("onecycle", "pct_start", pct_start);
  check(std::isfinite(div) && div >= 1, "schedule onecycle: div is ", div, "; it must be finite and at least 1");
  check(std::isfinite(final_div) && final_div >= 1, "schedule onecycle: final_div is ", final_div,
        "; it must be finite and at least 1");
  const double peak = std::max(0.0, pct_start * double(total_steps) - 1), last = double(total_steps) - 1;
  return {str("onecycle:", pct_start, ":", div, ":", final_div), [=](int64_t step) {
            const double t = std::min(double(step), last), low = 1 / div;
            if (t < peak) return cosine_between(low, 1, t / peak);
            return cosine_between(1, low / final_div, last > peak ? (t - peak) / (last - peak) : 0);
          }};
}

Schedule triangular_lr(int64_t total_steps, double peak, double start, double end) {
  check_count("triangular", "total_steps", total_steps);
  check_fraction("triangular", "peak", peak);
  check_factor("triangular", "start", start);
  check_factor("triangular", "end", end);
  const double total = double(total_steps), top = peak * total;
  return {str("triangular:", peak, ":", start, ":", end), [=](int64_t step) {
            const double t = std::min(double(step), total);
            return t < top ? line_between(start, 1, t / top) : line_between(1, end, (t - top) / (total - top));
          }};
}

Schedule warmup(int64_t steps, Schedule inner) {
  check_count("warmup", "steps", steps);
  check(inner.factor != nullptr, "schedule warmup: the inner schedule has no factor");
  std::string text = str("warmup:", steps, "+", inner.text);
  return {std::move(text), [steps, factor = std::move(inner.factor)](int64_t step) {
            return factor(step) * (step < steps ? double(step + 1) / double(steps) : 1.0);
          }};
}

namespace {
std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(by, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == text.npos) return parts;
    begin = end + 1;
  }
}

// One term of the text, "step:30e:0.1", with readers that quote it when they fail.
struct Term {
  std::string_view whole;  // the user's text, for errors
  std::vector<std::string_view> words;
  int64_t steps_per_epoch;

  void expect(size_t least, size_t most) const {
    check(words.size() - 1 >= least && words.size() - 1 <= most, "schedule '", whole, "': ", words[0], " takes ", least,
          least == most ? "" : str(" to ", most), " values after it, given ", words.size() - 1, "; use ", kForms);
  }
  double number(size_t i, double fallback) const {
    if (i >= words.size()) return fallback;
    double value = 0;
    const char* end = words[i].data() + words[i].size();
    const auto [stop, error] = std::from_chars(words[i].data(), end, value);
    check(error == std::errc{} && stop == end, "schedule '", whole, "': '", words[i], "' is not a number");
    return value;
  }
  int64_t count(std::string_view word) const {
    int64_t value = 0;
    const char* end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, value);
    const bool epochs = error == std::errc{} && stop + 1 == end && *stop == 'e';
    check(error == std::errc{} && (stop == end || epochs), "schedule '", whole, "': '", word,
          "' is not a count of steps (500) or epochs (5e)");
    if (!epochs) return value;
    check(steps_per_epoch >= 1, "schedule '", whole, "': '", word, "' counts epochs, but steps_per_epoch is ",
          steps_per_epoch, "; give steps instead");
    check(std::abs(value) <= INT64_MAX / steps_per_epoch, "schedule '", whole, "': '", word, "' is too large");
    return value * steps_per_epoch;
  }
};

Schedule parse_term(const Term& term, int64_t total_steps) {
  const std::string_view kind = term.words[0];
  if (kind == "constant") {
    term.expect(0, 0);
    return constant_lr();
  }
  if (kind == "step") {
    term.expect(1, 2);
    return step_lr(term.count(term.words[1]), term.number(2, 0.1));
  }
  if (kind == "multistep") {
    term.expect(1, 2);
    std::vector<int64_t> milestones;
    for (const std::string_view word : split(term.words[1], ',')) milestones.push_back(term.count(word));
    return multi_step_lr(std::move(milestones), term.number(2, 0.1));
  }
  if (kind == "cosine") {
    term.expect(0, 1);
    return cosine_lr(total_steps, term.number(1, 0));
  }
  if (kind == "onecycle") {
    term.expect(0, 3);
    return one_cycle_lr(total_steps, term.number(1, 0.3), term.number(2, 25), term.number(3, 1e4));
  }
  if (kind == "triangular") {
    term.expect(0, 3);
    return triangular_lr(total_steps, term.number(1, 0.2), term.number(2, 0), term.number(3, 0.01));
  }
  if (kind == "warmup") {
    term.expect(1, 1);
    return warmup(term.count(term.words[1]));
  }
  fail("schedule '", term.whole, "': '", kind, "' is unknown; use ", kForms);
}
}  // namespace

Schedule parse_schedule(std::string_view text, int64_t total_steps, int64_t steps_per_epoch) {
  const std::vector<std::string_view> terms = split(text, '+');
  const auto term = [&](size_t i) { return Term{text, split(terms[i], ':'), steps_per_epoch}; };
  if (terms.size() == 1) return parse_term(term(0), total_steps);
  const Term first = term(0), second = term(1);
  check(terms.size() == 2 && first.words[0] == "warmup" && second.words[0] != "warmup", "schedule '", text,
        "': + joins a warmup and one other schedule, as in warmup:500+cosine");
  first.expect(1, 1);
  return warmup(first.count(first.words[1]), parse_term(second, total_steps));
}

}  // namespace ht::optim
