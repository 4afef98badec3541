// Builds ../../qfmt/view/page.html, or the file that is named: one page with its style and its script in it.
//
// The formulas of rules and the meanings of operators are taken from docs/spec, and which of their inputs are weights
// from schema/operators.json, so that they have one place.

import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { weights } from "./weights.mjs";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const text = (path) => readFileSync(here(path), "utf8");

const plain = (markdown) =>
  markdown.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replace(/[`*]/g, "").replace(/\s+/g, " ").trim();

/** The formula of each rule, from the tables that have one. */
function rules(...pages) {
  const found = {};
  for (const page of pages) {
    let columns = [];
    for (const line of text(page).split("\n")) {
      const cells = line.startsWith("|") ? line.slice(1, -1).split(/ \| |^ | $/).filter((cell, at, all) => cell || (at && at + 1 < all.length)) : [];
      if (!cells.length) {
        columns = [];
      } else if (cells[0].trim() === "rule") {
        columns = cells.map((cell) => cell.trim());
      } else if (columns.includes("formula") && cells[0].includes("`")) {
        const cell = (name) => plain(cells[columns.indexOf(name)] ?? "");
        const grid = cell("s and z");
        const user = cell("used by");
        found[cell("rule")] = { formula: cell("formula"), by: user ? `used by ${user}` : cell("use"), ...(grid ? { grid } : {}) };
      }
    }
  }
  return found;
}

/** What each operator computes: its signature, the way it treats quantized tensors, its meaning, its integer form. */
function operators(...pages) {
  const found = {};
  for (const page of pages) {
    for (const part of text(page).split(/^### /m).slice(1)) {
      const [name, signature, meaning, ...others] = part.split(/\n\n/);
      const [, from, way] = /^(.*?) · version \d+ · (.*)$/s.exec(signature ?? "") ?? [];
      if (from) {
        const integers = others.find((each) => each.startsWith("On integers: ")) ?? "";
        found[name.trim()] = {
          signature: plain(from), way: plain(way), meaning: plain(meaning), integers: plain(integers.replace("On integers: ", "")),
        };
      }
    }
  }
  return found;
}

const spec = {
  rules: rules("../../docs/spec/running.md", "../../docs/spec/integer-only.md"),
  operators: operators("../../docs/spec/operators.md", "../../docs/spec/integer-only.md"),
};
if (Object.keys(spec.rules).length < 25 || Object.keys(spec.operators).length < 150) {
  throw new Error("docs/spec has another form: not all rules and operators were found");
}

const bundled = await build({
  entryPoints: [here("src/main.ts")],
  bundle: true,
  minify: true,
  write: false,
  charset: "utf8",
  format: "iife",
  target: "es2022",
  legalComments: "none",
  define: { SPEC: JSON.stringify(spec), WEIGHTS: JSON.stringify(weights) },
});
const style = await build({ entryPoints: [here("src/style.css")], minify: true, write: false, charset: "utf8" });
const [script, css] = [bundled, style].map(({ outputFiles }) => outputFiles[0].text.trim());
if (/<\/(script|style)|<!--/i.test(script + css)) {
  throw new Error("the script cannot stand in a page as it is");
}

const hash = (content) => `'sha256-${createHash("sha256").update(content).digest("base64")}'`;
const licenses = ["@dagrejs/dagre", "fflate"].map((name) => {
  const { version } = JSON.parse(text(`node_modules/${name}/package.json`));
  return `Contains ${name} ${version}:\n\n${text(`node_modules/${name}/LICENSE`).trim()}`;
});
const parts = {
  policy: `default-src 'none'; script-src ${hash(script)}; style-src ${hash(css)}; img-src data:; base-uri 'none'; form-action 'none'`,
  style: css,
  script,
  license: licenses.join("\n\n"),
};
const page = text("src/page.html").replace(/\{\{(\w+)\}\}/g, (_, name) => parts[name]);
writeFileSync(process.argv[2] ?? here("../../qfmt/view/page.html"), page);
