// Level 5: bulk copies and a persistent pipeline. One block a multiprocessor; a producer warp keeps its shared memory
// full of states and tokens that are still to come, preparers turn tokens into coefficients, and consumers, as in level
// 4, find both ready. The memory never waits. The three value heads of a key head follow each other and share k and q.
#include "window.cuh"

namespace ladder {

using namespace deltaring::cuda;

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

// Barriers in shared memory.

using Barrier = uint64_t;

__device__ inline void barrier_init(Barrier& b, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&b)), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(Barrier& b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&b)) : "memory");
}
// Arrives, and the phase also waits for `bytes` of bulk copies.
__device__ inline void barrier_expect(Barrier& b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&b)), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_wait(Barrier& b, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(&b)),
      "r"(parity)
      : "memory");
}

// Global to shared, both 16-byte aligned, a multiple of 16 bytes; counted by `b`.
__device__ inline void bulk_load(void* to, const void* from, uint32_t bytes, Barrier& b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&b))
               : "memory");
}

#endif

constexpr int kStages = 5, kItems = 4;  // states, and tokens of a key head, in flight
constexpr int kConsumers = D / 16, kTeams = 2, kPreparers = kTeams * kGroup;
constexpr int kThreads = 32 * (kConsumers + kPreparers + 1);
constexpr int kValuePitch = 2 * D + 16;

struct Item {  // a key head of a row
  alignas(128) char rows[2 * T * kPitch];
  Coefficients heads[kGroup];
};
struct Stage {  // a value head
  alignas(128) uint16_t state[D * D];
  char values[T * kValuePitch];
};
struct Shared {
  Stage stages[kStages];
  Item items[kItems];
  Barrier arrived[kItems], ready[kItems], released[kItems];  // k and q; coefficients; consumed
  Barrier full[kStages], empty[kStages];
};

// The n-th use of one of `count` slots: which, and the parity of its phase.
struct Turn {
  int slot;
  uint32_t parity;
};
__device__ __forceinline__ Turn turn(int n, int count) { return {n % count, static_cast<uint32_t>(n / count & 1)}; }

// The block's items, counted by n.
__device__ __forceinline__ int item_of(int n) { return blockIdx.x + n * gridDim.x; }

__device__ __forceinline__ void load_tokens(const Verify& p, int n, Shared& shared) {
  if (item_of(n) >= p.B * Hk) return;
  const auto [slot, parity] = turn(n, kItems);
  const int row = item_of(n) / Hk, key_head = item_of(n) % Hk, lane = threadIdx.x % 32;
  if (n >= kItems) barrier_wait(shared.released[slot], parity ^ 1);  // of the use before
  if (lane == 0) barrier_expect(shared.arrived[slot], 2 * T * D * 2);
  __syncwarp();
  if (lane < 2 * T)
    bulk_load(shared.items[slot].rows + lane * kPitch, token(p, row, lane % T, lane < T ? Hk + key_head : key_head),
              2 * D, shared.arrived[slot]);
}

__device__ __forceinline__ void produce(const Verify& p, Shared& shared) {
  const int lane = threadIdx.x % 32;
  int loads = 0;
  load_tokens(p, 0, shared);
  for (int n = 0; item_of(n) < p.B * Hk; n++) {
    load_tokens(p, n + 1, shared);  // tokens run ahead, since their coefficients take time
    const int row = item_of(n) / Hk, first = item_of(n) % Hk * kGroup;
    for (int head = first; head < first + kGroup; head++, loads++) {
      const auto [slot, parity] = turn(loads, kStages);
      Stage& stage = shared.stages[slot];
      if (loads >= kStages) barrier_wait(shared.empty[slot], parity ^ 1);
      if (lane == 0) {
        barrier_expect(shared.full[slot], sizeof stage.state + T * D * 2);
        bulk_load(stage.state, state_of(p, row, head), sizeof stage.state, shared.full[slot]);
      }
      __syncwarp();
      if (lane < T)
        bulk_load(stage.values + lane * kValuePitch, token(p, row, lane, 2 * Hk + head), 2 * D, shared.full[slot]);
    }
  }
}

// A warp a head of every kTeams-th item.
__device__ __forceinline__ void prepare_all(const Verify& p, int preparer, Shared& shared) {
  const int team = preparer / kGroup, i = preparer % kGroup, lane = threadIdx.x % 32;
  for (int n = team; item_of(n) < p.B * Hk; n += kTeams) {
    const auto [slot, parity] = turn(n, kItems);
    const int row = item_of(n) / Hk, head = item_of(n) % Hk * kGroup + i;
    barrier_wait(shared.arrived[slot], parity);
    prepare(p, row, head, shared.items[slot].rows, shared.items[slot].heads[i]);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.ready[slot]);
    append(p, row, head, lane, 32);
  }
}

__device__ __forceinline__ void consume_all(const Verify& p, int stripe, Shared& shared) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int loads = 0;
  for (int n = 0; item_of(n) < p.B * Hk; n++) {
    const auto [item, item_parity] = turn(n, kItems);
    const int row = item_of(n) / Hk, first = item_of(n) % Hk * kGroup;
    barrier_wait(shared.ready[item], item_parity);
    for (int i = 0; i < kGroup; i++, loads++) {
      const auto [slot, parity] = turn(loads, kStages);
      const Stage& stage = shared.stages[slot];
      barrier_wait(shared.full[slot], parity);
      const auto* state = reinterpret_cast<const uint4*>(stage.state + (16 * stripe + 2 * g) * D);
      Products products;
#pragma unroll
      for (int c = 0; c < D / 32; c++)
        products.add(state[4 * c + t], state[D / 8 + 4 * c + t], shared.items[item].rows, c);
      uint32_t values[2];
#pragma unroll
      for (int e = 0; e < 2; e++)
        values[e] = reinterpret_cast<const uint32_t*>(stage.values + (2 * t + e) * kValuePitch)[8 * stripe + g];
      __syncwarp();
      if (lane == 0) barrier_arrive(shared.empty[slot]);
      finish(p, row, first + i, stripe, shared.items[item].heads[i], products, values);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.released[item]);
  }
}

__global__ __launch_bounds__(kThreads, 1) void pipeline(const __grid_constant__ Verify p) {
  extern __shared__ __align__(128) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kItems; i++) {
      barrier_init(shared.arrived[i], 1);
      barrier_init(shared.ready[i], kGroup);
      barrier_init(shared.released[i], kConsumers);
    }
    for (int i = 0; i < kStages; i++) barrier_init(shared.full[i], 1), barrier_init(shared.empty[i], kConsumers);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp < kConsumers) {
    consume_all(p, warp, shared);
  } else if (warp < kConsumers + kPreparers) {
    prepare_all(p, warp - kConsumers, shared);
  } else {
    produce(p, shared);
  }
}

void launch(const Verify& p, cudaStream_t stream) {
  static const int blocks = [] {
    int processors = 0;
    ok(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
    ok(cudaFuncSetAttribute(pipeline, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)), "shared memory");
    return processors;
  }();
  pipeline<<<std::min(blocks, p.B * Hk), kThreads, sizeof(Shared), stream>>>(p);
  ok(cudaGetLastError(), "pipeline");
}

}  // namespace ladder

int main(int argc, char** argv) { return ladder::run("5 pipeline", ladder::launch, argc, argv, 90); }
