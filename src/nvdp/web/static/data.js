// The page of a visitor's own table: a model of `nvdp fit` predicts one of its tasks from some of its points.
import { Lane, post } from "./api.js";
import { readTable, tasksOf } from "./csv.js";
import { BAND, Plot, element } from "./plot.js";

const GRID = 161; // points of a curve
const UNCHOSEN = "\0"; // no column has this name
const SAMPLES = 16;
const START = 3; // points given at first
const MARGIN = 0.12; // of the range of y, above and below
const KINDS = ["mean", "std", "q05", "q95"]; // as nvdp predict names them
const quoted = (name) => (/[",\n]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name);

export function startData(models, tell) {
  document.getElementById("data-how").hidden = models.length > 0;
  document.getElementById("data-tool").hidden = models.length === 0;
  if (models.length) new DataPage(models, tell);
}

class DataPage {
  constructor(models, tell) {
    Object.assign(this, { models, tell, table: null, tasks: [], leftOut: 0 });
    const found = (id) => document.getElementById(id);
    this.select = found("data-model");
    for (const model of models) this.select.add(new Option(model.label, model.name));
    this.select.addEventListener("change", () => this.newModel());
    this.columns = found("data-columns");
    this.taskList = found("data-task");
    this.taskList.addEventListener("change", () => this.newTask());
    this.output = found("data-output");
    this.output.addEventListener("change", () => this.drawTask());
    this.slider = found("data-given");
    this.slider.addEventListener("input", () => this.changed());
    this.note = found("data-note");
    this.plot = new Plot(found("data-plot"));
    this.plot.drawn.push(() => this.drawDots());
    this.lane = new Lane("api/adapt", (answer, extra) => this.show(answer, extra), tell);
    this.listen(found("data-file"), document.querySelector(".drop"));
    found("data-sample").addEventListener("click", () => this.openSample());
    found("data-download").addEventListener("click", () => this.download());
    this.newModel();
  }

  get model() {
    return this.models.find((model) => model.name === this.select.value);
  }

  get task() {
    return this.tasks[Number(this.taskList.value)];
  }

  listen(input, zone) {
    input.addEventListener("change", () => input.files.length && this.open(input.files[0]));
    const over = (event, is) => {
      event.preventDefault();
      zone.classList.toggle("over", is);
    };
    for (const kind of ["dragenter", "dragover"]) zone.addEventListener(kind, (event) => over(event, true));
    zone.addEventListener("dragleave", (event) => over(event, false));
    zone.addEventListener("drop", (event) => {
      over(event, false);
      if (event.dataTransfer.files.length) this.open(event.dataTransfer.files[0]);
    });
  }

  async open(file) {
    try {
      this.table = await readTable(file);
      this.tell(null);
      document.getElementById("data-name").textContent = `${file.name}: ${this.table.rows.length} rows`;
      this.newModel();
    } catch (error) {
      this.table = null;
      this.columns.replaceChildren();
      this.refuse(error);
    }
  }

  // A table of tasks that the model itself makes up: functions drawn before it has seen any point.
  async openSample() {
    const { name, columns, x_range: [low, high] } = this.model;
    const query = Array.from({ length: 8 }, (_, i) => [low + ((high - low) * (i + 0.5)) / 8]);
    try {
      const { samples } = await post("api/adapt", { model: name, x: [], y: [], query, samples: 3, seed: 1 });
      const lines = [[columns.task ?? "task", columns.x[0], ...columns.y].map(quoted).join(",")];
      samples.forEach((values, s) =>
        query.forEach(([x], i) => lines.push([`sample ${s + 1}`, ...[x, ...values[i]].map((v) => v.toPrecision(6))].join(",")))
      );
      this.open(new File([`${lines.join("\n")}\n`], "sample.csv"));
    } catch (error) {
      this.refuse(error);
    }
  }

  // The curve that is drawn, as a table.
  download() {
    if (!this.drawn) return;
    const { query, mean, std } = this.drawn;
    const names = this.model.columns.y;
    const kinds = names.flatMap((name) => (names.length > 1 ? KINDS.map((kind) => `${name}_${kind}`) : KINDS));
    const part = (m, s) => [m, s, m - BAND * s, m + BAND * s];
    const rows = query.map((x, i) => [x, ...names.flatMap((_, k) => part(mean[i][k], std[i][k]))].join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([[[this.plot.xName, ...kinds].map(quoted).join(","), ...rows].join("\n"), "\n"], { type: "text/csv" }));
    link.download = "predictions.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  }

  refuse(error) {
    this.tell(error.message);
    this.tasks = [];
    document.getElementById("data-view").hidden = true;
  }

  // A list for each column that the model knows, set to the table's column of that name; without one the visitor chooses.
  newModel() {
    const { columns } = this.model;
    const told = [...columns.x, ...columns.y].join(", ") + (columns.task ? ` and ${columns.task}` : "");
    document.getElementById("data-expects").textContent = `This model was fitted to columns named ${told}.`;
    this.columns.replaceChildren();
    if (!this.table) return;
    const names = this.table.columns;
    const add = (part, wanted, optional) => {
      const label = document.createElement("label");
      label.className = "chooser";
      label.append(`${part} `);
      const list = document.createElement("select");
      list.dataset.part = part;
      if (!names.includes(wanted)) list.add(new Option("choose a column", UNCHOSEN));
      if (optional) list.add(new Option("none: all rows are one task", ""));
      for (const column of names) list.add(new Option(column, column));
      list.value = names.includes(wanted) ? wanted : UNCHOSEN;
      list.addEventListener("change", () => this.split());
      label.append(list);
      this.columns.append(label);
    };
    add("Task", columns.task, true);
    add(columns.x[0], columns.x[0], false);
    for (const name of columns.y) add(name, name, false);
    this.output.replaceChildren(...columns.y.map((name, index) => new Option(name, index)));
    this.output.parentElement.hidden = columns.y.length < 2;
    this.split();
  }

  split() {
    const lists = [...this.columns.querySelectorAll("select")];
    const open = lists.find((list) => list.value === UNCHOSEN);
    if (open) {
      this.refuse(new Error(`The table has no column named like the model's. Choose the one for: ${open.dataset.part}.`));
      return;
    }
    const [task, x, ...y] = lists.map((list) => list.value);
    try {
      Object.assign(this, tasksOf(this.table, { task: task || null, x, y }));
    } catch (error) {
      this.refuse(error);
      return;
    }
    this.tell(null);
    document.getElementById("data-view").hidden = false;
    Object.assign(this.plot, { xName: x, names: y });
    const counted = ({ name, x: points }) => `${name} (${points.length} ${points.length === 1 ? "point" : "points"})`;
    this.taskList.replaceChildren(...this.tasks.map((each, index) => new Option(counted(each), index)));
    this.newTask();
  }

  newTask() {
    const order = this.task.x.map((_, i) => i).sort((a, b) => this.task.x[a] - this.task.x[b]);
    this.points = order.map((i) => ({ x: this.task.x[i], y: this.task.y[i] }));
    const most = Math.min(this.points.length, this.model.most_context);
    this.slider.max = most;
    this.slider.value = Math.min(START, most);
    this.drawTask();
  }

  drawTask() {
    const output = Number(this.output.value);
    const reach = (values) => values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
    const [low, high] = reach(this.tasks.flatMap((task) => task.y.map((y) => y[output])));
    const room = (high - low || Math.abs(high) || 1) * MARGIN;
    const xRange = reach([...this.model.x_range, ...this.points.map(({ x }) => x)]);
    if (xRange[0] === xRange[1]) xRange[1] += 1;
    Object.assign(this.plot, { xRange, yRange: [low - room, high + room], yName: this.plot.names[output], output, answer: null });
    this.plot.draw();
    this.changed();
  }

  changed() {
    const given = Number(this.slider.value);
    document.getElementById("data-given-shown").textContent = `${given} of ${this.points.length}`;
    this.drawDots();
    const [low, high] = this.plot.xRange;
    const query = Array.from({ length: GRID }, (_, i) => low + ((high - low) * i) / (GRID - 1));
    const hidden = this.points.slice(given, given + 1024 - GRID);
    const used = this.points.slice(0, given);
    const question = { model: this.model.name, x: used.map(({ x }) => [x]), y: used.map(({ y }) => y), samples: SAMPLES, seed: 1 };
    const asked = { ...question, query: [...query, ...hidden.map(({ x }) => x)].map((x) => [x]) };
    this.lane.ask(asked, { query, hidden, plotted: this.points });
  }

  show({ mean, std, samples, note }, { query, hidden, plotted }) {
    if (plotted !== this.points) return; // of the task before
    const curve = (values) => values.slice(0, GRID);
    Object.assign(this.plot, { query, answer: { mean: curve(mean), std: curve(std), samples: samples.map(curve) } });
    this.plot.drawAnswer();
    this.drawn = { query, mean: curve(mean), std: curve(std) };
    const { output } = this.plot;
    const inside = hidden.filter(({ y }, i) => Math.abs(y[output] - mean[GRID + i][output]) <= BAND * std[GRID + i][output]);
    this.say(hidden.length, inside.length, note);
  }

  say(hidden, inside, note) {
    const many = (count, thing) => `${count} ${thing}${count === 1 ? "" : "s"}`;
    const notes = ["It has seen all points."];
    if (hidden) notes[0] = `${inside} of the ${many(hidden, "point")} it has not seen ${inside === 1 ? "lies" : "lie"} in the band of 90 %.`;
    if (note) notes.push(`Note: ${note}.`);
    if (this.leftOut) notes.push(`Left out ${many(this.leftOut, "row")} with an empty cell.`);
    this.note.textContent = notes.join(" ");
  }

  drawDots() {
    if (!this.points) return;
    const { plot } = this;
    plot.dots.replaceChildren();
    this.points.forEach(({ x, y }, i) => {
      const kind = i < Number(this.slider.value) ? "dot" : "dot hidden-point";
      element("circle", { class: kind, r: 5, cx: plot.toX(x), cy: plot.toY(y[plot.output]) }, plot.dots);
    });
  }
}
