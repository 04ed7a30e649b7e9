// Reads custom resources as a JSON list from standard input; prints a JSON list of what is wrong with them.
// The schema sees missing fields, wrong types and wrong values. Like the API server it lets unknown fields pass, so
// each resource is also a literal of its TypeScript type, which may have no other fields.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import ts from "typescript";

const PACKAGES = {
  "gateway.networking.k8s.io": "gateway-api",
  "keda.sh": "keda",
  "monitoring.coreos.com": "prometheus-operator",
  "networking.istio.io": "istio",
  "security.istio.io": "istio",
};

function moduleOf(resource) {
  const [group] = resource.apiVersion.split("/");
  return `@kubernetes-models/${PACKAGES[group]}/${resource.apiVersion}/${resource.kind}`;
}

function nameOf(resource) {
  return `${resource.kind} ${resource.metadata.name}`;
}

async function schemaProblems(resources) {
  const problems = [];
  for (const resource of resources) {
    const models = await import(moduleOf(resource));
    try {
      new models[resource.kind](resource).validate();
    } catch (error) {
      problems.push(`${nameOf(resource)}: ${error.message}`);
    }
  }
  return problems;
}

function typeProblems(resources) {
  const lines = resources.flatMap((resource, i) => [
    `import type { I${resource.kind} as Type${i} } from ${JSON.stringify(moduleOf(resource))};`,
    `export const resource${i}: Type${i} = ${JSON.stringify(resource)};`,
  ]);
  const name = join(import.meta.dirname, "resources.ts");
  const options = { strict: true, noEmit: true, skipLibCheck: true, types: [], module: ts.ModuleKind.NodeNext };
  const host = ts.createCompilerHost(options);
  const { getSourceFile, fileExists, readFile } = host;
  host.getSourceFile = (file, version) =>
    file === name ? ts.createSourceFile(file, lines.join("\n"), version) : getSourceFile(file, version);
  host.fileExists = (file) => file === name || fileExists(file);
  host.readFile = (file) => (file === name ? lines.join("\n") : readFile(file));
  const program = ts.createProgram([name], options, host);
  return ts.getPreEmitDiagnostics(program).map((found) => {
    const line = found.file.getLineAndCharacterOfPosition(found.start).line;
    return `${nameOf(resources[Math.floor(line / 2)])}: ${ts.flattenDiagnosticMessageText(found.messageText, " ")}`;
  });
}

const resources = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify([...(await schemaProblems(resources)), ...typeProblems(resources)]));
