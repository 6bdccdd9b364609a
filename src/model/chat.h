// The chat format of a model: messages to the text of its prompt.
#pragma once
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace deltaring {

struct ChatMessage {
  std::string role;  // system, user, assistant, tool
  std::string content;
};

enum class Thinking { template_default, on, off };

// ChatML as the templates of the Qwen family write it. No Jinja is run: what varies between these templates is read off
// their text. Text-only chats; tool definitions, tool calls and images are not rendered.
class ChatFormat {
 public:
  // Uses chat_template.jinja of `model_folder`, else chat_template of tokenizer_config.json. Throws Error(not_found)
  // when there is neither, Error(corrupt) for a tokenizer_config.json that is no JSON, whichever is used.
  static ChatFormat load(const std::filesystem::path& model_folder);
  // Throws Error(unsupported) for a template that is not ChatML, or whose thinking switch it does not know. `where`
  // names the template in messages.
  static ChatFormat parse(std::string_view chat_template, const std::string& where);

  // The prompt: all turns and the start of the assistant's next one. An assistant turn before the last user query loses
  // its think block where the template drops it. Throws Error(invalid_argument) for an unknown role, a system message
  // that is not first, no user message, and a `thinking` that the template does not offer.
  std::string render(std::span<const ChatMessage> messages, Thinking thinking = Thinking::template_default) const;

  // Whether the generated text starts inside a think block. Throws as render does.
  bool starts_thinking(Thinking thinking = Thinking::template_default) const;

 private:
  enum class History {
    plain,    // assistant turns get no think block
    dropped,  // they get one only after the last user query
    kept,     // all get one
  };

  const std::string& generation_prompt(Thinking thinking) const;
  void append_assistant(std::string content, bool with_block, std::string& prompt) const;

  std::string where_;
  // What follows `<|im_start|>assistant\n`; nothing where the template does not offer it.
  std::optional<std::string> thinking_on_, thinking_off_;
  std::string thinking_default_;
  History history_ = History::plain;
  bool trims_ = false;             // content loses its outer white space
  bool splits_reasoning_ = false;  // a think block inside of `content` is taken apart
  bool wraps_tool_ = false;        // tool results share a user turn, each in <tool_response>
};

}  // namespace deltaring
