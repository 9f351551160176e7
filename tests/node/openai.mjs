// The official OpenAI client: each chunk of a stream, or the one answer, as it hands them out.
import OpenAI from "openai";

export async function ask({ url, call, body, headers, signal, seen }) {
  // A time limit of its own, shorter than the silence after which the report gives up.
  const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0, timeout: 1500 });
  const options = { headers, signal };
  if (call === "models") {
    for await (const model of client.models.list(options)) seen(model);
    return;
  }
  const resource = call === "chat" ? client.chat.completions : client.completions;
  const answer = await resource.create(body, options);
  if (!body.stream) {
    seen(answer);
    return;
  }
  for await (const chunk of answer) seen(chunk);
}
