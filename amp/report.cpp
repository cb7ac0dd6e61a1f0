#include "amp/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/replace_file.h"

namespace ht::amp {

namespace {
using nlohmann::json;

template <class F>
double share(const std::vector<GradientGauge>& gradients, F&& count) {
  int64_t some = 0, all = 0;
  for (const GradientGauge& g : gradients) {
    some += count(g);
    all += g.elements - g.zeros;
  }
  return all > 0 ? static_cast<double>(some) / static_cast<double>(all) : 0;
}

void write_file(const std::string& path, const std::string& text) {
  if (const auto failure = replace_file(path, text))
    fail("amp report: cannot write '", path, "': ", failure->cause, "; ", failure->remedy);
}

json number(double v) { return std::isfinite(v) ? json(v) : json(); }

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}
}  // namespace

double StepReport::least_headroom() const {
  double least = std::numeric_limits<double>::infinity();
  for (const GradientGauge& g : gradients) least = std::min(least, g.headroom);
  return least;
}
double StepReport::flushed_share() const {
  return share(gradients, [](const GradientGauge& g) { return g.flushed; });
}
double StepReport::subnormal_share() const {
  return share(gradients, [](const GradientGauge& g) { return g.subnormal; });
}
double StepReport::largest_output_error() const {
  double largest = 0;
  for (const OpError& e : errors) largest = std::max(largest, e.output);
  return largest;
}

void write_json(const StepReport& r, const std::string& path) {
  json casts = json::array(), gradients = json::array(), errors = json::array();
  for (const CastRecord& c : r.casts)
    casts.push_back({{"op", c.op},
                     {"input", c.input},
                     {"parameter", c.name},
                     {"from", name_of(c.from)},
                     {"to", name_of(c.to)},
                     {"list", name_of(c.rule.tag)},
                     {"reason", c.rule.reason},
                     {"bytes", c.bytes},
                     {"cached", c.cached},
                     {"in_op", c.in_op}});
  for (const GradientGauge& g : r.gradients)
    gradients.push_back({{"parameter", g.name},
                         {"elements", g.elements},
                         {"zeros", g.zeros},
                         {"flushed", g.flushed},
                         {"subnormal", g.subnormal},
                         {"largest", number(g.largest)},
                         {"headroom_bits", number(g.headroom)},
                         {"lowest_exponent", GradientGauge::kLowest},
                         {"exponents", g.exponents}});
  for (const OpError& e : r.errors)
    errors.push_back({{"op", e.op},
                      {"parameters", e.label},
                      {"output_error", number(e.output)},
                      {"gradient_error", e.gradient < 0 ? json() : number(e.gradient)}});
  const json whole{{"loss_scale", r.scale},
                   {"dtype", name_of(r.dtype)},
                   {"first_non_finite", r.first_non_finite},
                   {"headroom_bits", number(r.least_headroom())},
                   {"flushed_share", r.flushed_share()},
                   {"subnormal_share", r.subnormal_share()},
                   {"casts", casts},
                   {"gradients", gradients},
                   {"errors", errors}};
  write_file(path, whole.dump(1) + "\n");
}

void write_svg(const StepReport& r, const std::string& path) {
  constexpr int kCell = 9, kRow = 14, kLeft = 190, kTop = 44;
  const bool f16 = r.dtype == DType::f16;
  const int first = f16 ? -45 : GradientGauge::kLowest, last = f16 ? 20 : 35;  // exponents shown
  const auto x = [=](int exponent) { return kLeft + (std::clamp(exponent, first, last) - first) * kCell; };
  const int rows = static_cast<int>(r.gradients.size()), bottom = kTop + rows * kRow;
  std::ostringstream out;
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << x(last) + 20 << "\" height=\"" << bottom + 40
      << "\" font-family=\"sans-serif\" font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      << "<text x=\"10\" y=\"16\" font-size=\"13\">Exponents of the gradients times the loss scale " << r.scale
      << "; shaded: the range of " << r.dtype << ", lighter where it is subnormal</text>\n";
  const int normal = f16 ? -14 : -126, least = f16 ? -24 : -133, most = f16 ? 16 : 128;
  const auto band = [&](int from, int to, const char* colour) {
    out << "<rect x=\"" << x(from) << "\" y=\"" << kTop << "\" width=\"" << x(to) - x(from) << "\" height=\""
        << rows * kRow << "\" fill=\"" << colour << "\"/>\n";
  };
  band(least, normal, "#eef4fb");
  band(normal, most, "#dbe8f6");
  for (int row = 0; row < rows; ++row) {
    const GradientGauge& g = r.gradients[static_cast<size_t>(row)];
    const int y = kTop + row * kRow;
    const auto most_in_bin = static_cast<double>(*std::max_element(g.exponents.begin(), g.exponents.end()));
    out << "<text x=\"" << kLeft - 6 << "\" y=\"" << y + 10 << "\" text-anchor=\"end\">" << escaped(g.name)
        << "</text>\n";
    for (int e = first; e < last; ++e) {
      const auto count = static_cast<double>(g.exponents[static_cast<size_t>(e - GradientGauge::kLowest)]);
      if (count == 0) continue;
      const double shade = 0.15 + 0.85 * std::sqrt(count / most_in_bin);
      out << "<rect x=\"" << x(e) << "\" y=\"" << y + 1 << "\" width=\"" << kCell - 1 << "\" height=\"" << kRow - 2
          << "\" fill=\"" << (f16 && e < -25 ? "#c0392b" : "#1f4e79") << "\" fill-opacity=\"" << shade << "\"/>\n";
    }
  }
  for (int e = first; e <= last; e += 5)
    out << "<text x=\"" << x(e) << "\" y=\"" << bottom + 14 << "\" text-anchor=\"middle\">2^" << e << "</text>\n";
  out << "</svg>\n";
  write_file(path, out.str());
}

}  // namespace ht::amp
