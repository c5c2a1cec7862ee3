// A square to draw on, with a pointer or with keys: arrows move a pen, Space puts it down and lifts it.
import { trace } from "./strokes.js";

const NEAR = 0.012; // of the side: movements below it add no point
const STEP = 1 / 28;
const INK = 1.1 / 28; // width of a line on the screen

export class Pad {
  // `drawn` is told of every change, and when the hand moved.
  constructor(canvas, drawn) {
    Object.assign(this, { canvas, drawn, strokes: [], pen: null, down: false });
    canvas.addEventListener("pointerdown", (event) => this.hold(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.lift());
    canvas.addEventListener("focus", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  get empty() {
    return this.strokes.length === 0;
  }

  set(strokes, since) {
    Object.assign(this, { strokes, pen: null, down: false });
    this.changed(since);
  }

  changed(since) {
    this.draw();
    this.drawn(since);
  }

  placeOf(event) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    const within = (share) => Math.min(1, Math.max(0, share));
    return [within((event.clientX - left) / width), within((event.clientY - top) / height)];
  }

  hold(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.canvas.focus({ focusVisible: false, preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    Object.assign(this, { pen: null, down: false });
    const stroke = [this.placeOf(event)];
    this.strokes.push(stroke);
    this.changed(event.timeStamp);
    const moved = (move) => {
      const [x, y] = this.placeOf(move);
      const [lastX, lastY] = stroke.at(-1);
      if (Math.hypot(x - lastX, y - lastY) < NEAR) return;
      stroke.push([x, y]);
      this.changed(move.timeStamp);
    };
    this.canvas.addEventListener("pointermove", moved);
    const end = () => this.canvas.removeEventListener("pointermove", moved);
    this.canvas.addEventListener("pointerup", end, { once: true });
    this.canvas.addEventListener("pointercancel", end, { once: true });
  }

  key(event) {
    const [right, below] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [];
    if (right !== undefined) this.movePen(right, below, event);
    else if ([" ", "Enter"].includes(event.key)) this.putPen(event);
    else if (["Delete", "Backspace"].includes(event.key)) this.set(this.strokes.slice(0, -1), event.timeStamp);
    else return;
    event.preventDefault();
  }

  movePen(right, below, event) {
    const far = event.shiftKey ? 3 : 1;
    const within = (place) => Math.min(1, Math.max(0, place));
    const [x, y] = this.pen ?? [0.5, 0.5];
    this.pen = [within(x + right * far * STEP), within(y + below * far * STEP)];
    if (!this.down) return this.draw();
    this.strokes.at(-1).push(this.pen);
    this.changed(event.timeStamp);
  }

  putPen(event) {
    this.pen ??= [0.5, 0.5];
    this.down = !this.down;
    if (!this.down) return this.draw();
    this.strokes.push([this.pen]);
    this.changed(event.timeStamp);
  }

  lift() {
    this.down = false;
    this.pen = null;
    this.draw();
  }

  draw() {
    const { canvas } = this;
    const side = Math.round((canvas.clientWidth || 100) * Math.min(2, devicePixelRatio));
    if (canvas.width !== side) canvas.width = canvas.height = side;
    const context = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    context.clearRect(0, 0, side, side);
    context.strokeStyle = style.getPropertyValue("--ink");
    trace(context, this.strokes, side, INK);
    if (this.pen) {
      const [x, y] = this.pen.map((part) => part * side);
      context.fillStyle = context.strokeStyle = style.getPropertyValue("--b");
      context.lineWidth = side / 60;
      context.beginPath();
      context.arc(x, y, side / 36, 0, 2 * Math.PI);
      this.down ? context.fill() : context.stroke();
    }
  }
}
