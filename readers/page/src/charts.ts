// Drawings of numbers: a histogram, scales per channel, a sparkline.

import type { Grid, Statistics } from "./description.js";
import { el, extremes, number, numbersOf, percent, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [400, 96];

/** A histogram of stored values, with the marks of quant_min and quant_max; `log` for the height of the bars. */
export function histogram(stats: Statistics, grid: Grid | undefined, log: boolean): HTMLElement | null {
  const { bins, first, width, elements = 0 } = stats;
  if (!bins || first === undefined || width === undefined || !bins.length) {
    return null;
  }
  const isCode = stats.codes !== undefined;
  const height = heights(bins, log, HEIGHT - 2);
  const step = WIDTH / bins.length;
  const readout = el("output", { class: "readout" }, `${number(elements)} values`);
  const tell = (event: PointerEvent) => {
    const box = drawing.getBoundingClientRect();
    const at = Math.max(0, Math.min(bins.length - 1, Math.floor(((event.clientX - box.left) / box.width) * bins.length)));
    const [left, right] = [first + at * width, first + (at + 1) * width];
    const where = isCode ? (width === 1 ? number(left) : `${number(left)}…${number(right - 1)}`) : `${number(left)}…${number(right)}`;
    readout.textContent = `${where}: ${number(bins[at])} (${percent(bins[at]!, elements)})`;
  };
  const edge = (value: number) => ((value - first) / width) * step;
  const marks = grid && isCode ? [edge(grid.min), edge(grid.max + 1)] : [];
  const zero = edge(isCode ? (numbersOf(grid?.zero ?? [0])[0] ?? 0) + 0.5 : 0);
  const drawing = svg(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `histogram of ${number(elements)} values`, pointermove: tell },
    zero > 0 && zero < WIDTH && svg("line", { class: "zero", x1: zero, x2: zero, y1: 0, y2: HEIGHT }),
    svg("path", { class: "bars", d: height.map((each, at) => (each ? `M${round(at * step)} ${HEIGHT}v${-round(each)}h${round(Math.max(step - (step > 3 ? 0.6 : 0), 0.5))}v${round(each)}z` : "")).join("") }),
    ...endBars(bins, height, step, stats, isCode),
    ...marks.map((x) => svg("line", { class: "limit", x1: x, x2: x, y1: 0, y2: HEIGHT })),
  );
  const axis = isCode ? [first, first + width * bins.length - 1] : [first, first + width * bins.length];
  return el("figure", { class: "plot" }, drawing, el("figcaption", {}, el("span", {}, number(axis[0])), readout, el("span", {}, number(axis[1]))));
}

/** The bars of saturated values, in another colour. */
function endBars(bins: readonly number[], height: readonly number[], step: number, stats: Statistics, isCode: boolean): SVGElement[] {
  if (!isCode || stats.width !== 1) {
    return [];
  }
  const ends: [number, number | undefined][] = [[0, stats.low], [bins.length - 1, stats.high]];
  return ends
    .filter(([at, count]) => count && bins[at] === count)
    .map(([at]) => svg("rect", { class: "saturated", x: round(at * step), y: round(HEIGHT - height[at]!), width: round(Math.max(step, 1.5)), height: round(height[at]!) }));
}

function heights(bins: readonly number[], log: boolean, most: number): number[] {
  const scaled = log ? bins.map((count) => Math.log1p(count)) : bins;
  const [, top] = extremes(scaled);
  return scaled.map((value) => (value ? Math.max(1, (value / top) * most) : 0));
}

const round = (value: number) => Math.round(value * 100) / 100;

/** A histogram for a cell of the table. */
export function sparkline(stats: Statistics): SVGElement | null {
  const { bins } = stats;
  if (!bins || bins.length < 2) {
    return null;
  }
  const size = Math.ceil(bins.length / 48);
  const merged = Array.from({ length: Math.ceil(bins.length / size) }, (_, at) => bins.slice(at * size, (at + 1) * size).reduce((a, b) => a + b, 0));
  const [step, height] = [56 / merged.length, heights(merged.map(Math.sqrt), false, 16)];
  const path = height.map((each, at) => `H${round(at * step)}V${round(17 - each)}H${round((at + 1) * step)}`).join("");
  return svg("svg", { class: "spark", viewBox: "0 0 56 17", "aria-hidden": "true" }, svg("path", { d: `M0 17${path}V17z` }));
}

/** One dot for each channel, on a logarithmic axis; hollow where the channel is zero everywhere. */
export function scalePlot(scales: readonly number[], peaks: readonly number[] | undefined, channel: number, choose: (channel: number) => void): HTMLElement | null {
  const [low, high] = extremes(scales.filter((scale) => scale > 0));
  if (!(low <= high)) {
    return null;
  }
  const [bottom, top] = low === high ? [low / 2, high * 2] : [low / 1.15, high * 1.15];
  const x = (at: number) => round(((at + 0.5) / scales.length) * WIDTH);
  const y = (scale: number) => round(HEIGHT - 3 - ((Math.log(Math.max(scale, bottom)) - Math.log(bottom)) / (Math.log(top) - Math.log(bottom))) * (HEIGHT - 6));
  const radius = scales.length > 512 ? 1 : scales.length > 128 ? 1.6 : 2.4;
  const tell = (at: number) => `channel ${at}: ${number(scales[at])}${peaks?.[at] === 0 ? ", zero everywhere" : ""}`;
  const readout = el("output", { class: "readout" }, tell(channel));
  const place = (event: MouseEvent) => {
    const box = drawing.getBoundingClientRect();
    return Math.max(0, Math.min(scales.length - 1, Math.floor(((event.clientX - box.left) / box.width) * scales.length)));
  };
  const dots = scales.map((scale, at) => {
    const state = `${peaks?.[at] === 0 ? " dead" : ""}${at === channel ? " chosen" : ""}`;
    return svg("circle", { class: `dot${state}`, cx: x(at), cy: y(scale), r: at === channel ? radius + 2 : radius });
  });
  const drawing = svg(
    "svg",
    {
      class: "chart choice", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `scales of ${scales.length} channels, from ${number(low)} to ${number(high)}`,
      pointermove: (event: PointerEvent) => void (readout.textContent = tell(place(event))),
      click: (event: MouseEvent) => choose(place(event)),
    },
    svg("line", { class: "zero", x1: x(channel), x2: x(channel), y1: 0, y2: HEIGHT }),
    ...dots,
  );
  return el("figure", { class: "plot" }, drawing, el("figcaption", {}, el("span", {}, `${number(low)}`), readout, el("span", {}, number(high))));
}
