#include "model/chat.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/json_fields.h"

namespace deltaring {

namespace {

constexpr std::string_view kThinkStart = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kOpenBlock = "<think>\n", kClosedBlock = "<think>\n\n</think>\n\n";
// The same inside of a string of a template, where a line break is written as an escape.
constexpr std::string_view kOpenBlockSource = R"(<think>\n)", kClosedBlockSource = R"(<think>\n\n</think>\n\n)";

// What Python's str.strip() removes.
constexpr std::array<std::string_view, 29> kWhiteSpace = {
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

std::string_view strip(std::string_view text) {
  const auto at_start = [&](std::string_view space) { return text.starts_with(space); };
  const auto at_end = [&](std::string_view space) { return text.ends_with(space); };
  auto space = kWhiteSpace.begin();
  while ((space = std::find_if(kWhiteSpace.begin(), kWhiteSpace.end(), at_start)) != kWhiteSpace.end()) {
    text.remove_prefix(space->size());
  }
  while ((space = std::find_if(kWhiteSpace.begin(), kWhiteSpace.end(), at_end)) != kWhiteSpace.end()) {
    text.remove_suffix(space->size());
  }
  return text;
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// A tool result that came as a user message: no query of the user.
bool is_tool_response(std::string_view content) {
  return content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
}

// Checks the order of the turns. Returns the last message that is a query of the user.
size_t last_query(std::span<const ChatMessage> messages) {
  size_t last = messages.size();
  for (size_t i = 0; i < messages.size(); i++) {
    const auto& [role, content] = messages[i];
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      fail(ErrorKind::invalid_argument, "message {} has the role {}; roles are system, user, assistant, tool", i,
           shown(role));
    }
    if (role == "system" && i > 0) {
      fail(ErrorKind::invalid_argument, "message {} is a system message; only message 0 can be one", i);
    }
    if (role == "user" && !is_tool_response(strip(content))) last = i;
  }
  if (last == messages.size()) {
    fail(ErrorKind::invalid_argument, "a chat of {} messages has none of the user; at least one is needed", last);
  }
  return last;
}

constexpr const char* kWithoutChat = "--prompt without --chat works with any model";

}  // namespace

ChatFormat ChatFormat::load(const std::filesystem::path& model_folder) {
  const auto jinja = model_folder / "chat_template.jinja", config = model_folder / "tokenizer_config.json";
  // Read even where the other file goes first: one that is cut says that the folder is not whole.
  nlohmann::json root = nlohmann::json::object();
  if (std::filesystem::exists(config)) root = parse_json(read_text(config), config.string());
  if (std::filesystem::exists(jinja)) return parse(read_text(jinja), jinja.string());
  const std::string text = JsonFields(root, config.string()).text_or("chat_template", "");
  if (!text.empty()) return parse(text, config.string() + ": chat_template");
  fail(ErrorKind::not_found,
       "{} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); {}",
       model_folder.string(), kWithoutChat);
}

ChatFormat ChatFormat::parse(std::string_view text, const std::string& where) {
  if (!has(text, "<|im_start|>") || !has(text, "<|im_end|>")) {
    fail(ErrorKind::unsupported, "{} is not ChatML (<|im_start|>role ... <|im_end|>); {}", where, kWithoutChat);
  }
  if (has(text, "reasoning_effort") && !has(text, "reasoning_effort is defined")) {
    fail(ErrorKind::unsupported, "{} needs a reasoning_effort, which is not implemented; {}", where, kWithoutChat);
  }
  ChatFormat format;
  format.where_ = where;
  format.trims_ = has(text, "trim");
  format.wraps_tool_ = has(text, "<tool_response>");
  format.splits_reasoning_ = has(text, "split('</think>')");
  if (has(text, "last_query_index")) {
    const bool keeps = has(text, "preserve_thinking") && !has(text, "preserve_thinking is true");
    format.history_ = keeps ? History::kept : History::dropped;
  }

  // The generation prompt is the end of every template.
  const size_t start = text.rfind("add_generation_prompt");
  const std::string_view end = start == text.npos ? std::string_view() : text.substr(start);
  const bool closed = has(end, kClosedBlockSource);
  const bool open = has(end, std::string(kOpenBlockSource) + "'") || has(end, std::string(kOpenBlockSource) + "\"");
  if (has(end, "enable_thinking")) {
    const bool on_by_default = has(end, "enable_thinking is false");
    if (on_by_default == has(end, "enable_thinking is true")) {
      fail(ErrorKind::unsupported,
           "{} uses enable_thinking in an unknown way; known are `enable_thinking is false` and `enable_thinking is "
           "true`; {}",
           where, kWithoutChat);
    }
    format.thinking_on_ = open ? kOpenBlock : "";
    if (closed) format.thinking_off_ = kClosedBlock;
    if (!closed && !on_by_default) format.thinking_off_ = "";
    format.thinking_default_ = on_by_default ? *format.thinking_on_ : *format.thinking_off_;
  } else if (open) {
    format.thinking_on_ = format.thinking_default_ = kOpenBlock;
  } else if (closed) {
    format.thinking_off_ = format.thinking_default_ = kClosedBlock;
  }
  return format;
}

const std::string& ChatFormat::generation_prompt(Thinking thinking) const {
  if (thinking == Thinking::template_default) return thinking_default_;
  const bool on = thinking == Thinking::on;
  const auto& prompt = on ? thinking_on_ : thinking_off_;
  if (!prompt) {
    const char* more = thinking_on_ ? " and on" : thinking_off_ ? " and off" : "";
    fail(ErrorKind::invalid_argument, "{} cannot turn thinking {}; it offers the template's default{}", where_,
         on ? "on" : "off", more);
  }
  return *prompt;
}

bool ChatFormat::starts_thinking(Thinking thinking) const { return generation_prompt(thinking) == kOpenBlock; }

// Takes <think>reasoning</think> at the start of `content` apart and puts it back in the template's form, if at all.
void ChatFormat::append_assistant(std::string content, bool with_block, std::string& prompt) const {
  std::string reasoning;
  if (splits_reasoning_ && has(content, kThinkEnd)) {
    reasoning = content.substr(0, content.find(kThinkEnd));
    if (has(reasoning, kThinkStart)) reasoning.erase(0, reasoning.rfind(kThinkStart) + kThinkStart.size());
    reasoning = std::string(strip(reasoning));
    content.erase(0, content.rfind(kThinkEnd) + kThinkEnd.size());
    content.erase(0, content.find_first_not_of('\n'));
  }
  if (with_block) prompt += fmt::format("<think>\n{}\n</think>\n\n", reasoning);
  prompt += content;
}

std::string ChatFormat::render(std::span<const ChatMessage> messages, Thinking thinking) const {
  const std::string& start = generation_prompt(thinking);
  const auto content_of = [&](size_t i) {
    return trims_ ? strip(messages[i].content) : std::string_view(messages[i].content);
  };
  const size_t query = last_query(messages);
  std::string prompt;
  for (size_t i = 0; i < messages.size(); i++) {
    const std::string& role = messages[i].role;
    if (role == "tool" && wraps_tool_) {
      const bool first = i == 0 || messages[i - 1].role != "tool";
      const bool last = i + 1 == messages.size() || messages[i + 1].role != "tool";
      if (first) prompt += "<|im_start|>user";
      prompt += fmt::format("\n<tool_response>\n{}\n</tool_response>", content_of(i));
      if (last) prompt += "<|im_end|>\n";
      continue;
    }
    prompt += fmt::format("<|im_start|>{}\n", role);
    if (role == "assistant") {
      const bool with_block = history_ == History::kept || (history_ == History::dropped && i > query);
      append_assistant(std::string(content_of(i)), with_block, prompt);
    } else {
      prompt += content_of(i);
    }
    prompt += "<|im_end|>\n";
  }
  return prompt + "<|im_start|>assistant\n" + start;
}

}  // namespace deltaring
