// The page: reads what is embedded, or what is dropped onto it, and keeps table, graph and details together.

import { gunzipSync, strFromU8 } from "fflate";
import type { Description } from "./description.js";
import { Details } from "./details.js";
import { bytes, el, MOST, number, plural, shown } from "./dom.js";
import { differs, entriesOf, having, type Entry } from "./entries.js";
import { attach, describeFile } from "./from_file.js";
import { GraphView } from "./graph.js";
import { Table } from "./table.js";

class Page {
  readonly #table = new Table((entry) => this.select(entry));
  readonly #graph = new GraphView((entry) => this.#go(entry));
  readonly #details = new Details((entry) => this.#go(entry));
  readonly #title = el("h1", { class: "mono" });
  readonly #said = el("div", { class: "said", role: "status" });
  readonly #alert = el("div", { class: "alert", role: "alert" });
  readonly #search = el("input", { type: "search", placeholder: "Search nodes, tensors, rules  ( / )", "aria-label": "Search", input: () => this.#filter() });
  readonly #operator = el("select", { "aria-label": "Operator", change: () => this.#filter() });
  readonly #only = el("select", { "aria-label": "Which nodes", change: () => this.#filter() });
  readonly #next = el("button", { type: "button", click: () => this.#difference(1), title: "Next difference (n)" }, "Next difference");
  readonly #home = el("button", { type: "button", click: () => this.home(), title: "About the model (Escape)" }, "Model");
  readonly #save = el("a", { class: "button", hidden: true }, "Save .qfb");
  readonly #main: HTMLElement;
  #model: Description | null = null;
  #opened: File | null = null;
  #entries: Entry[] = [];
  #selected: Entry | null = null;

