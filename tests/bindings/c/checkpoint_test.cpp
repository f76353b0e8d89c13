// Checkpoints through ebb.h: what they hold, boxes of tensors, weights; what is refused.
#include <gtest/gtest.h>

#include "tests/bindings/c/small_model.h"

namespace ebb::c {
namespace {

constexpr const char* kFixtures = EBB_FIXTURES;

std::string text_of(ebb_status (*call)(ebb_checkpoint*, char**), ebb_checkpoint* checkpoint) {
  char* json = nullptr;
  EXPECT_EQ(call(checkpoint, &json), EBB_DONE) << last_message();
  std::string text = json != nullptr ? json : "";
  ebb_free(json);
  return text;
}

class CCheckpoint : public testing::Test {
 protected:
  void TearDown() override {
    ebb_checkpoint_close(weights_);
    ebb_checkpoint_close(checkpoint_);
  }
  void open(const std::string& path) {
    ASSERT_EQ(ebb_checkpoint_open(path.c_str(), &checkpoint_), EBB_DONE) << last_message();
  }
  ebb_checkpoint *checkpoint_ = nullptr, *weights_ = nullptr;
};

// The number of a tensor, by how its line begins.
std::uint32_t number_of(const std::string& about, const std::string& tensor) {
  const std::string list = about.substr(about.find("\"tensors\":["));
  const std::size_t place = list.find(tensor);
  EXPECT_NE(place, std::string::npos) << tensor << " in " << list;
  std::uint32_t number = 0;
  for (std::size_t at = list.find("[[") + 1; at != place; at = list.find(",[\"", at + 1) + 1)
    ++number;
  return number;
}

TEST_F(CCheckpoint, SaysWhatItHoldsAndGivesBoxesOfIt) {
  open(std::string(kFixtures) + "/dcp/fsdp2_w2_odd_rows_tied/data");
  const std::string about = text_of(ebb_checkpoint_about, checkpoint_);
  for (const char* const part :
       {"\"format\":\"dcp\"", "\"world\":2", "\"groups\":[", "\"values\":["})
    EXPECT_NE(about.find(part), std::string::npos) << about;
  ASSERT_EQ(ebb_checkpoint_weights(checkpoint_, &weights_), EBB_DONE) << last_message();
  const std::string weights = text_of(ebb_checkpoint_about, weights_);
  EXPECT_NE(weights.find("\"param\""), std::string::npos) << weights;
  EXPECT_EQ(weights.find("\"exp_avg\""), std::string::npos) << weights;
  // The other one goes first.
  EXPECT_EQ(ebb_checkpoint_close(checkpoint_), EBB_DONE) << last_message();
  char* json = nullptr;
  ASSERT_EQ(ebb_checkpoint_chunks(weights_, 0, &json), EBB_DONE) << last_message();
  EXPECT_EQ(std::string(json).rfind("{\"chunks\":[[\"", 0), 0u) << json;
  ebb_free(json);
}

TEST_F(CCheckpoint, ABoxIsAPartOfTheWhole) {
  open(std::string(kFixtures) + "/safetensors/all_dtypes/data");
  const std::string about = text_of(ebb_checkpoint_about, checkpoint_);
  const std::uint32_t f32 = number_of(about, "[\"f32\",\"param\"");
  std::vector<float> whole(15), box(4);
  const std::uint64_t offsets[] = {1, 2}, extents[] = {2, 2};
  const ebb_wanted wanted[] = {{f32, nullptr, nullptr, whole.data(), 60},
                               {f32, offsets, extents, box.data(), 16}};
  ASSERT_EQ(ebb_checkpoint_read(checkpoint_, wanted, 2, 0), EBB_DONE) << last_message();
  EXPECT_EQ(box, (std::vector<float>{whole[7], whole[8], whole[12], whole[13]}));
  EXPECT_NE(whole[7], whole[8]);
  EXPECT_EQ(ebb_checkpoint_read(checkpoint_, nullptr, 0, 0), EBB_DONE) << last_message();
}

TEST_F(CCheckpoint, RefusesWhatIsNotThere) {
  const auto refused = [&](ebb_status status, ebb_status wanted, const std::string& says) {
    EXPECT_EQ(status, wanted) << says;
    EXPECT_NE(last_message().find(says), std::string::npos) << last_message();
  };
  refused(ebb_checkpoint_open("/nowhere", &checkpoint_), EBB_IO, "/nowhere");
  refused(ebb_checkpoint_open(nullptr, &checkpoint_), EBB_USAGE, "path is NULL");
  refused(ebb_checkpoint_open("/nowhere", nullptr), EBB_USAGE, "checkpoint is NULL");
  const std::string torn = std::string(kFixtures) + "/dcp/bad_hole/data";
  refused(ebb_checkpoint_open(torn.c_str(), &checkpoint_), EBB_INCOMPLETE, "rows 5-8");
  open(std::string(kFixtures) + "/safetensors/all_dtypes/data");
  const std::uint32_t f32 =
      number_of(text_of(ebb_checkpoint_about, checkpoint_), "[\"f32\",\"param\"");
  std::vector<float> room(15);
  const std::uint64_t past[] = {2, 0}, two[] = {2, 5};
  const auto read = [&](const ebb_wanted& one) {
    return ebb_checkpoint_read(checkpoint_, &one, 1, 0);
  };
  refused(read({999, nullptr, nullptr, room.data(), 60}), EBB_USAGE, "tensor 999");
  refused(read({f32, nullptr, nullptr, room.data(), 56}), EBB_LAYOUT, "f32");
  refused(read({f32, past, two, room.data(), 40}), EBB_LAYOUT, "f32");
  refused(read({f32, past, nullptr, room.data(), 40}), EBB_USAGE, "and not both");
  refused(read({f32, nullptr, nullptr, nullptr, 60}), EBB_USAGE, "f32 is NULL");
  refused(ebb_checkpoint_read(checkpoint_, nullptr, 1, 0), EBB_USAGE, "wanted is NULL");
  char* json = nullptr;
  refused(ebb_checkpoint_chunks(checkpoint_, 999, &json), EBB_USAGE, "tensor 999");
  refused(ebb_checkpoint_about(checkpoint_, nullptr), EBB_USAGE, "json is NULL");
}

}  // namespace
}  // namespace ebb::c
