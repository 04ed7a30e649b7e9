// Streams a generation from Treadle. Usage:
//   node generate.mjs [--max-new-tokens N] [--temperature T] [--deadline SECONDS] [--cancel-after CHUNKS] PROMPT
// The server is that of TREADLE_ADDRESS, or 127.0.0.1:50051. Ctrl-C cancels.
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import { errorInfo } from "./error_info.mjs";

const text = { type: "string" };
const { values: flags, positionals } = parseArgs({
  options: { "max-new-tokens": text, temperature: text, deadline: text, "cancel-after": text },
  allowPositionals: true,
});

const definition = protoLoader.loadSync("treadle/v1/generation.proto", {
  includeDirs: [fileURLToPath(new URL("../../../protos", import.meta.url))],
  keepCase: true,
  longs: String,
  enums: String,
});
const { GenerationService } = grpc.loadPackageDefinition(definition).treadle.v1;
const address = process.env.TREADLE_ADDRESS ?? "127.0.0.1:50051";
const client = new GenerationService(address, grpc.credentials.createInsecure());

const request = {
  prompt: positionals.join(" "),
  stopping: { max_new_tokens: Number(flags["max-new-tokens"] ?? 32) },
};
// A field that is not there takes the server's default; 0 would not.
if (flags.temperature) request.sampling = { temperature: Number(flags.temperature) };

const call = client.generate(request, { deadline: Date.now() + 1000 * Number(flags.deadline ?? 60) });
process.once("SIGINT", () => call.cancel()); // the server stops the work at once

let result;
let chunks = 0;
call.on("data", (event) => {
  if (event.tokens) {
    process.stdout.write(event.tokens.text);
    chunks += 1;
    if (chunks === Number(flags["cancel-after"])) call.cancel();
  }
  if (event.result) result = event.result;
});
call.on("error", (error) => {
  if (error.code === grpc.status.CANCELLED) return console.log("\n[cancelled]");
  process.exitCode = 1;
  console.error(`\n${grpc.status[error.code]}: ${error.details}`);
  const info = errorInfo(error);
  if (info) console.error(`reason ${info.reason} ${JSON.stringify(info.metadata, ["field", "value", "limit"])}`);
});
call.on("end", () => {
  // "end" comes after "error" too: only a Result says that the generation is whole.
  if (result) console.log(`\n[${result.finish_reason}, ${result.usage.completion_tokens} tokens]`);
  client.close();
});
