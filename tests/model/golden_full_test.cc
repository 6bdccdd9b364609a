// The trained model through the double-precision backend: slow, and the proof that the specification is Hugging Face's.
#include <gtest/gtest.h>

#include "support/golden.h"

namespace deltaring::test {
namespace {

TEST(GoldenReference, TinyLogits) { check_logits("reference", "tiny-py", "models/tiny-py", 1); }
TEST(GoldenReference, TinyMtp) { check_mtp("reference", "tiny-py", "models/tiny-py"); }

}  // namespace
}  // namespace deltaring::test
