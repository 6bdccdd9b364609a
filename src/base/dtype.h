// Element types of tensors and the conversions between them.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace deltaring {

// f8_e4m3 is for weights alone: its elements are codes that a scale a block goes with (ops/linear.h).
enum class DType : uint8_t { f32, bf16, f16, f8_e4m3 };

constexpr size_t size_of(DType t) { return t == DType::f32 ? 4 : t == DType::f8_e4m3 ? 1 : 2; }

constexpr const char* name_of(DType t) {
  return t == DType::f32 ? "float32" : t == DType::bf16 ? "bfloat16" : t == DType::f16 ? "float16" : "float8_e4m3fn";
}

// One that values of any kind can be kept in.
constexpr std::optional<DType> dtype_named(std::string_view name) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    if (name == name_of(t)) return t;
  }
  return std::nullopt;
}

constexpr float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Round to nearest even. NaN stays NaN (the quiet bit is set), overflow goes to infinity.
constexpr uint16_t float_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float f16_to_float(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

// Round to nearest even, through subnormals; overflow goes to infinity.
constexpr uint16_t float_to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

// One sign, four exponent (bias 7) and three mantissa bits; no infinities, NaN is all ones behind the sign.
constexpr float f8_e4m3_to_float(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80u} << 8, magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return f16_to_float(static_cast<uint16_t>(sign | 0x7e00u));
  return f16_to_float(static_cast<uint16_t>(sign | magnitude << 7)) * 0x1p8f;
}

// Round to nearest even, through subnormals; what would leave the largest value, 448, becomes NaN.
constexpr uint8_t float_to_f8_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x43e80000u) return static_cast<uint8_t>(sign | 0x7fu);  // above 464, which still goes to 448
  if (magnitude < 0x3c800000u) {  // below 2^-6: adding 2^14 leaves the rounded multiple of 2^-9 in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | (rounded >> 20));
}

inline float load_as_float(const void* p, DType t, int64_t i) {
  if (t == DType::f32) return static_cast<const float*>(p)[i];
  if (t == DType::f8_e4m3) return f8_e4m3_to_float(static_cast<const uint8_t*>(p)[i]);
  const uint16_t bits = static_cast<const uint16_t*>(p)[i];
  return t == DType::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

inline void store_from_float(void* p, DType t, int64_t i, float x) {
  if (t == DType::f32) {
    static_cast<float*>(p)[i] = x;
  } else if (t == DType::f8_e4m3) {
    static_cast<uint8_t*>(p)[i] = float_to_f8_e4m3(x);
  } else {
    static_cast<uint16_t*>(p)[i] = t == DType::bf16 ? float_to_bf16(x) : float_to_f16(x);
  }
}

// count elements from element `first` on, as floats; and the way back.
inline void load_floats(const void* p, DType t, int64_t first, int64_t count, float* out) {
  if (t == DType::f32) {
    std::memcpy(out, static_cast<const float*>(p) + first, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  if (t == DType::f8_e4m3) {
    for (int64_t i = 0; i < count; i++) out[i] = load_as_float(p, t, first + i);
    return;
  }
  const uint16_t* bits = static_cast<const uint16_t*>(p) + first;
  if (t == DType::bf16) {
    for (int64_t i = 0; i < count; i++) out[i] = bf16_to_float(bits[i]);
  } else {
    for (int64_t i = 0; i < count; i++) out[i] = f16_to_float(bits[i]);
  }
}

inline void store_floats(void* p, DType t, int64_t first, int64_t count, const float* x) {
  if (t == DType::f32) {
    std::memcpy(static_cast<float*>(p) + first, x, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  if (t == DType::f8_e4m3) {
    for (int64_t i = 0; i < count; i++) store_from_float(p, t, first + i, x[i]);
    return;
  }
  uint16_t* bits = static_cast<uint16_t*>(p) + first;
  if (t == DType::bf16) {
    for (int64_t i = 0; i < count; i++) bits[i] = float_to_bf16(x[i]);
  } else {
    for (int64_t i = 0; i < count; i++) bits[i] = float_to_f16(x[i]);
  }
}

// x as it would come back after being stored as `t`.
constexpr float round_to(DType t, float x) {
  if (t == DType::f32) return x;
  if (t == DType::f8_e4m3) return f8_e4m3_to_float(float_to_f8_e4m3(x));
  return t == DType::bf16 ? bf16_to_float(float_to_bf16(x)) : f16_to_float(float_to_f16(x));
}

}  // namespace deltaring
