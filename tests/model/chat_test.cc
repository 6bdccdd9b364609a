// Golden prompts are renderings by the Python package jinja2 3.1 (trim_blocks, lstrip_blocks) of the same templates.
#include "model/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/tokenizer.h"

namespace deltaring {
namespace {

using testing::HasSubstr;
using Chat = std::vector<ChatMessage>;

const std::string kTiny = DELTARING_SOURCE_DIR "/models/tiny-py";

constexpr const char* kThinkingTemplate = R"jinja({%- set ns = namespace(last_query_index=-1) %}
{%- for m in messages %}
    {%- set content = m.content | trim %}
    {%- if m.role == 'user' and not (content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}
        {%- set ns.last_query_index = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set content = m.content | trim %}
    {%- if m.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].split('<think>')[-1] | trim %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<think>\n' + reasoning + '\n</think>\n\n' }}
        {%- endif %}
        {{- content + '<|im_end|>\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- else %}
        {{- '<think>\n' }}
    {%- endif %}
{%- endif %}
)jinja";

constexpr const char* kInstructTemplate = R"jinja({%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)jinja";

ChatFormat thinking_format() { return ChatFormat::parse(kThinkingTemplate, "thinking"); }
ChatFormat instruct_format() { return ChatFormat::parse(kInstructTemplate, "instruct"); }

const Chat kPlain = {{"system", " Be brief. "},
                     {"user", " \t\u3000 hi \037\u00a0\u2028\n\302\205"},
                     {"assistant", "<think>\nhm\n</think>\n\n  Hello!  "},
                     {"user", "ok\n"}};
const Chat kTools = {{"user", "Time?"},
                     {"assistant", "<think>\n look </think>\n<tool_call>now</tool_call>"},
                     {"tool", " 12:00\n"},
                     {"tool", "13:00"},
                     {"assistant", "<think>two</think> It is <think>x</think>\n\n noon."},
                     {"user", "<tool_response>\nlate\n</tool_response>"},
                     {"assistant", "done"}};
const Chat kUnopened = {{"user", "a"}, {"assistant", "thought\n</think>\n\nanswer"}};
const Chat kEmpty = {{"user", ""}, {"assistant", ""}};

TEST(ChatFormat, RendersLikeTheTemplateOfTinyPy) {
  const ChatFormat format = ChatFormat::load(kTiny);
  EXPECT_EQ(format.render(kPlain),
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nhi<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nhm\n</think>\n\n  Hello!<|im_end|>\n"
            "<|im_start|>user\nok<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(format.render(kTools),
            "<|im_start|>user\nTime?<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n look </think>\n<tool_call>now</tool_call><|im_end|>\n"
            "<|im_start|>tool\n12:00<|im_end|>\n"
            "<|im_start|>tool\n13:00<|im_end|>\n"
            "<|im_start|>assistant\n<think>two</think> It is <think>x</think>\n\n noon.<|im_end|>\n"
            "<|im_start|>user\n<tool_response>\nlate\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\ndone<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(format.render(kUnopened),
            "<|im_start|>user\na<|im_end|>\n"
            "<|im_start|>assistant\nthought\n</think>\n\nanswer<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(format.render(kEmpty),
            "<|im_start|>user\n<|im_end|>\n"
            "<|im_start|>assistant\n<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

TEST(ChatFormat, RendersLikeATemplateWithThinking) {
  const ChatFormat format = thinking_format();
  EXPECT_EQ(format.render(kPlain),
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nhi<|im_end|>\n"
            "<|im_start|>assistant\n  Hello!<|im_end|>\n"
            "<|im_start|>user\nok<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(
      format.render(kTools),
      "<|im_start|>user\nTime?<|im_end|>\n"
      "<|im_start|>assistant\n<think>\nlook\n</think>\n\n<tool_call>now</tool_call><|im_end|>\n"
      "<|im_start|>user\n<tool_response>\n12:00\n</tool_response>\n<tool_response>\n13:00\n</tool_response><|im_end|>\n"
      "<|im_start|>assistant\n<think>\ntwo\n</think>\n\n noon.<|im_end|>\n"
      "<|im_start|>user\n<tool_response>\nlate\n</tool_response><|im_end|>\n"
      "<|im_start|>assistant\n<think>\n\n</think>\n\ndone<|im_end|>\n"
      "<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(format.render(kUnopened),
            "<|im_start|>user\na<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nthought\n</think>\n\nanswer<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(format.render(kEmpty),
            "<|im_start|>user\n<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n");
}

TEST(ChatFormat, RendersLikeATemplateWithoutThinking) {
  const ChatFormat format = instruct_format();
  EXPECT_EQ(format.render(kPlain),
            "<|im_start|>system\n Be brief. <|im_end|>\n"
            "<|im_start|>user\n \t\u3000 hi \037\u00a0\u2028\n\302\205<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nhm\n</think>\n\n  Hello!  <|im_end|>\n"
            "<|im_start|>user\nok\n<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(format.render(kTools),
            "<|im_start|>user\nTime?<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n look </think>\n<tool_call>now</tool_call><|im_end|>\n"
            "<|im_start|>tool\n 12:00\n<|im_end|>\n"
            "<|im_start|>tool\n13:00<|im_end|>\n"
            "<|im_start|>assistant\n<think>two</think> It is <think>x</think>\n\n noon.<|im_end|>\n"
            "<|im_start|>user\n<tool_response>\nlate\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\ndone<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(format.render(kUnopened),
            "<|im_start|>user\na<|im_end|>\n"
            "<|im_start|>assistant\nthought\n</think>\n\nanswer<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(format.render(kEmpty),
            "<|im_start|>user\n<|im_end|>\n"
            "<|im_start|>assistant\n<|im_end|>\n"
            "<|im_start|>assistant\n");
}

const Chat kAsk = {{"user", "x"}};
const std::string kAsked = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n";

void expect_error(const std::function<void()>& work, ErrorKind kind, const std::string& part) {
  try {
    work();
    ADD_FAILURE() << "accepted, although it should have said: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

void expect_refused(const ChatFormat& format, Thinking thinking, const std::string& part) {
  expect_error([&] { format.render(kAsk, thinking); }, ErrorKind::invalid_argument, part);
  expect_error([&] { format.starts_thinking(thinking); }, ErrorKind::invalid_argument, part);
}

TEST(ChatFormat, SwitchesThinkingWhereTheTemplateCan) {
  const ChatFormat format = thinking_format();
  EXPECT_EQ(format.render(kAsk), kAsked + "<think>\n");
  EXPECT_EQ(format.render(kAsk, Thinking::on), kAsked + "<think>\n");
  EXPECT_EQ(format.render(kAsk, Thinking::off), kAsked + "<think>\n\n</think>\n\n");
  EXPECT_TRUE(format.starts_thinking());
  EXPECT_FALSE(format.starts_thinking(Thinking::off));
}

TEST(ChatFormat, ThinksOnlyOnRequestWhereTheTemplateSaysSo) {
  std::string text = kThinkingTemplate;
  text.replace(text.find("enable_thinking is false"), 24, "enable_thinking is true ");
  const size_t closed = text.find(R"('<think>\n\n</think>\n\n')", text.find("add_generation_prompt"));
  text.replace(closed, 25, R"('<think>\n')");
  text.replace(text.rfind(R"('<think>\n')"), 11, R"('<think>\n\n</think>\n\n')");
  const ChatFormat format = ChatFormat::parse(text, "small");
  EXPECT_EQ(format.render(kAsk), kAsked + "<think>\n\n</think>\n\n");
  EXPECT_EQ(format.render(kAsk, Thinking::on), kAsked + "<think>\n");
  EXPECT_FALSE(format.starts_thinking());
}

TEST(ChatFormat, RefusesASwitchThatTheTemplateLacks) {
  const ChatFormat tiny = ChatFormat::load(kTiny);
  EXPECT_EQ(tiny.render(kAsk, Thinking::off), kAsked + "<think>\n\n</think>\n\n");
  expect_refused(tiny, Thinking::on, "offers the template's default and off");
  expect_refused(instruct_format(), Thinking::on, "cannot turn thinking on");
  expect_refused(instruct_format(), Thinking::off, "cannot turn thinking off");
  const ChatFormat always = ChatFormat::parse(R"({{ '<|im_start|><|im_end|>' }}{% if add_generation_prompt %})"
                                              R"({{ '<|im_start|>assistant\n<think>\n' }}{% endif %})",
                                              "always");
  EXPECT_TRUE(always.starts_thinking());
  expect_refused(always, Thinking::off, "offers the template's default and on");
}

TEST(ChatFormat, KeepsAllThinkBlocksWhereTheTemplatePreservesThem) {
  std::string text = kThinkingTemplate;
  text.replace(text.find("{%- if loop.index0 >"), 20, "{%- if preserve_thinking is not false or loop.index0 >");
  EXPECT_EQ(ChatFormat::parse(text, "keeps")
                .render(Chat{{"user", "a"}, {"assistant", "<think>\nb\n</think>\n\nc"}, {"user", "d"}}),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\nb\n</think>\n\nc<|im_end|>\n"
            "<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\n<think>\n");
}

TEST(ChatFormat, RefusesChatsThatTheTemplatesRaiseOn) {
  const ChatFormat format = thinking_format();
  const auto render = [&](Chat chat) { return [&format, chat] { format.render(chat); }; };
  const auto kind = ErrorKind::invalid_argument;
  expect_error(render({}), kind, "none of the user");
  expect_error(render({{"system", "a"}, {"assistant", "b"}}), kind, "none of the user");
  expect_error(render({{"user", "<tool_response>\nx\n</tool_response>"}}), kind, "none of the user");
  expect_error(render({{"user", "a"}, {"system", "b"}}), kind, "only message 0");
  expect_error(render({{"system", "a"}, {"system", "b"}, {"user", "c"}}), kind, "only message 0");
  expect_error(render({{"user", "a"}, {"robot", "b"}}), kind, "message 1 has the role robot");
}

TEST(ChatFormat, RefusesTemplatesItCannotRender) {
  const auto parse = [](std::string text) { return [text] { ChatFormat::parse(text, "some.jinja"); }; };
  expect_error(parse("[INST] {{ content }} [/INST]"), ErrorKind::unsupported, "--prompt without --chat");
  expect_error(parse("<|im_start|>"), ErrorKind::unsupported, "some.jinja is not ChatML");
  std::string text = kThinkingTemplate;
  text.replace(text.find("enable_thinking is false"), 24, "(not enable_thinking)");
  expect_error(parse(text), ErrorKind::unsupported, "enable_thinking");
  expect_error(parse(std::string(kThinkingTemplate) + "{{ reasoning_effort|default('xhigh') }}"),
               ErrorKind::unsupported, "reasoning_effort");
}

// A folder of its own that goes away with the test.
class ChatFolder : public testing::Test {
 protected:
  ChatFolder() { std::filesystem::create_directories(folder_); }
  ~ChatFolder() override { std::filesystem::remove_all(folder_); }

  void write(const char* name, const std::string& text) const { std::ofstream(folder_ / name) << text; }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("deltaring_chat_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(ChatFolder, TheJinjaFileComesBeforeTheConfig) {
  write("tokenizer_config.json", R"({"chat_template": "<|im_start|><|im_end|>"})");
  EXPECT_EQ(ChatFormat::load(folder_).render(kAsk), kAsked);
  write("chat_template.jinja", kThinkingTemplate);
  EXPECT_EQ(ChatFormat::load(folder_).render(kAsk), kAsked + "<think>\n");
}

TEST_F(ChatFolder, NoTemplateIsNotFound) {
  const auto load = [this] { ChatFormat::load(folder_); };
  expect_error(load, ErrorKind::not_found, "--prompt without --chat");
  write("tokenizer_config.json", R"({"chat_template": null})");
  expect_error(load, ErrorKind::not_found, "--prompt without --chat");
  write("tokenizer_config.json", R"({"chat_template": 5})");
  expect_error(load, ErrorKind::corrupt, "chat_template is 5");
  write("tokenizer_config.json", "{");
  expect_error(load, ErrorKind::corrupt, "tokenizer_config.json");
}

// The prompts that the shipped model was trained on.
TEST(ChatFormat, PromptsOfTinyPyTokenizeAsInItsVectors) {
  const Tokenizer tokenizer = Tokenizer::load(kTiny + "/tokenizer.json");
  const Chat chat = {{"user", "Python function get_type: Return the type of the symbol table."}};
  const std::vector<int32_t> ids = {4065, 616, 198,  1120, 506,  711, 1101, 25,  890, 283,  666, 355,  283, 299,
                                    3463, 576, 3185, 13,   4066, 198, 4065, 675, 198, 4088, 265, 4089, 265};
  EXPECT_EQ(tokenizer.encode(ChatFormat::load(kTiny).render(chat)), ids);
}

}  // namespace
}  // namespace deltaring
