// One plot as SVG: axes, a prediction, and the context points, which can be dragged or moved by keys.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 30, right: 10, top: 10, bottom: 24 };
const STEP = 0.02; // of the range, for an arrow key
let plots = 0;

export function element(name, attributes = {}, parent = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
}

const clamp = (value, [low, high]) => Math.min(high, Math.max(low, value));

export class Plot {
  // `hand` is told what the visitor does: add(x, y), move(id, x, y, since), remove(id).
  constructor(svg, hand, inTabOrder) {
    Object.assign(this, { svg, hand, inTabOrder, xRange: [-2, 2], yRange: [-2.5, 2.5], query: [], answer: null });
    this.points = [];
    this.suggestion = null;
    this.justAdded = null; // the point that the first half of a double click made
    this.circles = new Map();
    const id = `inside-${(plots += 1)}`;
    this.inside = element("rect", {}, element("clipPath", { id }, svg));
    for (const layer of ["axes", "band", "samples", "mean", "next", "dots"]) {
      const clipped = ["band", "samples", "mean"].includes(layer) ? { "clip-path": `url(#${id})` } : {};
      this[layer] = element("g", { class: `layer-${layer}`, ...clipped }, svg);
    }
    this.bandPath = element("path", { class: "band" }, this.band);
    this.meanPath = element("path", { class: "mean" }, this.mean);
    svg.addEventListener("click", (event) => this.clicked(event));
    svg.addEventListener("dblclick", (event) => this.doubleClicked(event));
    svg.addEventListener("keydown", (event) => this.keyOnPlot(event));
    new ResizeObserver(() => this.draw()).observe(svg);
  }

  get box() {
    return { width: this.svg.clientWidth || 400, height: this.svg.clientHeight || 300 };
  }

  toX(x) {
    const [low, high] = this.xRange;
    return MARGIN.left + ((x - low) / (high - low)) * (this.box.width - MARGIN.left - MARGIN.right);
  }

  toY(y) {
    const [low, high] = this.yRange;
    return MARGIN.top + ((high - y) / (high - low)) * (this.box.height - MARGIN.top - MARGIN.bottom);
  }

  valuesAt(event) {
    const { left, top } = this.svg.getBoundingClientRect();
    const { width, height } = this.box;
    const [xLow, xHigh] = this.xRange;
    const [yLow, yHigh] = this.yRange;
    const across = (event.clientX - left - MARGIN.left) / (width - MARGIN.left - MARGIN.right);
    const down = (event.clientY - top - MARGIN.top) / (height - MARGIN.top - MARGIN.bottom);
    return [clamp(xLow + across * (xHigh - xLow), this.xRange), clamp(yHigh - down * (yHigh - yLow), this.yRange)];
  }

  draw() {
    this.drawAxes();
    this.drawAnswer();
    this.drawPoints();
    this.drawSuggestion();
  }

  drawAxes() {
    this.axes.replaceChildren();
    const { width, height } = this.box;
    const bottom = height - MARGIN.bottom;
    const inner = { width: Math.max(0, width - MARGIN.left - MARGIN.right), height: Math.max(0, bottom - MARGIN.top) };
    const frame = { x: MARGIN.left, y: MARGIN.top, ...inner };
    for (const [key, value] of Object.entries(frame)) this.inside.setAttribute(key, value);
    for (let x = Math.ceil(this.xRange[0]); x <= this.xRange[1]; x += 1) {
      const at = this.toX(x);
      element("line", { class: "gridline", x1: at, x2: at, y1: MARGIN.top, y2: bottom }, this.axes);
      element("text", { x: at, y: height - 7, "text-anchor": "middle" }, this.axes).textContent = minus(x);
    }
    for (let y = Math.ceil(this.yRange[0]); y <= this.yRange[1]; y += 1) {
      const at = this.toY(y);
      const kind = y === 0 ? "axis" : "gridline";
      element("line", { class: kind, x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }, this.axes);
      element("text", { x: MARGIN.left - 8, y: at + 4, "text-anchor": "end" }, this.axes).textContent = minus(y);
    }
  }

  drawAnswer() {
    const { answer, query } = this;
    if (!answer) return;
    const xs = query.map((x) => this.toX(x).toFixed(1));
    const line = (values) => "M" + xs.map((x, i) => `${x},${this.toY(values(i)).toFixed(1)}`).join("L");
    const mean = (i) => answer.mean[i][0];
    const std = (i) => answer.std[i][0];
    const last = xs.length - 1;
    const lower = xs.map((_, i) => `${xs[last - i]},${this.toY(mean(last - i) - 2 * std(last - i)).toFixed(1)}`);
    this.bandPath.setAttribute("d", `${line((i) => mean(i) + 2 * std(i))}L${lower.join("L")}Z`);
    this.meanPath.setAttribute("d", line(mean));
    while (this.samples.children.length > answer.samples.length) this.samples.lastChild.remove();
    while (this.samples.children.length < answer.samples.length) element("path", { class: "sample" }, this.samples);
    answer.samples.forEach((sample, s) => this.samples.children[s].setAttribute("d", line((i) => sample[i][0])));
  }

