// The page of pictures: reveal pixels of a digit, or draw them; the model completes the rest.
import { Lane, measurePainted, post } from "./api.js";
import { Grid } from "./grid.js";
import { mix, paint, rgb } from "./rates.js";

const SAMPLES = 8;
const AT_ONCE = 20;
const AT_FIRST = 150; // pixels: enough to recognise the digit
// Cividis, which people with any kind of colour vision read alike, at five places.
const CIVIDIS = [[0, 34, 78], [66, 77, 107], [125, 124, 120], [187, 174, 108], [255, 234, 70]];

export async function startImages(models, tell) {
  const size28 = await fetch("digits.json").then((response) => response.json());
  const page = new ImagesPage(models, tell, size28.digits.map((digit) => decode(digit.pixels)));
  page.changed();
}

// Two hexadecimal digits for each pixel, row by row.
function decode(text) {
  return Array.from({ length: text.length / 2 }, (_, i) => parseInt(text.slice(2 * i, 2 * i + 2), 16) / 255);
}

class ImagesPage {
  constructor(models, tell, digits) {
    Object.assign(this, { models, tell, digits });
    this.select = document.getElementById("image-model");
    for (const model of models) this.select.add(new Option(model.label, model.name));
    this.select.value = (models.find((model) => model.pretrained) ?? models[0]).name;
    this.select.addEventListener("change", () => this.newModel());
    this.lane = new Lane("api/adapt", (answer, extra) => this.show(answer, extra), tell);
    this.grid = new Grid(document.getElementById("given"), (cells, since) => this.touched(cells, since));
    for (const pen of document.querySelectorAll("[name=pen]")) pen.addEventListener("change", () => this.changed());
    const on = (id, act) => document.getElementById(id).addEventListener("click", act);
    on("reveal-next", () => this.revealNext());
    on("reveal-some", () => this.revealSome(AT_ONCE));
    on("hide-all", () => this.hideAll());
    this.newModel();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.changed());
  }

  get model() {
    return this.models.find((model) => model.name === this.select.value);
  }

  get pen() {
    return document.querySelector("[name=pen]:checked").value;
  }

  // Digits are 28 × 28; for a model of another size there is only drawing.
  newModel() {
    this.size = this.model.image_size;
    this.grid.size = this.size;
    const fits = this.size === 28;
    this.pictures = fits ? this.digits : [];
    document.querySelector("[value=reveal]").disabled = !fits;
    if (!fits) document.querySelector("[value=ink]").checked = true;
    this.listPictures();
    this.choose(0);
  }

  listPictures() {
    const list = document.querySelector(".digits");
    for (const label of list.querySelectorAll("label")) label.remove();
    list.hidden = this.pictures.length === 0;
    this.pictures.forEach((picture, index) => {
      const label = document.createElement("label");
      label.innerHTML = `<input type="radio" name="digit" value="${index}" aria-label="Picture ${index + 1}"><canvas></canvas>`;
      const input = label.querySelector("input");
      input.checked = index === 0;
      input.addEventListener("change", () => this.choose(index));
      list.append(label);
    });
  }

  choose(index) {
    this.truth = this.pictures[index] ?? new Array(this.size ** 2).fill(0);
    this.shown = new Array(this.size ** 2).fill(null);
    if (this.pen === "reveal") this.revealSome(AT_FIRST);
    else this.changed();
  }

  hideAll() {
    this.shown = new Array(this.size ** 2).fill(null);
    this.changed();
  }

  touched(cells, since) {
    const value = { reveal: (cell) => this.truth[cell], ink: () => 1, paper: () => 0 }[this.pen];
    for (const cell of cells) this.shown[cell] = value(cell);
    this.changed(since);
  }

  revealSome(count) {
    const hidden = this.hidden;
    const chosen = Array.from({ length: Math.min(count, hidden.length) }, () =>
      hidden.splice(Math.floor(Math.random() * hidden.length), 1)[0]
    );
    for (const cell of chosen) this.shown[cell] = this.truth[cell];
    this.changed();
  }

  async revealNext() {
    const hidden = this.hidden;
    if (hidden.length === 0) return;
    const question = { ...this.question, query: hidden.map((cell) => this.place(cell)) };
    try {
      const { index } = await post("api/suggest", question);
      this.shown[hidden[index]] = this.truth[hidden[index]];
      this.grid.flash(hidden[index]);
      this.changed();
    } catch (error) {
      this.tell(error.message);
    }
  }

  get hidden() {
    return [...this.shown.keys()].filter((cell) => this.shown[cell] === null);
  }

  place(cell) {
    return [Math.floor(cell / this.size) / (this.size - 1), (cell % this.size) / (this.size - 1)];
  }

  get question() {
    const cells = [...this.shown.keys()].filter((cell) => this.shown[cell] !== null);
    const context = { x: cells.map((cell) => this.place(cell)), y: cells.map((cell) => [this.shown[cell]]) };
    return { model: this.model.name, ...context, samples: SAMPLES, seed: 1 };
  }

  changed(since) {
    if (!this.lane.troubled) this.tell(null);
    const style = getComputedStyle(document.documentElement);
    this.ink = rgb(style.getPropertyValue("--ink"));
    this.paper = rgb(style.getPropertyValue("--card"));
    this.unseen = mix(this.paper, rgb(style.getPropertyValue("--a")), 0.22);
    const seen = this.shown.filter((value) => value !== null).length;
    document.getElementById("revealed").textContent = `${seen} of ${this.size ** 2} pixels`;
    const revealing = this.pen === "reveal"; // there is nothing to reveal of a drawing
    document.getElementById("reveal-next").disabled = !revealing || seen === this.size ** 2;
    document.getElementById("reveal-some").disabled = !revealing || seen === this.size ** 2;
    const grey = (value) => mix(this.paper, this.ink, value);
    this.grid.draw(this.shown.map((value) => (value === null ? this.unseen : grey(value))));
    document.querySelectorAll(".digits canvas").forEach((canvas, i) => paint(canvas, rows(this.pictures[i], 28), grey));
    const query = Array.from({ length: this.size ** 2 }, (_, cell) => this.place(cell));
    this.lane.ask({ ...this.question, query }, { since });
  }

  show(answer, { since }) {
    if (answer.mean.length !== this.size ** 2) return; // of the model before
    const grey = (value) => mix(this.paper, this.ink, value);
    const draw = (id, values, colour) => paint(document.getElementById(id), rows(values, this.size), colour);
    const completed = answer.mean.map(([value], cell) => this.shown[cell] ?? value);
    draw("completed", completed, grey);
    draw("sample-0", answer.samples[0].flat(), grey);
    draw("sample-1", answer.samples[1].flat(), grey);
    const deviations = answer.std.flat();
    const [low, high] = [Math.min(...deviations), Math.max(...deviations)];
    draw("uncertainty", deviations, (std) => cividis((std - low) / Math.max(high - low, 1e-6)));
    document.getElementById("deviations").textContent = `${low.toFixed(2)} to ${high.toFixed(2)}`;
    measurePainted("pointer to picture", since);
  }
}

function rows(values, size) {
  return Array.from({ length: size }, (_, row) => values.slice(row * size, (row + 1) * size));
}

function cividis(share) {
  const place = Math.min(1, Math.max(0, share)) * (CIVIDIS.length - 1);
  const index = Math.min(Math.floor(place), CIVIDIS.length - 2);
  return mix(CIVIDIS[index], CIVIDIS[index + 1], place - index);
}
