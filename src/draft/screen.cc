#include "draft/screen.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "base/error.h"

namespace deltaring {

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kMostX = LinearI4Args::kMostX;
constexpr int64_t kGathered = 1024;  // rows of an exact product
constexpr size_t kFew = 32;          // ids whose exact products cost no more than a look at their codes
constexpr float kMargin = 1.001f;    // bounds are rounded too
constexpr float kMostRatio = 64;
constexpr double kLeastSize = 1.0 / 64;

int64_t padded(int64_t K) { return (K + LinearI4Args::kGroup - 1) / LinearI4Args::kGroup * LinearI4Args::kGroup; }

int64_t blocks_of(int64_t rows) { return (rows + Estimate::kBlock - 1) / Estimate::kBlock; }

size_t plane(int64_t rows, int64_t columns) { return Arena::aligned(static_cast<size_t>(rows * padded(columns) / 2)); }

float above_zero(double x) { return std::max(static_cast<float>(x), std::numeric_limits<float>::min()); }

// Puts half a code, 0 to 15, at place k of a row of zeros.
void put(uint8_t* row, int64_t k, int half) {
  constexpr int64_t kHalf = LinearI4Args::kGroup / 2;
  const bool above = k % LinearI4Args::kGroup >= kHalf;
  row[k / LinearI4Args::kGroup * kHalf + k % kHalf] |= static_cast<uint8_t>(above ? half << 4 : half);
}

// The `count`-th largest number, -inf when there are less.
float largest_but(std::span<float> x, size_t count) {
  for (float& e : x)
    if (std::isnan(e)) e = kLowest;
  if (x.size() < count) return kLowest;
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(count - 1), x.end(), std::greater<>());
  return x[count - 1];
}

// d for x of these sizes, 1 on average. Sizes that say nothing, or too little of a single number, are the average.
std::vector<float> weights_for(std::span<const float> sizes, int64_t K) {
  std::vector<float> d(static_cast<size_t>(K), 1.0f);
  double sum = 0;
  for (const float size : sizes) sum += std::abs(size);
  const double mean = sum / static_cast<double>(K);
  if (static_cast<int64_t>(sizes.size()) != K || !(mean > 0) || !std::isfinite(mean)) return d;
  for (size_t k = 0; k < d.size(); k++) {
    d[k] = static_cast<float>(std::sqrt(std::max(std::abs(sizes[k]) / mean, kLeastSize)));
  }
  return d;
}

}  // namespace

int64_t Screen::planned_bytes(int64_t rows, int64_t columns) {
  if (!worth(rows, columns)) return 0;
  return static_cast<int64_t>(2 * plane(rows, columns)) +
         (6 * rows + blocks_of(rows)) * static_cast<int64_t>(sizeof(float));
}

Screen::Screen(const View<2>& matrix, std::span<const float> sizes)
    : matrix_(matrix),
      padded_(padded(matrix.shape[1])),
      arena_(2 * plane(matrix.shape[0], matrix.shape[1]), "codes of a head"),
      d_(weights_for(sizes, matrix.shape[1])),
      scale_(static_cast<size_t>(matrix.shape[0])),
      upper_error_(scale_.size()),
      whole_(scale_.size()),
      upper_pairs_(scale_.size()),
      lower_pairs_(scale_.size()),
      error_peaks_(static_cast<size_t>(blocks_of(matrix.shape[0]))) {
  const auto [N, K] = matrix.shape;
  for (uint8_t** half : {&upper_, &lower_}) {
    *half = static_cast<uint8_t*>(arena_.take(plane(N, K)));
    std::fill_n(*half, N * width(), uint8_t{0});
  }
  std::vector<float> w(static_cast<size_t>(K));
  for (int64_t n = 0; n < N; n++) {
    for (int64_t k = 0; k < K; k++) w[k] = load_as_float(matrix.data, matrix.dtype, matrix.offset(n, k));
    encode(n, w);
    upper_pairs_[n] = pairs_of_i4(upper_ + n * width(), padded_);
    lower_pairs_[n] = pairs_of_i4(lower_ + n * width(), padded_);
    float& peak = error_peaks_[n / Estimate::kBlock];
    peak = std::max(peak, upper_error_[n]);
  }
}

