// The page of functions: one context, two models side by side.
import { Lane, measurePainted, post } from "./api.js";
import { Plot } from "./plot.js";
import { Points } from "./points.js";
import { Rates } from "./rates.js";

const GRID = 97; // points of a curve
const START = [[-1.45, 0.55], [-0.7, -0.65], [0.35, 0.3], [0.8, 0.95]];

export function startFunctions(models, tell) {
  const page = new FunctionsPage(models, tell);
  page.changed();
}

class Side {
  constructor(place, models, chosen, page, inTabOrder) {
    this.page = page;
    place.innerHTML =
      '<header><select aria-label="Model"></select><span class="told"></span></header>' +
      '<svg class="plot" tabindex="0" role="application" aria-label="Plot: Enter adds a point"></svg>' +
      '<p class="none far" role="status" hidden></p><div></div>';
    this.select = place.querySelector("select");
    for (const model of models) this.select.add(new Option(model.label, model.name));
    this.select.value = chosen.name;
    this.models = models;
    this.told = place.querySelector(".told");
    this.plot = Object.assign(new Plot(place.querySelector("svg")), { xName: "x", yName: "y" });
    this.far = place.querySelector(".far");
    this.points = new Points(this.plot, page, inTabOrder);
    this.rates = new Rates(place.lastElementChild);
    this.lane = new Lane("api/adapt", (answer, extra) => this.show(answer, extra), page.tell);
    this.select.addEventListener("change", () => page.changed());
  }

  get model() {
    return this.models.find((model) => model.name === this.select.value);
  }

  ask(context, since) {
    const { query, samples, seed } = this.page;
    const question = { model: this.model.name, ...context, query: query.map((x) => [x]), samples, seed };
    this.lane.ask(question, { query, since, model: this.model, asked: performance.now() });
  }

  show(answer, { query, since, model, asked }) {
    this.plot.query = query;
    this.plot.answer = answer;
    this.plot.drawAnswer();
    this.far.hidden = !answer.note;
    this.far.textContent = answer.note ? `Note: ${answer.note}.` : "";
    const note = "The exact posterior of random smooth functions, averaged over their kernels: the best that a model of them can do. No dropout.";
    this.rates.show(answer.rates, model.model === "exact-gp" ? note : `${model.label} has no dropout rates.`);
    this.told.textContent = `${Math.max(1, Math.round(performance.now() - asked))} ms`;
    measurePainted("pointer to picture", since);
  }

  async suggest(context) {
    const { query, seed } = this.page;
    const question = { model: this.model.name, ...context, query: query.map((x) => [x]), seed };
    const { x, mean } = await post("api/suggest", question);
    return { x: x[0], mean: mean[0] };
  }
}

class FunctionsPage {
  constructor(models, tell) {
    this.tell = tell;
    this.nextId = 0;
    this.seed = 1;
    this.points = START.map(([x, y]) => ({ id: this.nextId++, x, y }));
    const first = models.find((model) => model.has_rates) ?? models[0];
    const second = models.find((model) => model.model === "exact-gp" && model !== first) ?? models.at(-1);
    const [a, b] = document.querySelectorAll("#functions .side");
    this.sides = [new Side(a, models, first, this, true), new Side(b, models, second, this, false)];
    this.slider = document.getElementById("samples");
    this.slider.addEventListener("input", () => this.changed());
    this.on("redraw", () => (this.seed += 1));
    this.on("clear", () => (this.points = []));
    document.getElementById("suggest").addEventListener("click", () => this.suggest());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.changed());
  }

  on(id, change) {
    document.getElementById(id).addEventListener("click", () => {
      change();
      this.changed();
    });
  }

  get samples() {
    return Number(this.slider.value);
  }

  get xRange() {
    const ranges = this.sides.map((side) => side.model.x_range);
    return [Math.min(...ranges.map(([low]) => low)), Math.max(...ranges.map(([, high]) => high))];
  }

  get query() {
    const [low, high] = this.xRange;
    return Array.from({ length: GRID }, (_, i) => low + ((high - low) * i) / (GRID - 1));
  }

  get context() {
    return { x: this.points.map((point) => [point.x]), y: this.points.map((point) => [point.y]) };
  }

  add(x, y, since) {
    const most = Math.min(...this.sides.map((side) => side.model.most_context));
    if (this.points.length >= most) {
      this.tell(`${most} points are the most that both models take.`);
      return null;
    }
    this.points.push({ id: this.nextId, x, y });
    this.changed(since);
    return this.nextId++;
  }

  move(id, x, y, since) {
    Object.assign(this.points.find((point) => point.id === id), { x, y });
    this.changed(since);
  }

  remove(id, since) {
    this.points = this.points.filter((point) => point.id !== id);
    this.changed(since);
  }

  // The points are drawn at once; the predictions follow as fast as the models answer.
  changed(since) {
    if (!this.sides.some((side) => side.lane.troubled)) this.tell(null);
    document.getElementById("samples-shown").textContent = this.samples;
    for (const side of this.sides) {
      const resized = side.plot.xRange.join() !== this.xRange.join();
      Object.assign(side.plot, { suggestion: null, xRange: this.xRange });
      side.points.points = this.points;
      if (resized) side.plot.drawAxes();
      side.points.draw();
      side.plot.drawSuggestion();
      side.ask(this.context, since);
    }
  }

  async suggest() {
    try {
      const found = await Promise.all(this.sides.map((side) => side.suggest(this.context)));
      this.sides.forEach((side, i) => {
        side.plot.suggestion = found[i];
        side.plot.drawSuggestion();
      });
    } catch (error) {
      this.tell(error.message);
    }
  }
}
