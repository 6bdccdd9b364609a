// Seats as bytes. Nothing is read on the host, so that copies become part of a graph.
#include <algorithm>

#include "backends/cuda/launch.h"
#include "backends/cuda/ops.h"

namespace deltaring::cuda {

namespace {

constexpr int kSeatThreads = 256, kSeatWarps = kSeatThreads / 32;
constexpr int kInFlight = 4;  // words a thread has on their way
constexpr int64_t kTile = 16 * kInFlight * kSeatThreads;
constexpr int kBlocksPerProcessor = 8;

// Thread `i` of `threads` moves its share of `count` words.
template <class Word>
__device__ __forceinline__ void copy_words(void* to, const void* from, int64_t count, int i, int threads) {
  for (int64_t first = i; first < count; first += kInFlight * threads) {
    Word words[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; j++)
      if (first + j * threads < count) words[j] = static_cast<const Word*>(from)[first + j * threads];
#pragma unroll
    for (int j = 0; j < kInFlight; j++)
      if (first + j * threads < count) static_cast<Word*>(to)[first + j * threads] = words[j];
  }
}

__device__ __forceinline__ void copy_bytes(void* to, const void* from, int64_t bytes, int i, int threads) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  if (bits % 16 == 0) return copy_words<uint4>(to, from, bytes / 16, i, threads);
  if (bits % 4 == 0) return copy_words<uint32_t>(to, from, bytes / 4, i, threads);
  copy_words<uint8_t>(to, from, bytes, i, threads);
}

// The tensors of a launch and their tiles: those of tensor i are [first[i], first[i + 1]). A launch has 32,764 bytes of
// parameters; few tensors do not pay for many.
template <int kMost>
struct Tensors {
  int count = 0;
  int64_t seats = 0;
  int64_t first[kMost + 1] = {};
  int64_t pitch[kMost], bytes[kMost];
  std::byte* data[kMost];

  __host__ __device__ int64_t tiles() const { return first[count]; }
};
constexpr int kFewTensors = 100, kMostTensors = 1000;
static_assert(sizeof(Tensors<kFewTensors>) + 32 <= 4096 && sizeof(Tensors<kMostTensors>) + 32 <= 32764);

template <int kMost>
__device__ __forceinline__ void copy_tile(const Tensors<kMost>& t, int64_t tile, int32_t from, int32_t to) {
  int low = 0, high = t.count;  // the tensor is in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (t.first[middle] <= tile ? low : high) = middle;
  }
  const int64_t at = (tile - t.first[low]) * kTile;
  std::byte* const data = t.data[low] + at;
  copy_bytes(data + to * t.pitch[low], data + from * t.pitch[low], min(kTile, t.bytes[low] - at), threadIdx.x,
             kSeatThreads);
}

// Blocks take the tiles of all live pairs in turns.
template <int kMost>
__global__ __launch_bounds__(kSeatThreads) void copy_kernel(const __grid_constant__ Tensors<kMost> t, int32_t count,
                                                            const int32_t* from, const int32_t* to) {
  int64_t tile = blockIdx.x;
  for (int32_t i = 0; i < count; i++) {
    const int32_t a = from[i], b = to[i];
    if (a < 0 || b < 0 || a == b || a >= t.seats || b >= t.seats) continue;
    for (; tile < t.tiles(); tile += gridDim.x) copy_tile(t, tile, a, b);
    tile -= t.tiles();
  }
}

template <int kMost>
void launch_copy(const SeatCopyArgs& a, std::span<const SeatTensor> some, CudaStream& stream) {
  Tensors<kMost> t;
  t.seats = some[0].seats;
  for (const SeatTensor& tensor : some) {
    if (tensor.bytes == 0) continue;
    t.data[t.count] = static_cast<std::byte*>(tensor.data), t.pitch[t.count] = tensor.pitch;
    t.bytes[t.count] = tensor.bytes, t.count++;
    t.first[t.count] = t.first[t.count - 1] + (tensor.bytes + kTile - 1) / kTile;
  }
  if (t.count == 0) return;
  const int64_t most = int64_t{kBlocksPerProcessor} * stream.limits().multiprocessors;
  const unsigned blocks = grid_of("seat_copy", std::min(a.count * t.tiles(), most));
  copy_kernel<kMost><<<blocks, kSeatThreads, 0, stream.get()>>>(t, a.count, a.from, a.to);
  check_launch("seat_copy");
}

