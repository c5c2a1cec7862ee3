// The page of characters: one drawing of each of five signs, then a query, and which of them it is.
import { ALPHABETS, written } from "./alphabets.js";
import { Lane, measurePainted } from "./api.js";
import { Chances } from "./chances.js";
import { Pad } from "./pad.js";
import { mix, paint, rgb } from "./rates.js";
import { picture } from "./strokes.js";

const SIGNS = 5;
const SAMPLES = 24;

export function startCharacters(models, tell) {
  new CharactersPage(models, tell).useAlphabet(0);
}

class CharactersPage {
  constructor(models, tell) {
    Object.assign(this, { models, tell, alphabet: ALPHABETS[0] });
    this.select = document.getElementById("character-model");
    for (const model of models) this.select.add(new Option(model.label, model.name));
    this.select.value = (models.find((model) => model.pretrained) ?? models[0]).name;
    this.select.addEventListener("change", () => this.changed());
    this.lane = new Lane("api/classify", (answer, extra) => this.show(answer, extra), tell);
    this.pads = this.buildPads(document.querySelector(".signs"));
    this.query = new Pad(document.getElementById("query"), (since) => this.changed(since));
    this.seen = document.getElementById("query-seen");
    this.chances = new Chances(document.querySelector(".chances"), SIGNS);
    this.listAlphabets(document.querySelector(".alphabets"));
    const on = (id, act) => document.getElementById(id).addEventListener("click", act);
    on("clear-signs", () => this.pads.forEach((pad) => pad.set([])));
    on("query-clear", () => this.query.set([]));
    on("query-example", () => this.exampleQuery());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  get model() {
    return this.models.find((model) => model.name === this.select.value);
  }

  buildPads(place) {
    return Array.from({ length: SIGNS }, (_, index) => {
      const figure = document.createElement("figure");
      figure.innerHTML =
        `<canvas tabindex="0" role="application" aria-label="Sign ${index + 1}. Arrow keys move the pen, Space puts it down and lifts it."></canvas>` +
        `<figcaption>Sign ${index + 1}<span><button type="button" aria-label="Example of sign ${index + 1}">Example</button>` +
        `<button type="button" aria-label="Clear sign ${index + 1}">Clear</button></span></figcaption>`;
      place.append(figure);
      const pad = new Pad(figure.querySelector("canvas"), (since) => this.changed(since));
      const [example, clear] = figure.querySelectorAll("button");
      example.addEventListener("click", () => pad.set(written(this.alphabet, index, 0.6)));
      clear.addEventListener("click", () => pad.set([]));
      return pad;
    });
  }

  listAlphabets(place) {
    ALPHABETS.forEach((alphabet, index) => {
      const label = document.createElement("label");
      label.innerHTML = `<input type="radio" name="alphabet" value="${index}"><span>${alphabet.name}</span>`;
      label.firstChild.checked = index === 0;
      label.firstChild.addEventListener("change", () => this.useAlphabet(index));
      place.append(label);
    });
  }

  useAlphabet(index) {
    this.alphabet = ALPHABETS[index];
    this.pads.forEach((pad, sign) => (pad.strokes = written(this.alphabet, sign)));
    this.next = 0;
    this.redraw();
    this.exampleQuery();
  }

  // The signs in turn, so that pressing again shows another.
  exampleQuery() {
    const order = [2, 0, 4, 1, 3];
    this.query.set(written(this.alphabet, order[this.next++ % SIGNS], 1));
  }

  redraw() {
    for (const pad of this.pads) pad.draw();
    this.query.draw();
    this.changed();
  }

  changed(since) {
    const size = this.model.image_size;
    const present = [...this.pads.keys()].filter((index) => !this.pads[index].empty);
    const seen = this.query.empty ? null : picture(this.query.strokes, size);
    this.drawSeen(seen, size);
    const needed = this.model.way ?? 2;
    if (present.length < needed || !seen) {
      this.asked = null;
      const missing = present.length < needed ? `Draw at least ${needed} signs.` : "Now draw one of the signs again.";
      this.chances.wait(this.pads, missing);
      return;
    }
    const support = present.map((index) => picture(this.pads[index].strokes, size));
    const question = { model: this.model.name, support, labels: [...present.keys()], query: [seen], samples: SAMPLES, seed: 1 };
    this.asked = question;
    this.lane.ask(question, { since, present, question });
  }

  drawSeen(seen, size) {
    const style = getComputedStyle(document.documentElement);
    const [paper, ink] = ["--card", "--ink"].map((name) => rgb(style.getPropertyValue(name)));
    const pixels = seen ?? new Array(size ** 2).fill(0);
    const rows = Array.from({ length: size }, (_, row) => pixels.slice(row * size, (row + 1) * size));
    paint(this.seen, rows, (value) => mix(paper, ink, value));
  }

  show(answer, { since, present }) {
    if (!this.asked) return; // cleared while the answer was on its way
    this.chances.show(this.pads, present, answer);
    measurePainted("pointer to picture", since);
  }
}
