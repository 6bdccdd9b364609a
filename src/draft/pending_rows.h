// Rows of committed positions that a drafter has not made its context of yet. A context is needed when drafts are
// wanted, and a pass over sixteen rows costs about what a pass over one does: so rows wait here until then.
#pragma once
#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "base/scratch.h"
#include "draft/drafter.h"
#include "state/pool.h"

namespace deltaring {

// Of each seat the newest rows, in order; all before them are in the context. As side state they go where the seat
// goes, and a rewind drops those behind it. What a row becomes is a function of the row, so when it is written does not
// show.
class PendingRows final : private SideState {
 public:
  static constexpr int64_t kRows = 16;  // that wait at most, a seat

  // The row of one position: what the target said there, and the id of the token behind it.
  struct Row {
    int32_t seat, next;
    int64_t position;
    const float* data;  // [width]
  };
  using List = std::vector<Row>;                            // by seat, ascending positions
  using Write = std::function<void(std::span<const Row>)>;  // makes context of rows
  // A list, or as much of it as fits into one pass.
  using Pass = std::function<void(std::span<const Row>, const Rows&)>;
  static void in_passes(std::span<const Row> list, int64_t most, const Pass& pass);

  static int64_t planned_bytes(int64_t seats, int64_t width) { return scratch_bytes(scratch(seats, width)); }

  // name: of the context, in messages of the pool, which outlives this.
  PendingRows(StatePool& pool, const char* name, int64_t width);
  ~PendingRows() override;
  PendingRows(const PendingRows&) = delete;

  // Takes committed positions over. Where they are more than may wait all but the newest are written, with those that
  // wait. Behind a step that did not deliver its rows there is a hole: the seat has no context until a new request.
  void add(const Rows& rows, const int32_t* next, View<2> data, const Write& write);

  // Whether the positions before pos have been delivered, and no others.
  bool reach(int32_t seat, int64_t pos) const { return seat >= 0 && header(seat).end == pos && pos > 0; }
  List waiting(int32_t seat) const;
  // The newest position's row, also when it has been written; empty behind a rewind further back than what waited.
  List newest(int32_t seat) const;
  void written(int32_t seat, int64_t left = 0);  // the seat's rows but the newest `left` are in the context
  // Writes what waits but the newest `left` rows of each seat.
  void catch_up(std::span<const int32_t> seats, int64_t left, const Write& write);

 private:
  // Positions [end - count, end) lie in rows 0, 1, ..; those before `written` are in the context.
  struct Header {
    int64_t end, written, count;
  };
  static constexpr int64_t kHeader = sizeof(Header) / sizeof(float);
  static ScratchList<PendingRows> scratch(int64_t seats, int64_t width) {
    return {{&PendingRows::seats_, seats, kHeader + kRows * (width + 1)}};
  }

  Header header(int32_t seat) const;
  void set(int32_t seat, const Header& header);
  float* row(int32_t seat, int64_t i) const { return seats_.f32(seat, kHeader + i * (width_ + 1)); }
  void keep(int32_t seat, int64_t i, const Row& row);
  Row at(int32_t seat, int64_t position, const Header& header) const;

  const char* name() const override { return name_; }
  void clear(int32_t seat) override { std::ranges::fill(bytes(seat), std::byte{0}); }  // rows too: exports take them
  void move(int32_t seat, Cursor from, Cursor to) override;
  std::span<std::byte> bytes(int32_t seat) override;
  bool possible(int32_t seat, Cursor cursor) override;

  StatePool& pool_;
  const char* const name_;
  const int64_t width_;
  Arena arena_;
  View<2> seats_;  // [seats, a header and rows of the id and the data]
};

}  // namespace deltaring
