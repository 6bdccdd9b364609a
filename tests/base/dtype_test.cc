#include "base/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace deltaring {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// A 16-bit format: what the tests below need to know of it.
struct Format {
  const char* name;
  DType dtype;
  float (*to_float)(uint16_t);
  uint16_t (*from_float)(float);
  int mantissa_bits;
  int bias;
};

constexpr Format kF16{"float16", DType::f16, f16_to_float, float_to_f16, 10, 15};
constexpr Format kBf16{"bfloat16", DType::bf16, bf16_to_float, float_to_bf16, 7, 127};

class SixteenBits : public testing::TestWithParam<Format> {};

TEST_P(SixteenBits, EveryPatternHasItsValueAndComesBack) {
  const Format f = GetParam();
  const int exponent_max = (1 << (15 - f.mantissa_bits)) - 1;
  for (int i = 0; i < 65536; i++) {
    const auto bits = static_cast<uint16_t>(i);
    const int exponent = (i >> f.mantissa_bits) & exponent_max, mantissa = i & ((1 << f.mantissa_bits) - 1);
    const float x = f.to_float(bits);
    ASSERT_EQ(std::signbit(x), bool(i & 0x8000)) << i;
    if (exponent == exponent_max && mantissa != 0) {
      ASSERT_TRUE(std::isnan(x)) << i;
      const float again = f.to_float(f.from_float(x));
      ASSERT_TRUE(std::isnan(again)) << i;
      ASSERT_EQ(std::signbit(again), std::signbit(x)) << i;
      continue;
    }
    const int hidden = exponent == 0 ? 0 : 1 << f.mantissa_bits;
    const double value = exponent == exponent_max
                             ? double{kInf}
                             : std::ldexp(hidden + mantissa, std::max(exponent, 1) - f.bias - f.mantissa_bits);
    ASSERT_EQ(std::abs(x), value) << i;
    ASSERT_EQ(f.from_float(x), bits) << i;
  }
}

// Between two neighbours: below the middle to the lower, above it to the upper, the middle itself to the even one.
// As rounding is monotone, this settles every float.
TEST_P(SixteenBits, RoundsToNearestEven) {
  const Format f = GetParam();
  const int infinity = 0x7fff >> f.mantissa_bits << f.mantissa_bits;
  for (int i = 0; i + 1 < infinity; i++) {
    const auto lower = static_cast<uint16_t>(i), upper = static_cast<uint16_t>(i + 1);
    const double exact = (double{f.to_float(lower)} + double{f.to_float(upper)}) / 2;
    const auto middle = static_cast<float>(exact);
    ASSERT_EQ(double{middle}, exact);
    for (int sign : {0, 0x8000}) {
      const float s = sign ? -1.0f : 1.0f;
      ASSERT_EQ(f.from_float(s * std::nextafter(middle, 0.0f)), lower | sign) << i;
      ASSERT_EQ(f.from_float(s * std::nextafter(middle, kInf)), upper | sign) << i;
      ASSERT_EQ(f.from_float(s * middle), (i & 1 ? upper : lower) | sign) << i;
    }
  }
}

TEST_P(SixteenBits, OverflowsToInfinity) {
  const Format f = GetParam();
  const auto infinity = static_cast<uint16_t>(0x7fff >> f.mantissa_bits << f.mantissa_bits);
  const float largest = f.to_float(infinity - 1);
  const auto middle = largest + std::ldexp(largest - f.to_float(infinity - 2), -1);
  EXPECT_EQ(f.from_float(std::nextafter(middle, 0.0f)), infinity - 1);
  EXPECT_EQ(f.from_float(middle), infinity);
  EXPECT_EQ(f.from_float(-middle), infinity | 0x8000);
  EXPECT_EQ(f.from_float(std::numeric_limits<float>::max()), infinity);
  EXPECT_EQ(f.from_float(kInf), infinity);
}

TEST_P(SixteenBits, RandomFloatsGoToANearestPattern) {
  const Format f = GetParam();
  std::mt19937 random(1);
  for (int i = 0; i < 200'000; i++) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    const float r = f.to_float(f.from_float(x));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(r));
      continue;
    }
    ASSERT_EQ(std::signbit(r), std::signbit(x));
    if (std::isinf(r)) {
      ASSERT_GT(std::abs(double{x}), double{std::abs(f.to_float(f.from_float(r) - 1))});
      continue;
    }
    const double distance = std::abs(double{x} - r);
    const int bits = f.from_float(r), magnitude = bits & 0x7fff, sign = bits & 0x8000;
    for (int other : {std::max(magnitude - 1, 0), magnitude + 1}) {
      ASSERT_LE(distance, std::abs(double{x} - f.to_float(static_cast<uint16_t>(other | sign))));
    }
  }
}

