// The square of revealed pixels: the pointer sweeps over cells, or a cursor moves by keys.

const SCALE = 16; // canvas pixels for a cell
const FLASH = 700; // milliseconds for which a cell that was revealed by itself is marked

export class Grid {
  constructor(canvas, touched) {
    Object.assign(this, { canvas, touched, size: 28, cursor: null, colours: [], flashed: null });
    canvas.addEventListener("pointerdown", (event) => this.sweep(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.moveTo(null));
  }

  cellAt(event) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    const within = (share) => Math.min(this.size - 1, Math.max(0, Math.floor(share * this.size)));
    return [within((event.clientY - top) / height), within((event.clientX - left) / width)];
  }

  sweep(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    let last = this.cellAt(event);
    this.touched(this.cellsBetween(last, last), event.timeStamp);
    const moved = (move) => {
      const here = this.cellAt(move);
      if (here.join() === last.join()) return;
      this.touched(this.cellsBetween(last, here), move.timeStamp);
      last = here;
    };
    this.canvas.addEventListener("pointermove", moved);
    const end = () => this.canvas.removeEventListener("pointermove", moved);
    this.canvas.addEventListener("pointerup", end, { once: true });
    this.canvas.addEventListener("pointercancel", end, { once: true });
  }

  // A quick hand jumps over cells: all on the straight line are touched.
  cellsBetween([row, column], [toRow, toColumn]) {
    const steps = Math.max(1, Math.abs(toRow - row), Math.abs(toColumn - column));
    const cells = new Set();
    for (let i = 0; i <= steps; i += 1) {
      const at = (from, to) => Math.round(from + ((to - from) * i) / steps);
      cells.add(at(row, toRow) * this.size + at(column, toColumn));
    }
    return [...cells];
  }

  key(event) {
    const middle = Math.floor(this.size / 2);
    const [row, column] = this.cursor ?? [middle, middle];
    const within = (place) => Math.min(this.size - 1, Math.max(0, place));
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
    if (down !== undefined) this.moveTo([within(row + down), within(column + right)]);
    else if ([" ", "Enter"].includes(event.key)) {
      this.cursor = [row, column];
      this.touched([row * this.size + column], event.timeStamp);
    } else return;
    event.preventDefault();
  }

  moveTo(cursor) {
    this.cursor = cursor;
    this.draw(this.colours);
  }

  flash(cell) {
    this.flashed = cell;
    setTimeout(() => {
      this.flashed = null;
      this.draw(this.colours);
    }, FLASH);
  }

  draw(colours) {
    this.colours = colours;
    const { canvas, size } = this;
    canvas.width = canvas.height = size * SCALE;
    const context = canvas.getContext("2d");
    colours.forEach((colour, cell) => {
      context.fillStyle = `rgb(${colour.join(" ")})`;
      context.fillRect((cell % size) * SCALE, Math.floor(cell / size) * SCALE, SCALE, SCALE);
    });
    const style = getComputedStyle(document.documentElement);
    const mark = (row, column, colour) => {
      context.strokeStyle = style.getPropertyValue(colour);
      context.lineWidth = 4;
      context.strokeRect(column * SCALE + 1, row * SCALE + 1, SCALE - 2, SCALE - 2);
    };
    if (this.cursor) mark(...this.cursor, "--b");
    if (this.flashed !== null) mark(Math.floor(this.flashed / size), this.flashed % size, "--next");
  }
}
