#include "models/prediction_report.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "data/image_file.h"
#include "models/program.h"

namespace ht::models {

namespace {
using nlohmann::json;

std::string percent(double part) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(part < 0.9995 ? 1 : 0) << 100 * part << " %";
  return text.str();
}

double ratio(int64_t part, int64_t all) { return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0; }
int64_t sum_of(const std::vector<int64_t>& row) { return std::accumulate(row.begin(), row.end(), int64_t{0}); }

int64_t correct_in(const Confusion& confusion) {
  int64_t correct = 0;
  for (size_t c = 0; c < confusion.size(); ++c) correct += confusion[c][c];
  return correct;
}

// Left-aligned first column, the others right-aligned, two spaces between.
std::string table_text(const std::vector<std::vector<std::string>>& rows, bool right) {
  std::vector<size_t> width;
  for (const auto& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string gap(width[i] - row[i].size(), ' ');
      line += (i > 0 ? "  " : "") + (right && i > 0 ? gap + row[i] : row[i] + gap);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return text;
}

std::string base64(const std::string& bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;  // 3 bytes, the missing ones of the end 0
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::string xml(const std::string& text) {
  std::string out;
  for (const char c : printable(text))
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}
}  // namespace

std::vector<int64_t> Predictions::top(int64_t image, int64_t n) const {
  std::vector<int64_t> order(static_cast<size_t>(classes()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return probability(image, a) > probability(image, b); });
  order.resize(static_cast<size_t>(std::min(n, classes())));
  return order;
}

Confusion confusion_of(const Predictions& p) {
  Confusion counts(static_cast<size_t>(p.classes()), std::vector<int64_t>(static_cast<size_t>(p.classes())));
  for (int64_t i = 0; i < p.size(); ++i)
    ++counts[static_cast<size_t>(p.label(i))][static_cast<size_t>(p.top(i, 1).front())];
  return counts;
}

std::string top_text(const Predictions& p, int64_t n) {
  std::vector<std::vector<std::string>> rows;
  for (int64_t i = 0; i < p.size(); ++i) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(printable(p.pictures.names[static_cast<size_t>(i)]));
    for (const int64_t c : p.top(i, n)) row.push_back(printable(p.class_name(c)) + ' ' + percent(p.probability(i, c)));
  }
  return table_text(rows, false);
}

std::string confusion_text(const Predictions& p) {
  const Confusion confusion = confusion_of(p);
  const int64_t correct = correct_in(confusion);
  std::vector<std::vector<std::string>> rows{{"class", "images", "right"}};
  for (int64_t c = 0; c < p.classes(); ++c) rows[0].push_back(printable(p.class_name(c)).substr(0, 5));
  for (int64_t c = 0; c < p.classes(); ++c) {
    const std::vector<int64_t>& counts = confusion[static_cast<size_t>(c)];
    const int64_t images = sum_of(counts);
    std::vector<std::string>& row = rows.emplace_back();
    row = {printable(p.class_name(c)), str(images), percent(ratio(counts[static_cast<size_t>(c)], images))};
    for (const int64_t count : counts) row.push_back(str(count));
  }
  return str("accuracy ", percent(ratio(correct, p.size())), " (", correct, " of ", p.size(),
             "); a row a class, a column what it was taken for\n\n", table_text(rows, true));
}

std::string json_lines(const Predictions& p, int64_t n) {
  const auto line_of = [](const json& record) {
    return record.dump(-1, ' ', false, json::error_handler_t::replace) + '\n';
  };
  std::string text;
  for (int64_t i = 0; i < p.size(); ++i) {
    json record{{"type", "image"}, {"image", p.pictures.names[static_cast<size_t>(i)]}, {"top", json::array()}};
    for (const int64_t c : p.top(i, n))
      record["top"].push_back({{"class", p.class_name(c)}, {"probability", p.probability(i, c)}});
    if (p.pictures.labelled) {
      record["label"] = p.class_name(p.label(i));
      record["correct"] = p.top(i, 1).front() == p.label(i);
    }
    text += line_of(record);
  }
  if (!p.pictures.labelled) return text;
  const Confusion confusion = confusion_of(p);
  json class_accuracy;
  for (size_t c = 0; c < confusion.size(); ++c) class_accuracy.push_back(ratio(confusion[c][c], sum_of(confusion[c])));
  return text + line_of({{"type", "summary"},
                         {"images", p.size()},
                         {"accuracy", ratio(correct_in(confusion), p.size())},
                         {"classes", p.pictures.set.class_names},
                         {"class_accuracy", class_accuracy},
                         {"confusion", confusion}});
}

std::string mistakes_svg(const Predictions& p, int64_t n) {
  struct Mistake {
    int64_t image, taken_for;
    float probability;
  };
  std::vector<Mistake> mistakes;
  for (int64_t i = 0; i < p.size(); ++i)
    if (const int64_t best = p.top(i, 1).front(); best != p.label(i))
      mistakes.push_back({i, best, p.probability(i, best)});
  const size_t all = mistakes.size();
  std::stable_sort(mistakes.begin(), mistakes.end(),
                   [](const Mistake& a, const Mistake& b) { return a.probability > b.probability; });
  mistakes.resize(std::min(all, static_cast<size_t>(n)));

  constexpr int64_t kColumns = 8, kWidth = 136, kHeight = 180, kImage = 112, kTop = 44, kMargin = 12;
  const int64_t rows = (static_cast<int64_t>(mistakes.size()) + kColumns - 1) / kColumns;
  const int64_t width = kColumns * kWidth + 2 * kMargin, height = kTop + rows * kHeight + kMargin;
  std::ostringstream svg;
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width << "\" height=\"" << height
      << "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
         "fill=\"white\"/>\n<text x=\""
      << kMargin << "\" y=\"26\" font-size=\"16\">" << all << " of " << p.size() << " images taken for another class"
      << (mistakes.size() < all ? str("; the ", mistakes.size(), " most confident mistakes") : "") << "</text>\n";
  const int64_t h = p.pictures.set.images.dim(1), w = p.pictures.set.images.dim(2);
  for (size_t k = 0; k < mistakes.size(); ++k) {
    const auto [i, taken_for, probability] = mistakes[k];
    const int64_t x = kMargin + static_cast<int64_t>(k) % kColumns * kWidth;
    const int64_t y = kTop + static_cast<int64_t>(k) / kColumns * kHeight;
    const auto text = [&](int64_t below, const char* fill, const std::string& words) {
      svg << "<text x=\"" << x << "\" y=\"" << y + kImage + below << "\" fill=\"" << fill << "\">" << xml(words)
          << "</text>\n";
    };
    svg << "<image x=\"" << x << "\" y=\"" << y << "\" width=\"" << kImage << "\" height=\"" << kImage
        << "\" style=\"image-rendering:pixelated\" href=\"data:image/png;base64,"
        << base64(data::encode_png(p.pictures.set.images.rows(i, i + 1).view({h, w, 3}))) << "\"/>\n";
    text(15, "#b00020", p.class_name(taken_for) + ' ' + percent(probability));
    text(30, "#1b5e20", "is: " + p.class_name(p.label(i)) + ' ' + percent(p.probability(i, p.label(i))));
    text(45, "#777777", p.pictures.names[static_cast<size_t>(i)]);
  }
  svg << "</svg>\n";
  return svg.str();
}

}  // namespace ht::models
