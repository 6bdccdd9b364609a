#include "draft/pending_rows.h"

#include <algorithm>
#include <cstring>

namespace deltaring {

void PendingRows::in_passes(std::span<const Row> list, int64_t most, const Pass& pass) {
  while (!list.empty()) {
    const std::span<const Row> some = list.first(std::min(static_cast<size_t>(most), list.size()));
    list = list.subspan(some.size());
    std::vector<int32_t> start, seat;
    std::vector<int64_t> first;
    for (size_t i = 0; i < some.size(); i++) {
      if (i > 0 && some[i].seat == some[i - 1].seat && some[i].position == some[i - 1].position + 1) continue;
      start.push_back(static_cast<int32_t>(i));
      seat.push_back(some[i].seat);
      first.push_back(some[i].position);
    }
    start.push_back(static_cast<int32_t>(some.size()));
    pass(some, {.count = static_cast<int32_t>(seat.size()),
                .start = start.data(),
                .seat = seat.data(),
                .first = first.data()});
  }
}

PendingRows::PendingRows(StatePool& pool, const char* name, int64_t width) : pool_(pool), name_(name), width_(width) {
  arena_ = allocate_scratch(*this, scratch(pool.options().seats, width), "rows that wait for a drafter");
  for (int32_t seat = 0; seat < pool.options().seats; seat++) set(seat, {});
  pool_.attach(*this);
}

PendingRows::~PendingRows() { pool_.detach(*this); }

PendingRows::Header PendingRows::header(int32_t seat) const {
  Header out;
  std::memcpy(&out, seats_.f32(seat), sizeof out);
  return out;
}

void PendingRows::set(int32_t seat, const Header& header) { std::memcpy(seats_.f32(seat), &header, sizeof header); }

std::span<std::byte> PendingRows::bytes(int32_t seat) {
  return std::as_writable_bytes(std::span(seats_.f32(seat), static_cast<size_t>(seats_.shape[1])));
}

void PendingRows::move(int32_t seat, Cursor from, Cursor to) {
  Header h = header(seat);
  if (to.pos >= from.pos || to.pos >= h.end) return;  // commits are followed by add
  h.count = std::max<int64_t>(0, h.count - (h.end - to.pos));
  h.end = to.pos;
  h.written = std::min(h.written, to.pos);
  set(seat, h);
}

bool PendingRows::possible(int32_t seat, Cursor cursor) {
  const Header h = header(seat);
  if (h.end == -1) return h.written == 0 && h.count == 0;  // a hole
  return 0 <= h.count && h.count <= std::min(kRows, h.end) && h.end <= cursor.pos && h.end - h.count <= h.written &&
         h.written <= h.end;
}

void PendingRows::keep(int32_t seat, int64_t i, const Row& from) {
  std::memcpy(row(seat, i), &from.next, sizeof from.next);
  std::copy_n(from.data, width_, row(seat, i) + 1);
}

PendingRows::Row PendingRows::at(int32_t seat, int64_t position, const Header& h) const {
  const float* place = row(seat, position - (h.end - h.count));
  Row out{.seat = seat, .next = 0, .position = position, .data = place + 1};
  std::memcpy(&out.next, place, sizeof out.next);
  return out;
}

PendingRows::List PendingRows::waiting(int32_t seat) const {
  const Header h = header(seat);
  List out;
  for (int64_t position = h.written; position < h.end; position++) out.push_back(at(seat, position, h));
  return out;
}

PendingRows::List PendingRows::newest(int32_t seat) const {
  const Header h = header(seat);
  if (h.count == 0) return {};
  return {at(seat, h.end - 1, h)};
}

void PendingRows::written(int32_t seat, int64_t left) {
  Header h = header(seat);
  h.written = std::max(h.written, h.end - left);
  set(seat, h);
}

void PendingRows::catch_up(std::span<const int32_t> seats, int64_t left, const Write& write) {
  List due;
  for (const int32_t seat : seats) {
    const List rows = waiting(seat);
    due.insert(due.end(), rows.begin(), rows.end() - std::min<int64_t>(left, std::ssize(rows)));
  }
  write(due);
  for (const int32_t seat : seats) written(seat, left);
}

void PendingRows::add(const Rows& rows, const int32_t* next, View<2> data, const Write& write) {
  List due;
  const auto given = [&](int32_t b, int64_t i) {
    const int64_t token = rows.start[b] + i;
    return Row{.seat = rows.seat[b], .next = next[token], .position = rows.first[b] + i, .data = data.f32(token)};
  };
  for (int32_t b = 0; b < rows.count; b++) {
    const int32_t seat = rows.seat[b];
    const int64_t length = rows.length(b);
    if (seat < 0 || length == 0) continue;
    Header h = header(seat);
    if (h.written == h.end) h.count = 0;
    const bool hole = h.end != rows.first[b];
    if (hole) h = {.end = -1};
    if (!hole && h.count + length > kRows) {  // those that have been written make room
      const int64_t gone = h.count - (h.end - h.written);
      std::memmove(row(seat, 0), row(seat, gone), static_cast<size_t>((h.count - gone) * (width_ + 1)) * sizeof(float));
      h.count -= gone;
    }
    set(seat, h);
    if (hole || h.count + length <= kRows) continue;
    const List before = waiting(seat);
    due.insert(due.end(), before.begin(), before.end());
    for (int64_t i = 0; i + 1 < length; i++) due.push_back(given(b, i));
  }
  if (!due.empty()) write(due);
  for (int32_t b = 0; b < rows.count; b++) {
    const int32_t seat = rows.seat[b];
    const int64_t length = rows.length(b);
    if (seat < 0 || length == 0) continue;
    Header h = header(seat);
    if (h.end != rows.first[b]) continue;
    const bool full = h.count + length > kRows;
    const int64_t first = full ? length - 1 : 0;  // of the new rows that wait
    if (full) h.count = 0, h.written = rows.first[b] + first;
    for (int64_t i = first; i < length; i++) keep(seat, h.count++, given(b, i));
    h.end = rows.first[b] + length;
    set(seat, h);
  }
}

}  // namespace deltaring