  constructor(root: HTMLElement) {
    const file = el("input", { type: "file", accept: ".qfb", id: "file", class: "hidden", change: ({ target }: Event & { target: HTMLInputElement }) => void this.open(target.files?.[0]) });
    const fold = (label: string, all: boolean) => el("button", { type: "button", click: () => this.#table.fold(all) }, label);
    this.#main = el("main", {}, this.#table.element, this.#graph.element, this.#details.element);
    root.append(
      el("header", { class: "top" }, this.#title, this.#home, this.#next, el("span", { class: "push" }), this.#search, this.#operator, this.#only, fold("Fold", true), fold("Unfold", false),
        el("button", { type: "button", title: "Show or hide the graph (g)", click: () => this.#toggle() }, "Graph"),
        el("button", { type: "button", title: "Dark or light (t)", click: theme }, "Theme"),
        this.#save, el("label", { class: "button", for: "file", title: "Show another .qfb, or drop it onto the page" }, "Open…"), file),
      this.#alert,
      this.#main,
      el("footer", {}, this.#said, el("span", { class: "push" }), el("span", { class: "keys" }, "/ search · ↑ ↓ nodes · ← → fold · n next difference · g graph · t theme · Esc model")),
    );
    addEventListener("keydown", (event) => this.#key(event));
    addEventListener("dragover", (event) => {
      event.preventDefault();
      document.body.classList.add("dropping");
    });
    addEventListener("dragleave", (event) => !event.relatedTarget && document.body.classList.remove("dropping"));
    addEventListener("drop", (event) => {
      event.preventDefault();
      document.body.classList.remove("dropping");
      void this.open(event.dataTransfer?.files[0]);
    });
  }

  /** A `.qfb` of the user; it does not leave the page. */
  async open(file: File | undefined): Promise<void> {
    if (!file) {
      return;
    }
    this.#opened = file;
    this.#alert.textContent = "";
    this.#said.textContent = shown(`Reading ${file.name} …`);
    const isLast = () => this.#opened === file; // another one may have been opened meanwhile
    try {
      const model = await describeFile(file, file.name);
      if (isLast()) {
        this.show(model);
        this.#save.hidden = true;
      }
    } catch (error) {
      if (isLast()) {
        this.alert(`${file.name}: ${(error as Error).message}`);
      }
    }
  }

  alert(text: string): void {
    this.#alert.textContent = shown(text);
    this.#said.textContent = "";
  }

  show(model: Description): void {
    this.#model = model;
    this.#entries = entriesOf(model);
    const { comparison } = model;
    const other = comparison?.kind === "diff" ? ` ↔ ${comparison.other.name}` : "";
    this.#title.textContent = document.title = shown(`${model.name}${other}`);
    document.title += " · qfmt view";
    const operators = [...new Set(this.#entries.map(({ node }) => node.operator))].sort();
    const options = (pairs: readonly (readonly [string, string])[]) => pairs.map(([value, text]) => el("option", { value }, text));
    this.#operator.replaceChildren(...options([["", "All operators"], ...operators.slice(0, MOST).map((each) => [each, each] as const)]));
    this.#only.replaceChildren(...options([["", "All nodes"], ["notes", "With notes"], ...(comparison ? [["differs", "That differ"], ["unequal", "Not equal"]] as const : [])]));
    this.#search.value = "";
    this.#next.hidden = !this.#entries.some(({ status }) => differs(status));
    this.#main.classList.toggle("archive", !this.#entries.length);
    this.#table.show(this.#entries);
    this.#graph.show(this.#entries);
    this.home();
    this.#count(this.#entries.length);
  }

  /** Offer the file that is embedded, and show its values. */
  async embed(content: Blob): Promise<void> {
    await attach(this.#model!, content);
    this.#save.href = URL.createObjectURL(content);
    this.#save.download = this.#model!.name.replace(/\.[^.]*$/, "") + ".qfb";
    this.#save.title = bytes(content.size);
    this.#save.hidden = false;
  }

  home(): void {
    this.#selected = null;
    if (this.#model) {
      this.#details.overview(this.#model, this.#entries);
    }
  }

  select(entry: Entry | null): void {
    this.#selected = entry;
    if (entry) {
      this.#graph.select(entry);
      void this.#details.node(entry);
    }
  }

  /** Select from outside the table. */
  #go(entry: Entry): void {
    this.#table.select(entry);
    this.select(entry);
  }

  #difference(step: number): void {
    const found = this.#entries.filter(({ status }) => differs(status));
    const now = this.#selected ? found.findIndex(({ at }) => at >= this.#selected!.at) : -1;
    const at = now < 0 ? (this.#selected ? 0 : step > 0 ? 0 : found.length - 1) : found[now] === this.#selected ? now + step : now;
    const next = found[(at + found.length) % found.length];
    if (next) {
      this.#go(next);
      this.#table.focus();
    }
  }

  #filter(): void {
    const words = this.#search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const [operator, only] = [this.#operator.value, this.#only.value];
    const isFound = this.#model && words.length ? having(words, this.#model) : () => true;
    const accepts = (entry: Entry) => {
      const { node, findings, status } = entry;
      return isFound(entry) && (!operator || node.operator === operator)
      && (only !== "notes" || findings.length > 0) && (only !== "differs" || differs(status)) && (only !== "unequal" || (status !== "" && status !== "same"));
    };
    this.#count(this.#table.filter(words.length || operator || only ? accepts : null));
  }

  #count(shown: number): void {
    const all = this.#entries.length;
    const tensors = this.#model?.tensors.length ?? 0;
    this.#said.textContent = shown === all ? `${plural(all, "node")}, ${plural(tensors, "tensor")}` : `${number(shown)} of ${plural(all, "node")}`;
  }

  #toggle(): void {
    const isHidden = getComputedStyle(this.#graph.element).display === "none";
    this.#main.classList.toggle("with-graph", isHidden);
    this.#main.classList.toggle("without-graph", !isHidden);
  }

  #key(event: KeyboardEvent): void {
    const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (event.key === "Escape") {
      if (isTyping) {
        this.#search.value = "";
        this.#filter();
        this.#table.focus();
      } else {
        this.home();
      }
    } else if (event.key === "Enter" && event.target === this.#search) {
      this.#table.focus();
    } else if (!isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const work = { "/": () => this.#search.focus(), n: () => this.#difference(1), N: () => this.#difference(-1), g: () => this.#toggle(), t: theme }[event.key];
      if (work) {
        event.preventDefault();
        work();
      }
    }
  }
}

function theme(): void {
  const root = document.documentElement;
  const isDark = root.dataset["theme"] ? root.dataset["theme"] === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset["theme"] = isDark ? "light" : "dark";
}

/** The bytes of a block that qfmt put into the page. */
function embedded(id: string): Uint8Array<ArrayBuffer> | null {
  const text = document.getElementById(id)?.textContent;
  return text ? Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)) : null;
}

async function start(): Promise<void> {
  const page = new Page(document.getElementById("page")!);
  const [model, file] = [embedded("model-data"), embedded("file-data")];
  document.body.classList.toggle("empty", !model);
  try {
    if (model) {
      // At once, not by the asynchronous DecompressionStream: a picture of the loaded page shall show the model.
      page.show(JSON.parse(strFromU8(gunzipSync(model))) as Description);
    }
    if (file) {
      await page.embed(new Blob([file]));
    }
  } catch (error) {
    page.alert((error as Error).message);
  }
  document.body.classList.add("ready");
}

void start();
