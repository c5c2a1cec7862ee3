// The context points of a plot: a click adds one, dragging or arrow keys move it, a double click or Delete removes it.
import { clamp, element } from "./plot.js";

const STEP = 0.02; // of the range, for an arrow key

export class Points {
  // `hand` is told what the visitor does: add(x, y, since), move(id, x, y, since), remove(id, since).
  constructor(plot, hand, inTabOrder) {
    Object.assign(this, { plot, hand, inTabOrder, points: [], circles: new Map() });
    this.justAdded = null; // the point that the first half of a double click made
    plot.svg.addEventListener("click", (event) => this.clicked(event));
    plot.svg.addEventListener("dblclick", (event) => this.doubleClicked(event));
    plot.svg.addEventListener("keydown", (event) => this.keyOnPlot(event));
    plot.drawn.push(() => this.draw());
  }

  draw() {
    const alive = new Set(this.points.map((point) => point.id));
    for (const [id, circle] of this.circles) {
      if (!alive.has(id)) {
        circle.remove();
        this.circles.delete(id);
      }
    }
    for (const point of this.points) {
      const circle = this.circles.get(point.id) ?? this.newCircle(point.id);
      circle.setAttribute("transform", `translate(${this.plot.toX(point.x)},${this.plot.toY(point.y)})`);
      circle.setAttribute("aria-label", `Point at x ${point.x.toFixed(2)}, y ${point.y.toFixed(2)}`);
    }
  }

  newCircle(id) {
    const tab = this.inTabOrder ? 0 : -1;
    const made = { class: "point", tabindex: tab, role: "button", "aria-roledescription": "movable point" };
    const group = element("g", made, this.plot.dots);
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
    const moved = (move) => this.hand.move(id, ...this.plot.valuesAt(move), move.timeStamp);
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
    this.justAdded = this.hand.add(...this.plot.valuesAt(event), event.timeStamp);
  }

  doubleClicked(event) {
    const group = event.target.closest(".point");
    if (!group) return;
    const id = Number(group.dataset.id);
    if (id !== this.justAdded) this.hand.remove(id, event.timeStamp); // else both clicks were on empty ground
  }

  keyOnPlot(event) {
    const { svg, suggestion, xRange, yRange } = this.plot;
    if (event.target !== svg || !["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    const x = suggestion?.x ?? (xRange[0] + xRange[1]) / 2;
    this.focus(this.hand.add(x, clamp(suggestion?.mean ?? 0, yRange), event.timeStamp));
  }

  keyOnPoint(event, id) {
    const { xRange, yRange, dots, svg } = this.plot;
    const point = this.points.find((each) => each.id === id);
    const far = event.shiftKey ? 5 : 1;
    const [right, up] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key] ?? [];
    if (["Delete", "Backspace"].includes(event.key)) {
      this.hand.remove(id, event.timeStamp);
      (dots.lastChild ?? svg).focus();
    } else if (right !== undefined) {
      const step = (range) => (range[1] - range[0]) * STEP * far;
      const x = clamp(point.x + right * step(xRange), xRange);
      this.hand.move(id, x, clamp(point.y + up * step(yRange), yRange), event.timeStamp);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