void Screen::encode(int64_t n, std::span<const float> w) {
  float most = 0, sum = 0;
  for (const float e : w) most = std::max(most, std::abs(e)), sum += e - e;
  if (sum != 0) {  // NaN
    constexpr float kInfinite = std::numeric_limits<float>::infinity();
    upper_error_[n] = kInfinite, whole_[n] = {kInfinite, kInfinite};
    return;
  }
  const float scale = scale_[n] = above_zero(most / 128);
  double upper_lack = 0, lack = 0, square = 0, by_codes[2] = {};
  for (size_t k = 0; k < w.size(); k++) {
    const int code = std::clamp(static_cast<int>(w[k] / scale + 128), 0, 255), upper = code / 16, lower = code % 16;
    const double by_upper = w[k] - 8.0 * scale * (2 * upper - 15), by_both = by_upper - 0.5 * scale * (2 * lower - 15);
    const double d = d_[k];
    upper_lack += d * d * by_upper * by_upper, lack += d * d * by_both * by_both;
    square += double{w[k]} * w[k];
    by_codes[0] += (w[k] - by_upper) * (w[k] - by_upper), by_codes[1] += (w[k] - by_both) * (w[k] - by_both);
    put(upper_ + n * width(), static_cast<int64_t>(k), upper);
    put(lower_ + n * width(), static_cast<int64_t>(k), lower);
  }
  // Not less than the lengths of what the codes stand for.
  const float length = above_zero(std::sqrt(std::max({square, by_codes[0], by_codes[1]})) * kMargin);
  whole_[n] = {.error = above_zero(std::sqrt(lack)), .length = length};
  upper_error_[n] = std::max(above_zero(std::sqrt(upper_lack)), length / kMostRatio);
  ratio_ = std::max(ratio_, length / upper_error_[n]);
}

bool Screen::estimate(Decoder& decoder, View<2> x, float factor, int64_t valid, View<2> out) {
  const auto [M, K] = x.shape;
  x_.assign(static_cast<size_t>(M * padded_), 0);
  for (std::vector<float>* list : {&unit_, &slack_, &near_, &far_}) list->resize(static_cast<size_t>(M));
  for (int64_t m = 0; m < M; m++) {
    const float* row = x.f32(m);
    float most = 0;
    double square = 0, weighted = 0, lack = 0;
    for (int64_t k = 0; k < K; k++) {
      const double by_d = row[k] / d_[k];
      most = std::max(most, std::abs(row[k])), square += double{row[k]} * row[k], weighted += by_d * by_d;
    }
    if (!std::isfinite(square)) return false;
    const float step = above_zero(most / kMostX), inverse = 1 / step;
    for (int64_t k = 0; k < K; k++) {
      const float whole = std::clamp(std::nearbyint(row[k] * inverse), -kMostX, kMostX);
      const double off = row[k] - double{step} * whole;
      lack += off * off;
      x_[m * padded_ + k] = static_cast<int8_t>(whole);
    }
    const double length = std::sqrt(square);
    unit_[m] = 8 * step * factor;
    const double near = std::sqrt(weighted), far = std::sqrt(lack) + length * static_cast<double>(K + 8) * 0x1p-23;
    slack_[m] = above_zero((near + ratio_ * far) * factor * kMargin);
    near_[m] = above_zero(near * factor * kMargin), far_[m] = above_zero(far * factor * kMargin);
  }
  factor_ = factor, valid_ = valid, out_ = out;
  out_.shape[1] = valid;
  static_assert(LinearI4Args::kPeak == Estimate::kBlock);
  peaks_.resize(static_cast<size_t>(M * blocks_of(valid)));
  decoder.ops().linear_i4({.M = M,
                           .N = valid,
                           .K = padded_,
                           .x = x_.data(),
                           .w = upper_,
                           .scale = scale_.data(),
                           .pairs = upper_pairs_.data(),
                           .rows = nullptr,
                           .out = out_,
                           .peaks = peaks_.data()},
                          decoder.stream());
  return true;
}