  drawSuggestion() {
    this.next.replaceChildren();
    if (this.suggestion === null) return;
    const { x, mean } = this.suggestion;
    const [at, up, bottom] = [this.toX(x), this.toY(mean), this.box.height - MARGIN.bottom];
    element("line", { x1: at, x2: at, y1: MARGIN.top, y2: bottom }, this.next);
    element("path", { d: `M${at},${up - 7}l7,7l-7,7l-7,-7z` }, this.next);
    const leftward = at > this.box.width * 0.7;
    const place = { x: at + (leftward ? -8 : 8), y: MARGIN.top + 12, "text-anchor": leftward ? "end" : "start" };
    element("text", place, this.next).textContent = `x = ${minus(x.toFixed(2))}`;
  }

  drawPoints() {
    const alive = new Set(this.points.map((point) => point.id));
    for (const [id, circle] of this.circles) {
      if (!alive.has(id)) {
        circle.remove();
        this.circles.delete(id);
      }
    }
    for (const point of this.points) {
      const circle = this.circles.get(point.id) ?? this.newCircle(point.id);
      circle.setAttribute("transform", `translate(${this.toX(point.x)},${this.toY(point.y)})`);
      circle.setAttribute("aria-label", `Point at x ${point.x.toFixed(2)}, y ${point.y.toFixed(2)}`);
    }
  }

  newCircle(id) {
    const tab = this.inTabOrder ? 0 : -1;
    const made = { class: "point", tabindex: tab, role: "button", "aria-roledescription": "movable point" };
    const group = element("g", made, this.dots);
    element("circle", { class: "grip", r: 17 }, group);
    element("circle", { class: "dot", r: 5.5 }, group);
    group.addEventListener("pointerdown", (event) => this.hold(event, id, group));
    group.addEventListener("keydown", (event) => this.keyOnPoint(event, id));
    group.addEventListener("click", (event) => {
      event.stopPropagation();
      if (event.detail === 1) this.justAdded = null;
    });
    group.dataset.id = id;
    this.circles.set(id, group);
    return group;
  }

  focus(id) {
    this.circles.get(id)?.focus();
  }

  hold(event, id, group) {
    if (event.button !== 0) return;
    event.preventDefault();
    group.focus({ focusVisible: false });
    group.setPointerCapture(event.pointerId);
    group.classList.add("held");
    const moved = (move) => this.hand.move(id, ...this.valuesAt(move), move.timeStamp);
    const released = () => {
      group.classList.remove("held");
      group.removeEventListener("pointermove", moved);
    };
    group.addEventListener("pointermove", moved);
    group.addEventListener("pointerup", released, { once: true });
    group.addEventListener("pointercancel", released, { once: true });
  }

  clicked(event) {
    if (event.detail > 1) return; // the second half of a double click
    this.justAdded = this.hand.add(...this.valuesAt(event), event.timeStamp);
  }

  doubleClicked(event) {
    const group = event.target.closest(".point");
    if (!group) return;
    const id = Number(group.dataset.id);
    if (id !== this.justAdded) this.hand.remove(id, event.timeStamp); // else both clicks were on empty ground
  }

  keyOnPlot(event) {
    if (event.target !== this.svg || !["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    const x = this.suggestion?.x ?? (this.xRange[0] + this.xRange[1]) / 2;
    const mean = this.suggestion?.mean ?? 0;
    this.focus(this.hand.add(x, clamp(mean, this.yRange), event.timeStamp));
  }

  keyOnPoint(event, id) {
    const point = this.points.find((each) => each.id === id);
    const far = event.shiftKey ? 5 : 1;
    const [right, up] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key] ?? [];
    if (["Delete", "Backspace"].includes(event.key)) {
      this.hand.remove(id, event.timeStamp);
      (this.dots.lastChild ?? this.svg).focus();
    } else if (right !== undefined) {
      const step = (range) => (range[1] - range[0]) * STEP * far;
      const x = clamp(point.x + right * step(this.xRange), this.xRange);
      this.hand.move(id, x, clamp(point.y + up * step(this.yRange), this.yRange), event.timeStamp);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

const minus = (number) => String(number).replace("-", "−");
