import { readFileSync } from "node:fs";

const operators = JSON.parse(readFileSync(new URL("../../schema/operators.json", import.meta.url), "utf8"));

/** Operators with weights: the place of each weight among the inputs, and the axis of its output channels. */
export const weights = {};
for (const [operator, entry] of Object.entries(operators)) {
  const found = Object.entries(entry.weights).map(([name, axis]) => [entry.inputs.indexOf(name), axis]);
  if (found.length) {
    weights[operator] = found;
  }
}