Ids Screen::promising(int64_t m, size_t count) const {
  constexpr int64_t kBlock = Estimate::kBlock;
  const int64_t blocks = blocks_of(valid_);
  const float* peaks = peaks_.data() + m * blocks;
  const auto higher = [=](int32_t a, int32_t b) { return peaks[a] > peaks[b]; };
  Ids ids;  // first blocks, a heap with the lowest peak in front
  for (int32_t block = 0; block < blocks; block++) {
    if (ids.size() == count) {
      if (!higher(block, ids.front())) continue;
      std::pop_heap(ids.begin(), ids.end(), higher);
      ids.pop_back();
    }
    ids.push_back(block);
    std::push_heap(ids.begin(), ids.end(), higher);
  }
  for (int32_t& id : ids) {
    const float *first = out_.f32(m, id * kBlock), *end = out_.f32(m, std::min(valid_, (id + 1) * kBlock));
    id = static_cast<int32_t>(id * kBlock + (std::max_element(first, end) - first));
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<Ids> Screen::best(Decoder& decoder, View<2> x, size_t count) const {
  std::vector<float> least;
  for (int64_t m = 0; m < x.shape[0]; m++) {
    const Ids ids = promising(m, std::max<size_t>(16, 2 * count));
    std::vector<float> products(ids.size());
    exact(decoder, x.rows(m, 1), ids, products);
    least.push_back(factor_ * largest_but(products, count));
  }
  const Part all{*this, 0};
  return contenders(decoder, {&all, 1}, least);
}

std::vector<Ids> Screen::contenders(Decoder& decoder, std::span<const Part> sum, std::span<const float> least) {
  check(sum.size() == 1 || sum.size() == 2, "a sum of {} estimates; 1 and 2 are possible", sum.size());
  std::vector<float> bar(least.begin(), least.end());
  for (float& e : bar) e -= std::abs(e) * 0x1p-20f;  // sums of bounds are rounded
  std::vector<Estimate> estimates;
  for (const auto& [screen, first] : sum) {
    estimates.push_back({.value = screen.out_.rows(first, static_cast<int64_t>(bar.size())),
                         .value_peaks = screen.peaks_.data() + first * blocks_of(screen.valid_),
                         .unit = screen.unit_.data() + first,
                         .error = screen.upper_error_.data(),
                         .error_peaks = screen.error_peaks_.data(),
                         .slack = screen.slack_.data() + first});
  }
  std::vector<Ids> out(bar.size());
  std::vector<std::vector<float>> rests(bar.size());
  decoder.ops().contenders(
      {.sum = estimates, .valid = sum[0].screen.valid_, .least = bar.data(), .ids = out.data(), .rest = rests.data()},
      decoder.stream());
  for (size_t m = 0; m < out.size(); m++) {
    // One summand after the other is known better, and who cannot reach the least then is gone before the next.
    Ids& ids = out[m];
    std::vector<float> known(ids.size()), &rest = rests[m];  // by parts that were looked at again, and by the others
    for (size_t part = 0; part < sum.size() && ids.size() > kFew; part++) {
      const auto& [screen, first] = sum[part];
      const std::vector<float> more = screen.most_by_both(decoder, first + static_cast<int64_t>(m), ids);
      size_t left = 0;
      for (size_t i = 0; i < ids.size(); i++) {
        const float most = known[i] + more[i];
        if (most + (part == 0 ? rest[i] : 0) < bar[m]) continue;  // behind the second part there is no rest
        ids[left] = ids[i], known[left++] = most;
      }
      ids.resize(left), known.resize(left);
    }
  }
  return out;
}

std::vector<float> Screen::most_by_both(Decoder& decoder, int64_t m, const Ids& ids) const {
  const auto count = static_cast<int64_t>(ids.size());
  std::vector<float> most(ids.size());
  decoder.ops().linear_i4({.M = 1,
                           .N = count,
                           .K = padded_,
                           .x = x_.data() + m * padded_,
                           .w = lower_,
                           .scale = scale_.data(),
                           .pairs = lower_pairs_.data(),
                           .rows = ids.data(),
                           .out = dense<2>(most.data(), DType::f32, {1, count}),
                           .peaks = nullptr},
                          decoder.stream());
  const float* upper = out_.f32(m);
  for (size_t i = 0; i < ids.size(); i++) {
    const auto [error, length] = whole_[ids[i]];
    most[i] = unit_[m] * (upper[ids[i]] + most[i] / 16) + near_[m] * error + far_[m] * length;
  }
  return most;
}

void Screen::exact(Decoder& decoder, View<2> x, std::span<const int32_t> ids, std::span<float> out,
                   bool accumulate) const {
  const int64_t K = matrix_.shape[1];
  const size_t bytes = static_cast<size_t>(K) * size_of(matrix_.dtype);
  const auto gathered = std::make_unique_for_overwrite<std::byte[]>(std::min<size_t>(ids.size(), kGathered) * bytes);
  while (!ids.empty()) {
    const size_t count = std::min<size_t>(ids.size(), kGathered);
    for (size_t i = 0; i < count; i++) {
      std::memcpy(gathered.get() + i * bytes, matrix_.address(matrix_.offset(ids[i], 0)), bytes);
    }
    const auto rows = static_cast<int64_t>(count);
    decoder.linear(x, dense<2>(gathered.get(), matrix_.dtype, {rows, K}), dense<2>(out.data(), DType::f32, {1, rows}),
                   accumulate);
    ids = ids.subspan(count), out = out.subspan(count);
  }
}

int32_t Screen::largest(Decoder& decoder, View<2> x, const Ids& ids) const {
  std::vector<float> products(ids.size());
  exact(decoder, x, ids, products);
  return ids[index_of_largest(decoder, products)];
}

int32_t index_of_largest(Decoder& decoder, std::span<float> logits) {
  int32_t best = 0;
  const auto size = static_cast<int64_t>(logits.size());
  decoder.ops().argmax({.logits = dense<2>(logits.data(), DType::f32, {1, size}), .valid = size, .out = &best},
                       decoder.stream());
  return std::max(best, 0);
}

}  // namespace deltaring
