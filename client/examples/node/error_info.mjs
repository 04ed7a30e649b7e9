// The google.rpc.ErrorInfo of a status: why a call was refused, for programs to read.
// The messages are those of https://github.com/googleapis/googleapis/tree/master/google/rpc.
import protobuf from "protobufjs";

const { root } = protobuf.parse(`
  syntax = "proto3";
  package google.rpc;
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
`);
const Status = root.lookupType("google.rpc.Status");
const ErrorInfo = root.lookupType("google.rpc.ErrorInfo");

/** {reason, domain, metadata}, or undefined where the status has none: not every status comes from the server. */
export function errorInfo(error) {
  const [packed] = error.metadata.get("grpc-status-details-bin");
  const details = packed ? Status.decode(packed).details : [];
  const info = details.find((detail) => detail.typeUrl.endsWith("/google.rpc.ErrorInfo"));
  return info && ErrorInfo.decode(info.value);
}
