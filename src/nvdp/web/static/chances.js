// The probabilities of the signs: a bar for the mean, a tick for each sampled classifier, and what that means in words.
import { element } from "./plot.js";
import { trace } from "./strokes.js";

const WIDE = 200; // units of the drawing of a bar
const TALL = 26;
const SURE = 0.85;

const percent = (share) => (share > 0.995 ? "> 99" : share < 0.005 ? "< 1" : String(Math.round(100 * share)));

export class Chances {
  constructor(place, signs) {
    this.told = place.querySelector(".verdict");
    const list = place.querySelector("ol");
    this.rows = Array.from({ length: signs }, (_, index) => {
      const row = document.createElement("li");
      row.innerHTML = `<canvas aria-hidden="true"></canvas><svg viewBox="0 0 ${WIDE} ${TALL}" preserveAspectRatio="none" aria-hidden="true"></svg><output></output>`;
      const svg = row.querySelector("svg");
      element("rect", { class: "whole", width: WIDE, height: TALL, rx: 3 }, svg);
      const bar = element("rect", { class: "share", width: 0, height: TALL, rx: 3 }, svg);
      const ticks = element("g", {}, svg);
      list.append(row);
      return { row, bar, ticks, index, thumb: row.querySelector("canvas"), text: row.querySelector("output") };
    });
  }

  wait(pads, reason) {
    for (const row of this.rows) this.fill(row, pads[row.index], null);
    this.told.textContent = reason;
  }

  show(pads, present, { probabilities: [mean], std: [std], samples, entropy: [entropy], disagreement: [disagreement] }) {
    const top = mean.indexOf(Math.max(...mean));
    for (const row of this.rows) {
      const place = present.indexOf(row.index);
      const chance = place < 0 ? null : { mean: mean[place], std: std[place], samples: samples.map(([each]) => each[place]) };
      this.fill(row, pads[row.index], chance);
      row.row.classList.toggle("likeliest", place === top);
    }
    const name = `sign ${present[top] + 1}`;
    const opinion = mean[top] > SURE ? `It is ${name}.` : mean[top] > 0.5 ? `Probably ${name}.` : "Hard to say.";
    const share = Math.round((100 * disagreement) / Math.max(entropy, 1e-9));
    const nats = entropy.toFixed(2);
    const most = Math.log(present.length).toFixed(2);
    const apart = std.every((each) => each === 0)
      ? ". This model is a single classifier, without spread."
      : `, ${share} % of it because the sampled classifiers disagree.`;
    this.told.textContent = `${opinion} Uncertainty ${nats} of at most ${most} nats${apart}`;
  }

  fill({ row, bar, ticks, thumb, text, index }, pad, chance) {
    this.drawThumb(thumb, pad);
    row.classList.toggle("absent", chance === null);
    row.classList.remove("likeliest");
    bar.setAttribute("width", WIDE * (chance?.mean ?? 0));
    const samples = chance?.samples ?? [];
    while (ticks.children.length > samples.length) ticks.lastChild.remove();
    while (ticks.children.length < samples.length) element("line", { y1: 5, y2: TALL - 5 }, ticks);
    samples.forEach((share, i) => {
      const at = 1 + (WIDE - 2) * share;
      ticks.children[i].setAttribute("x1", at);
      ticks.children[i].setAttribute("x2", at);
    });
    const spread = chance ? Math.round(100 * chance.std) : 0;
    text.textContent = chance ? `${percent(chance.mean)} %${spread ? ` ± ${spread}` : ""}` : "–";
    const spoken = chance ? `${percent(chance.mean)} percent${spread ? `, plus or minus ${spread}` : ""}` : "not drawn";
    row.setAttribute("aria-label", `Sign ${index + 1}: ${spoken}`);
  }

  drawThumb(canvas, pad) {
    const side = 64;
    canvas.width = canvas.height = side;
    const context = canvas.getContext("2d");
    context.strokeStyle = getComputedStyle(canvas).getPropertyValue("--ink");
    trace(context, pad.strokes, side, 2 / 28);
  }
}
