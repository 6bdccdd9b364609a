// The plot of a bench-spec run: acceptance length by category as bars, acceptance by draft position as lines.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/spec_report.h"

namespace deltaring::cli {

namespace {

constexpr std::array kColours{"#1d4ed8", "#c2410c", "#047857", "#7e22ce", "#a16207", "#be123c", "#0e7490", "#4b5563"};
constexpr double kTop = 96, kHeight = 280, kLeft = 64, kBar = 14, kGap = 22, kLines = 340;

const char* colour(size_t run) { return kColours[run % kColours.size()]; }

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  }
  return out;
}

// A vertical axis from 0 to `most` at x, grid lines over `width`.
std::string axis(double x, double width, double most, double step, const char* unit) {
  std::string svg;
  for (double value = 0; value <= most + 1e-9; value += step) {
    const double y = kTop + kHeight * (1 - value / most);
    svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}h{:.1f}\"/>\n", x, y, width);
    svg += fmt::format("<text class=\"tick\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{:g}{}</text>\n", x - 8,
                       y + 4, value, unit);
  }
  return svg;
}

std::vector<std::pair<std::string, SpecTally>> groups_of(const SpecRun& run) {
  std::vector<std::pair<std::string, SpecTally>> groups(run.categories.begin(), run.categories.end());
  if (groups.size() > 1) groups.emplace_back("overall", run.overall());
  return groups;
}

std::string bars(const SpecReport& report, double most) {
  std::string svg;
  for (size_t r = 0; r < report.runs.size(); r++) {
    double x = kLeft + kGap / 2;
    for (const auto& [category, tally] : groups_of(report.runs[r])) {
      const double height = kHeight * tally.pooled_length() / most, at = x + kBar * static_cast<double>(r);
      svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", at,
                         kTop + kHeight - height, kBar - 2, height, colour(r));
      const double width = kBar * static_cast<double>(report.runs.size());
      if (r == 0) {
        const double middle = x + width / 2, y = kTop + kHeight + 14;
        svg += fmt::format(
            "<text class=\"tick\" text-anchor=\"end\" transform=\"translate({:.1f} {:.1f}) rotate(-40)\">{}</text>\n",
            middle, y, escaped(category));
      }
      x += width + kGap;
    }
  }
  return svg;
}

std::string lines(const SpecReport& report, double left, size_t positions) {
  std::string svg;
  const auto x_of = [&](size_t i) {
    return left + kLines * (static_cast<double>(i) + 0.5) / static_cast<double>(std::max<size_t>(positions, 1));
  };
  for (size_t i = 0; i < positions; i++) {
    svg += fmt::format("<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x_of(i),
                       kTop + kHeight + 18, i + 1);
  }
  for (size_t r = 0; r < report.runs.size(); r++) {
    const std::vector<double> rates = report.runs[r].overall().acceptance_at();
    std::string path;
    for (size_t i = 0; i < rates.size(); i++) {
      path += fmt::format("{}{:.1f} {:.1f}", i ? "L" : "M", x_of(i), kTop + kHeight * (1 - rates[i]));
    }
    if (!path.empty()) svg += fmt::format("<path class=\"line\" stroke=\"{}\" d=\"{}\"/>\n", colour(r), path);
  }
  return svg;
}

}  // namespace

std::string to_svg(const SpecReport& report) {
  double longest = 1;
  size_t groups = 0, positions = 0;
  std::string legend, summary;
  double legend_x = kLeft;
  for (size_t r = 0; r < report.runs.size(); r++) {
    const SpecRun& run = report.runs[r];
    groups = std::max(groups, groups_of(run).size());
    positions = std::max(positions, run.overall().drafted_at.size());
    for (const auto& [category, tally] : groups_of(run)) longest = std::max(longest, tally.pooled_length());
    const std::string name = fmt::format("{}, T={}", run.drafter, run.info.T);
    legend +=
        fmt::format("<rect x=\"{:.1f}\" y=\"56\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", legend_x, colour(r));
    legend += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"67\">{}</text>\n", legend_x + 18, escaped(name));
    legend_x += 40 + 8 * static_cast<double>(name.size());
    summary += fmt::format("{}{} {:.2f}", r ? ", " : "", run.drafter, run.overall().pooled_length());
  }
  const double most = std::ceil(longest), bar_width = kBar * static_cast<double>(report.runs.size()) + kGap;
  const double chart = std::max(bar_width * static_cast<double>(groups), 200.0), left = kLeft + chart + 80;
  const double width = std::max(left + kLines + 24, legend_x + 24), height = kTop + kHeight + 110;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "role=\"img\" aria-labelledby=\"title desc\">\n<title id=\"title\">Acceptance by category and by draft "
      "position</title>\n<desc id=\"desc\">Tokens a verify step: {2}.</desc>\n",
      width, height, escaped(summary));
  svg +=
      "<style>\n  text { font-family: system-ui, -apple-system, \"Segoe UI\", \"Helvetica Neue\", Arial, sans-serif; "
      "font-size: 14px; fill: #1f2937 }\n  .title { font-size: 18px; font-weight: 600 }\n  .tick { font-size: 13px; "
      "fill: #4b5563 }\n  .grid { stroke: #e5e7eb }\n  .line { fill: none; stroke-width: 2.4; stroke-linejoin: round "
      "}\n</style>\n";
  svg += fmt::format("<rect width=\"{:.0f}\" height=\"{:.0f}\" fill=\"#ffffff\"/>\n", width, height);
  svg += fmt::format("<text class=\"title\" x=\"24\" y=\"34\">Tokens a verify step, by category</text>\n");
  svg += fmt::format("<text class=\"title\" x=\"{:.1f}\" y=\"34\">Drafts accepted, by position</text>\n", left - 40);
  svg += legend;
  svg += axis(kLeft, chart, most, most > 8 ? 2 : 1, "") + axis(left, kLines, 1, 0.25, "");
  svg += bars(report, most) + lines(report, left, positions);
  return svg + "</svg>\n";
}

}  // namespace deltaring::cli
