#include "ops/attention.h"

#include "ops/check_view.h"

namespace deltaring {

namespace {

// The pages of an op that writes them (check_output) or reads them (check_view).
void check_pages(const char* op, const KvPages& kv, decltype(check_view<4>)& check_each) {
  const auto [pages, Hkv, page_rows, D] = kv.k.shape;
  check_each(op, "kv.k [pages, Hkv, page_rows, D]", kv.k, kv.k.dtype, kv.k.shape);
  check_each(op, "kv.v [pages, Hkv, page_rows, D]", kv.v, kv.k.dtype, kv.k.shape);
  check(Hkv >= 1 && D >= 1, "{}: kv.k [pages, Hkv, page_rows, D] is [{}, {}, {}, {}], want Hkv, D >= 1", op, pages, Hkv,
        page_rows, D);
  check(page_rows >= 1 && (page_rows & (page_rows - 1)) == 0,
        "{}: page_rows is {}, want a power of two, for example 16", op, page_rows);
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

}  // namespace

void check(const KvAppendArgs& a) {
  const int64_t tokens = a.k.shape[0], Hkv = a.kv.k.shape[1], D = a.kv.k.shape[3];
  check_pages("kv_append", a.kv, check_output<4>);
  check_view("kv_append", "k [tokens, Hkv, D]", a.k, DType::f32, {tokens, Hkv, D});
  check_view("kv_append", "v [tokens, Hkv, D]", a.v, DType::f32, {tokens, Hkv, D});
  check(a.rows, a.kv.seats, tokens);
  check_table("kv_append", a.rows, a.kv, false);
}

void check(const AttentionArgs& a) {
  const int64_t tokens = a.q.shape[0], Hq = a.q.shape[1], Hkv = a.kv.k.shape[1], D = a.kv.k.shape[3];
  check_pages("attention", a.kv, check_view<4>);
  check(Hq >= 1 && Hq % Hkv == 0, "attention: Hq = {} is no multiple of Hkv = {}", Hq, Hkv);
  check_view("attention", "q [tokens, Hq, D]", a.q, DType::f32, {tokens, Hq, D});
  if (a.gate) check_view("attention", "gate [tokens, Hq, D]", a.gate, DType::f32, {tokens, Hq, D});
  check_output("attention", "out [tokens, Hq, D]", a.out, DType::f32, {tokens, Hq, D});
  check(a.window >= 0, "attention: window is {}, want >= 0; 0 = no window", a.window);
  check(a.rows, a.kv.seats, tokens);
  check_table("attention", a.rows, a.kv, true);
}

}  // namespace deltaring
