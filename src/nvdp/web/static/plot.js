// One plot as SVG: axes, a prediction, and the place that a model is least sure of.
export const BAND = 1.645; // standard deviations: 90 % of a Gaussian lie inside

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 38, right: 10, top: 10, bottom: 24 };
const LABEL = 16; // pixels more at the bottom for the name of the x axis
const TICKS = { x: 90, y: 55 }; // pixels that a tick needs
let plots = 0;

export function element(name, attributes = {}, parent = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

export const clamp = (value, [low, high]) => Math.min(high, Math.max(low, value));

export const minus = (number) => String(number).replace("-", "−");

// Round numbers over a range, about `count` of them.
export function ticks([low, high], count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((part) => part * power).find((each) => each >= rough * 0.999);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const first = Math.ceil(low / step - 1e-9);
  const places = Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
  return places.map((place) => ({ place, text: minus(place.toFixed(decimals)) }));
}

export class Plot {
  constructor(svg) {
    Object.assign(this, { svg, xRange: [-2, 2], yRange: [-2.5, 2.5], xName: "", yName: "" });
    Object.assign(this, { query: [], answer: null, output: 0, suggestion: null, drawn: [] });
    const id = `inside-${(plots += 1)}`;
    this.inside = element("rect", {}, element("clipPath", { id }, svg));
    for (const layer of ["axes", "band", "samples", "mean", "next", "dots"]) {
      const clipped = ["band", "samples", "mean"].includes(layer) ? { "clip-path": `url(#${id})` } : {};
      this[layer] = element("g", { class: `layer-${layer}`, ...clipped }, svg);
    }
    this.bandPath = element("path", { class: "band" }, this.band);
    this.meanPath = element("path", { class: "mean" }, this.mean);
    this.measure();
    new ResizeObserver(() => this.draw()).observe(svg);
  }

  // Read once for each drawing: asking the browser for a size after a change makes it lay the page out anew.
  measure() {
    this.box = { width: this.svg.clientWidth || 400, height: this.svg.clientHeight || 300 };
    this.bottom = this.box.height - MARGIN.bottom - (this.xName ? LABEL : 0);
  }

  toX(x) {
    const [low, high] = this.xRange;
    return MARGIN.left + ((x - low) / (high - low)) * (this.box.width - MARGIN.left - MARGIN.right);
  }

  toY(y) {
    const [low, high] = this.yRange;
    return MARGIN.top + ((high - y) / (high - low)) * (this.bottom - MARGIN.top);
  }

  valuesAt(event) {
    const { left, top } = this.svg.getBoundingClientRect();
    const [xLow, xHigh] = this.xRange;
    const [yLow, yHigh] = this.yRange;
    const across = (event.clientX - left - MARGIN.left) / (this.box.width - MARGIN.left - MARGIN.right);
    const down = (event.clientY - top - MARGIN.top) / (this.bottom - MARGIN.top);
    return [clamp(xLow + across * (xHigh - xLow), this.xRange), clamp(yHigh - down * (yHigh - yLow), this.yRange)];
  }

  draw() {
    this.measure();
    this.drawAxes();
    this.drawAnswer();
    this.drawSuggestion();
    for (const redraw of this.drawn) redraw();
  }

  drawAxes() {
    this.axes.replaceChildren();
    const { width } = this.box;
    const { bottom } = this;
    const inner = { width: Math.max(0, width - MARGIN.left - MARGIN.right), height: Math.max(0, bottom - MARGIN.top) };
    const frame = { x: MARGIN.left, y: MARGIN.top, ...inner };
    for (const [key, value] of Object.entries(frame)) this.inside.setAttribute(key, value);
    for (const { place, text } of ticks(this.xRange, inner.width / TICKS.x)) {
      const at = this.toX(place);
      element("line", { class: "gridline", x1: at, x2: at, y1: MARGIN.top, y2: bottom }, this.axes);
      element("text", { x: at, y: bottom + 17, "text-anchor": "middle" }, this.axes).textContent = text;
    }
    for (const { place, text } of ticks(this.yRange, inner.height / TICKS.y)) {
      const at = this.toY(place);
      const kind = place === 0 ? "axis" : "gridline";
      element("line", { class: kind, x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }, this.axes);
      element("text", { x: MARGIN.left - 8, y: at + 4, "text-anchor": "end" }, this.axes).textContent = text;
    }
    const middle = MARGIN.left + inner.width / 2;
    if (this.xName)
      element("text", { class: "name", x: middle, y: bottom + 35, "text-anchor": "middle" }, this.axes).textContent = this.xName;
    if (this.yName)
      element("text", { class: "name", x: MARGIN.left + 8, y: MARGIN.top + 12 }, this.axes).textContent = this.yName;
  }

  drawAnswer() {
    const { answer, query, output } = this;
    if (!answer) {
      for (const path of [this.bandPath, this.meanPath]) path.removeAttribute("d");
      this.samples.replaceChildren();
      return;
    }
    const xs = query.map((x) => this.toX(x).toFixed(1));
    const line = (values) => "M" + xs.map((x, i) => `${x},${this.toY(values(i)).toFixed(1)}`).join("L");
    const mean = (i) => answer.mean[i][output];
    const std = (i) => answer.std[i][output];
    const last = xs.length - 1;
    const lower = xs.map((_, i) => `${xs[last - i]},${this.toY(mean(last - i) - BAND * std(last - i)).toFixed(1)}`);
    this.bandPath.setAttribute("d", `${line((i) => mean(i) + BAND * std(i))}L${lower.join("L")}Z`);
    this.meanPath.setAttribute("d", line(mean));
    while (this.samples.children.length > answer.samples.length) this.samples.lastChild.remove();
    while (this.samples.children.length < answer.samples.length) element("path", { class: "sample" }, this.samples);
    answer.samples.forEach((sample, s) => this.samples.children[s].setAttribute("d", line((i) => sample[i][output])));
  }

  drawSuggestion() {
    this.next.replaceChildren();
    if (this.suggestion === null) return;
    const { x, mean } = this.suggestion;
    const [at, up] = [this.toX(x), this.toY(mean)];
    element("line", { x1: at, x2: at, y1: MARGIN.top, y2: this.bottom }, this.next);
    element("path", { d: `M${at},${up - 7}l7,7l-7,7l-7,-7z` }, this.next);
    const leftward = at > this.box.width * 0.7;
    const place = { x: at + (leftward ? -8 : 8), y: MARGIN.top + 12, "text-anchor": leftward ? "end" : "start" };
    element("text", place, this.next).textContent = `x = ${minus(x.toFixed(2))}`;
  }
}