// Where a seat's parts lie in each layer of a launch.
constexpr int kMostLayers = 64;
struct PackParams {
  LiveSeat live;
  bool unpack;
  int64_t tiles;  // of the checkpoint
  std::byte* packed;
  std::byte* parts[kMostLayers][kSeatParts];
};
static_assert(sizeof(PackParams) <= 4096);

__device__ __forceinline__ void move_bytes(const PackParams& p, int layer, SeatPiece piece, int i, int threads) {
  std::byte* pools = p.parts[layer][static_cast<int>(piece.part)] + piece.inside;
  std::byte* packed = p.packed + layer * p.live.bytes() + piece.at;
  copy_bytes(p.unpack ? pools : packed, p.unpack ? packed : pools, piece.bytes, i, threads);
}

// Grid: of each layer the tiles of the checkpoint, then the other pieces, a warp each.
__global__ __launch_bounds__(kSeatThreads) void pack_kernel(const __grid_constant__ PackParams p) {
  const int layer = blockIdx.y;
  if (blockIdx.x < p.tiles) {
    SeatPiece piece = p.live.piece(0);
    const int64_t at = blockIdx.x * kTile;
    piece.inside = piece.at = at, piece.bytes = min(kTile, piece.bytes - at);
    return move_bytes(p, layer, piece, threadIdx.x, kSeatThreads);
  }
  const int64_t i = 1 + (blockIdx.x - p.tiles) * kSeatWarps + threadIdx.x / 32;
  if (i < p.live.pieces()) move_bytes(p, layer, p.live.piece(i), threadIdx.x % 32, 32);
}

void launch_pack(const char* op, const SeatPackArgs& a, bool unpack, CudaStream& stream) {
  check(op, a);
  if (a.size == 0) return;
  PackParams p{.live = live_seat(a.layers[0], a.cursor, a.taps), .unpack = unpack};
  p.tiles = (p.live.checkpoint + kTile - 1) / kTile;
  const unsigned blocks = grid_of(op, p.tiles + (p.live.pieces() - 1 + kSeatWarps - 1) / kSeatWarps);
  for (size_t first = 0; first < a.layers.size(); first += kMostLayers) {
    const auto some = a.layers.subspan(first, std::min<size_t>(kMostLayers, a.layers.size() - first));
    for (size_t i = 0; i < some.size(); i++)
      for (int part = 0; part < kSeatParts; part++)
        p.parts[i][part] = part_of(some[i], static_cast<SeatPart>(part)).seat(a.seat);
    p.packed = a.bytes + static_cast<int64_t>(first) * p.live.bytes();
    pack_kernel<<<dim3(blocks, static_cast<unsigned>(some.size())), kSeatThreads, 0, stream.get()>>>(p);
    check_launch(op);
  }
}

}  // namespace

// Bytes of a pair: its seat in every tensor in and out. One launch for every kMostTensors tensors.
void seat_copy(const SeatCopyArgs& args, Stream& stream) {
  check_tensors(args);
  if (args.count == 0) return;
  for (size_t first = 0; first < args.tensors.size(); first += kMostTensors) {
    const auto some = args.tensors.subspan(first, std::min<size_t>(kMostTensors, args.tensors.size() - first));
    const auto launch = some.size() <= kFewTensors ? launch_copy<kFewTensors> : launch_copy<kMostTensors>;
    launch(args, some, cuda_stream(stream));
  }
}

// Bytes: the live bytes in and out. One launch for every kMostLayers layers.
void seat_pack(const SeatPackArgs& args, Stream& stream) { launch_pack("seat_pack", args, false, cuda_stream(stream)); }
void seat_unpack(const SeatPackArgs& args, Stream& stream) {
  launch_pack("seat_unpack", args, true, cuda_stream(stream));
}

}  // namespace deltaring::cuda
