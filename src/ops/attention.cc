#include "ops/attention.h"

#include <cstdint>
#include <limits>

#include "base/error.h"

namespace deltaring {

namespace {

// `view` holds tokens x heads x D float32 with D contiguous; `shape` is how the contract writes that.
void check_tokens(const char* op, const char* name, const char* shape, const View<3>& view,
                  std::array<int64_t, 3> want) {
  check(view.dtype == DType::f32, "{}: {} {} is {}, want float32", op, name, shape, name_of(view.dtype));
  check(view.shape == want, "{}: {} {} is [{}, {}, {}], want [{}, {}, {}]", op, name, shape, view.shape[0],
        view.shape[1], view.shape[2], want[0], want[1], want[2]);
  check(view.stride[2] == 1, "{}: D of {} {} must be contiguous, its stride is {}", op, name, shape, view.stride[2]);
  check(view.data || want[0] == 0, "{}: {} {} is null", op, name, shape);
}

void check_pages(const char* op, const KvPages& kv) {
  const auto [pages, Hkv, page_rows, D] = kv.k.shape;
  check(pages >= 0 && Hkv >= 1 && D >= 1, "{}: kv.k [pages, Hkv, page_rows, D] is [{}, {}, {}, {}], want Hkv, D >= 1",
        op, pages, Hkv, page_rows, D);
  check(page_rows >= 1 && (page_rows & (page_rows - 1)) == 0,
        "{}: page_rows is {}, want a power of two, for example 16", op, page_rows);
  check(kv.v.shape == kv.k.shape,
        "{}: kv.v [pages, Hkv, page_rows, D] is [{}, {}, {}, {}], want that of kv.k, [{}, {}, {}, {}]", op,
        kv.v.shape[0], kv.v.shape[1], kv.v.shape[2], kv.v.shape[3], pages, Hkv, page_rows, D);
  check(kv.v.dtype == kv.k.dtype, "{}: kv.v is {}, want the dtype of kv.k, {}", op, name_of(kv.v.dtype),
        name_of(kv.k.dtype));
  check(kv.k.stride[3] == 1 && kv.v.stride[3] == 1, "{}: D of kv.k and kv.v must be contiguous, strides are {} and {}",
        op, kv.k.stride[3], kv.v.stride[3]);
  check((kv.k.data && kv.v.data) || pages == 0, "{}: kv.k and kv.v [pages, Hkv, page_rows, D] must be given", op);
}

// Every position a live row touches, [from_zero ? 0 : first, first + length), lies in a page that exists.
void check_table(const char* op, const Rows& rows, const KvPages& kv, bool from_zero) {
  const int64_t pages = kv.k.shape[0], page_rows = kv.k.shape[2];
  for (int32_t b = 0; b < rows.count; b++) {
    const int32_t seat = rows.seat[b];
    if (seat < 0 || rows.length(b) == 0) continue;
    const int64_t last = rows.first[b] + rows.length(b) - 1;
    check(kv.table, "{}: kv.table [seats, table_stride] is null, row {} needs it", op, b);
    check(last / page_rows < kv.table_stride, "{}: row {} reaches position {}, kv.table [seats, {}] ends at {}", op, b,
          last, kv.table_stride, kv.table_stride * page_rows);
    for (int64_t i = from_zero ? 0 : rows.first[b] / page_rows; i <= last / page_rows; i++) {
      const int32_t page = kv.table[seat * kv.table_stride + i];
      check(page >= 0 && page < pages, "{}: row {}: kv.table[{}, {}] is {}, want [0, pages = {})", op, b, seat, i, page,
            pages);
    }
  }
}

constexpr int64_t kAnySeat = std::numeric_limits<int32_t>::max();  // KvPages does not say how many seats there are

}  // namespace

void check(const KvAppendArgs& a) {
  const int64_t tokens = a.k.shape[0], Hkv = a.kv.k.shape[1], D = a.kv.k.shape[3];
  check_pages("kv_append", a.kv);
  check_tokens("kv_append", "k", "[tokens, Hkv, D]", a.k, {tokens, Hkv, D});
  check_tokens("kv_append", "v", "[tokens, Hkv, D]", a.v, {tokens, Hkv, D});
  check(a.rows, kAnySeat, tokens);
  check_table("kv_append", a.rows, a.kv, false);
}

void check(const AttentionArgs& a) {
  const int64_t tokens = a.q.shape[0], Hq = a.q.shape[1], Hkv = a.kv.k.shape[1], D = a.kv.k.shape[3];
  check_pages("attention", a.kv);
  check(Hq >= 1 && Hq % Hkv == 0, "attention: Hq = {} is no multiple of Hkv = {}", Hq, Hkv);
  check_tokens("attention", "q", "[tokens, Hq, D]", a.q, {tokens, Hq, D});
  check_tokens("attention", "out", "[tokens, Hq, D]", a.out, {tokens, Hq, D});
  if (a.gate) check_tokens("attention", "gate", "[tokens, Hq, D]", a.gate, {tokens, Hq, D});
  check(a.rows, kAnySeat, tokens);
  check_table("attention", a.rows, a.kv, true);
}

}  // namespace deltaring
