// Streams a generation from Treadle. Usage: node generate.mjs PROMPT [ADDRESS]
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const [prompt, address = "127.0.0.1:50051"] = process.argv.slice(2);
const protos = fileURLToPath(new URL("../../../protos", import.meta.url));
const definition = protoLoader.loadSync("treadle/v1/generation.proto", {
  includeDirs: [protos],
  keepCase: true,
  longs: String,
  enums: String,
});
const { GenerationService } = grpc.loadPackageDefinition(definition).treadle.v1;
const client = new GenerationService(address, grpc.credentials.createInsecure());

const call = client.generate(
  { prompt, stopping: { max_new_tokens: 32 } },
  { deadline: Date.now() + 60_000 },
);
process.once("SIGINT", () => call.cancel()); // the server stops the work at once

let result;
call.on("data", (event) => {
  if (event.tokens) process.stdout.write(event.tokens.text);
  if (event.result) result = event.result;
});
call.on("error", (error) => {
  console.error(`\n${grpc.status[error.code]}: ${error.details}`);
  process.exitCode = 1;
});
call.on("end", () => {
  // "end" comes after "error" too: only a Result says that the generation is whole.
  if (result) console.log(`\n[${result.finish_reason}, ${result.usage.completion_tokens} tokens]`);
  client.close();
});