TEST_P(SixteenBits, LoadStoreAndRoundAgree) {
  const Format f = GetParam();
  std::array<uint16_t, 4> memory{1, 2, 3, 4};
  store_from_float(memory.data(), f.dtype, 1, 1.2345f);
  EXPECT_EQ(memory, (std::array<uint16_t, 4>{1, f.from_float(1.2345f), 3, 4}));
  EXPECT_EQ(load_as_float(memory.data(), f.dtype, 1), round_to(f.dtype, 1.2345f));
  EXPECT_NE(round_to(f.dtype, 1.2345f), 1.2345f);
  EXPECT_EQ(round_to(f.dtype, round_to(f.dtype, 1.2345f)), round_to(f.dtype, 1.2345f));
  EXPECT_EQ(size_of(f.dtype), 2u);
  EXPECT_STREQ(name_of(f.dtype), f.name);
}

INSTANTIATE_TEST_SUITE_P(DType, SixteenBits, testing::Values(kF16, kBf16),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(DType, Float32IsKeptAsItIs) {
  std::array<float, 3> memory{7, 7, 7};
  store_from_float(memory.data(), DType::f32, 1, 0.1f);
  EXPECT_EQ(memory, (std::array<float, 3>{7, 0.1f, 7}));
  EXPECT_EQ(load_as_float(memory.data(), DType::f32, 1), 0.1f);
  EXPECT_EQ(round_to(DType::f32, 0.1f), 0.1f);
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_STREQ(name_of(DType::f32), "float32");
}

TEST(DType, EveryFloat8CodeHasItsValueAndComesBack) {
  for (int i = 0; i < 256; i++) {
    const auto code = static_cast<uint8_t>(i);
    const int exponent = (i >> 3) & 15, mantissa = i & 7;
    const float x = f8_e4m3_to_float(code);
    ASSERT_EQ(std::signbit(x), bool(i & 0x80)) << i;
    ASSERT_EQ(float_to_f8_e4m3(x), code) << i;
    if ((i & 0x7f) == 0x7f) {
      ASSERT_TRUE(std::isnan(x)) << i;
    } else {
      ASSERT_EQ(std::abs(x), std::ldexp(exponent ? 8 + mantissa : mantissa, std::max(exponent, 1) - 10)) << i;
    }
  }
}

TEST(DType, Float8RoundsToNearestEvenAndOverflowsToNaN) {
  for (int i = 0; i < 0x7e; i++) {
    const auto lower = static_cast<uint8_t>(i), upper = static_cast<uint8_t>(i + 1);
    const float middle = (f8_e4m3_to_float(lower) + f8_e4m3_to_float(upper)) / 2;
    for (int sign : {0, 0x80}) {
      const float s = sign ? -1.0f : 1.0f;
      ASSERT_EQ(float_to_f8_e4m3(s * std::nextafter(middle, 0.0f)), lower | sign) << i;
      ASSERT_EQ(float_to_f8_e4m3(s * std::nextafter(middle, kInf)), upper | sign) << i;
      ASSERT_EQ(float_to_f8_e4m3(s * middle), (i & 1 ? upper : lower) | sign) << i;
    }
  }
  EXPECT_EQ(float_to_f8_e4m3(464), 0x7e);
  EXPECT_EQ(float_to_f8_e4m3(-std::nextafter(464.0f, kInf)), 0xff);
  EXPECT_EQ(float_to_f8_e4m3(kInf), 0x7f);
}

TEST(DType, Float8LoadsStoresAndHasItsName) {
  std::array<uint8_t, 4> memory{1, 2, 3, 4};
  store_from_float(memory.data(), DType::f8_e4m3, 1, 1.3f);
  EXPECT_EQ(memory, (std::array<uint8_t, 4>{1, float_to_f8_e4m3(1.3f), 3, 4}));
  EXPECT_EQ(load_as_float(memory.data(), DType::f8_e4m3, 1), round_to(DType::f8_e4m3, 1.3f));
  std::array<float, 2> floats;
  load_floats(memory.data(), DType::f8_e4m3, 1, 2, floats.data());
  EXPECT_EQ(floats, (std::array<float, 2>{1.25f, 3 * 0x1p-9f}));
  store_floats(memory.data(), DType::f8_e4m3, 2, 2, floats.data());
  EXPECT_EQ(memory, (std::array<uint8_t, 4>{1, memory[1], memory[1], 3}));
  EXPECT_EQ(size_of(DType::f8_e4m3), 1u);
  EXPECT_STREQ(name_of(DType::f8_e4m3), "float8_e4m3fn");
  EXPECT_EQ(dtype_named("float8_e4m3fn"), std::nullopt);
}

TEST(DType, KnownValues) {
  EXPECT_EQ(float_to_f16(1.0f), 0x3c00);
  EXPECT_EQ(float_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(0x1p-24f), 0x0001);
  EXPECT_EQ(float_to_f16(0x1p-25f), 0x0000);
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(-2.0f), 0xc000);
}

}  // namespace
}  // namespace deltaring
