// The AI SDK over its OpenAI-compatible provider: the parts of the full stream as they come.
import { Output, jsonSchema, streamText } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

globalThis.AI_SDK_LOG_WARNINGS = false;

export async function ask({ url, call, body, headers, signal, seen, describe }) {
  const provider = createOpenAICompatible({
    name: "lab",
    baseURL: url,
    headers,
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
  const more = {};
  if (body.tools) {
    more.tools = Object.fromEntries(
      body.tools.map(({ function: { name, parameters } }) => [
        name,
        { inputSchema: jsonSchema(parameters) },
      ]),
    );
    more.toolChoice = body.tool_choice;
  }
  if (body.response_format) {
    more.output = Output.object({ schema: jsonSchema(body.response_format.json_schema.schema) });
  }
  const result = streamText({
    model: call === "chat" ? provider.chatModel(body.model) : provider.completionModel(body.model),
    prompt: "hello",
    maxOutputTokens: body.max_tokens,
    maxRetries: 0,
    abortSignal: signal,
    ...more,
    onError: () => {}, // It would print; the error is a part of the stream, too.
  });
  for await (const part of result.fullStream) {
    seen(part.type === "error" ? { ...part, error: describe(part.error) } : part);
  }
}
