// A case with memory: what one call of an op needs, and how the result is judged.
#pragma once
#include <memory>
#include <string>

#include "op_test/cases.h"
#include "ops/replay_layer.h"

namespace deltaring::op_test {

using replay::Failures;

// What a case runs on.
struct Machine {
  const OpTable& table;
  Stream& stream;
  replay::Device device;
};

class Job {
 public:
  virtual ~Job() = default;
  // The op, once; may be repeated. Throws Error where the backend refuses.
  virtual void call() = 0;
  // What does not hold after the first call: results against the float64 oracle, fences, poison, foreign bytes.
  virtual void judge(Failures& failures) = 0;
  // Bytes that the contract has a call move: everything read once, everything written once.
  virtual int64_t bytes() const = 0;
};

// The makers of the ops. Inputs are a function of the case and the seed.
std::unique_ptr<Job> make_gates_job(const Case& c, const Machine& machine, uint64_t seed);
std::unique_ptr<Job> make_gdn_job(const Case& c, const Machine& machine, uint64_t seed);
std::unique_ptr<Job> make_conv_job(const Case& c, const Machine& machine, uint64_t seed);
std::unique_ptr<Job> make_snapshot_verify_job(const Case& c, const Machine& machine, uint64_t seed);
std::unique_ptr<Job> make_snapshot_commit_job(const Case& c, const Machine& machine, uint64_t seed);
std::unique_ptr<Job> make_seat_copy_job(const Case& c, const Machine& machine, uint64_t seed);
std::unique_ptr<Job> make_seat_pack_job(const Case& c, const Machine& machine, uint64_t seed);
std::unique_ptr<Job> make_linear_job(const Case& c, const Machine& machine, uint64_t seed);
std::unique_ptr<Job> make_moe_route_job(const Case& c, const Machine& machine, uint64_t seed);
std::unique_ptr<Job> make_moe_experts_job(const Case& c, const Machine& machine, uint64_t seed);

}  // namespace deltaring::op_test
