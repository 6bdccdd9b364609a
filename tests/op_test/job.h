// A case with memory: what one call of an op needs, and how the result is judged.
#pragma once
#include <cmath>
#include <memory>
#include <optional>
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

// Relative error of finite numbers in the Frobenius norm.
class RelativeError {
 public:
  void add(double got, double want) {
    if (!std::isfinite(got) || !std::isfinite(want)) return;
    error_ += (got - want) * (got - want), size_ += want * want;
  }
  // Nothing of no numbers, or of zeros.
  std::optional<double> value() const { return size_ > 0 ? std::optional(std::sqrt(error_ / size_)) : std::nullopt; }

 private:
  double error_ = 0, size_ = 0;
};

class Job {
 public:
  virtual ~Job() = default;
  // The op, once; may be repeated. Throws Error where the backend refuses.
  virtual void call() = 0;
  // What does not hold after the first call: results against the float64 oracle, fences, poison, foreign bytes.
  virtual void judge(Failures& failures) = 0;
  // How far from the oracle what it judged is, where that is stored in float32: outputs, checkpoints.
  virtual RelativeError out_error() const { return {}; }
  virtual RelativeError state_error() const { return {}; }
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
