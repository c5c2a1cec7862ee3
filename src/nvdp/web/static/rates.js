// The dropout rates that a context chooses, a small heat map for each layer (figure 9 of the paper, alive).

const HIGHEST = 0.6; // of the colour scale: block means above it are rare

export class Rates {
  constructor(place) {
    this.place = place;
    this.layers = [];
  }

  show(rates, note) {
    if (!rates) {
      this.layers = [];
      this.place.className = "none";
      this.place.textContent = note;
      return;
    }
    if (this.layers.length !== rates.length) this.build(rates);
    const [paper, mine] = [this.colour("--card"), this.colour("--mine")];
    rates.forEach((layer, index) => this.draw(this.layers[index], layer, paper, mine));
    this.drawRamp(paper, mine);
  }

  build(rates) {
    this.place.className = "rates";
    this.place.innerHTML =
      `<h2>Dropout rates this context chooses <span>0 <canvas class="ramp" width="64" height="1"></canvas> ${HIGHEST}</span></h2>` +
      '<div class="layers"></div>';
    const row = this.place.querySelector(".layers");
    this.layers = rates.map((layer, index) => {
      const figure = document.createElement("figure");
      const [rows, columns] = [layer.heat.length, layer.heat[0].length];
      // A layer of one input or two outputs is drawn upright and narrow.
      figure.classList.toggle("thin", Math.min(rows, columns) < 8);
      figure.innerHTML = `<canvas></canvas><figcaption><b></b>${layer.shape.join("×")}</figcaption>`;
      figure.title = `layer ${index + 1}: ${layer.shape[0]} inputs, ${layer.shape[1]} outputs`;
      row.append(figure);
      return figure;
    });
  }

  draw(figure, layer, paper, mine) {
    const heat = layer.heat.length === 1 ? layer.heat[0].map((rate) => [rate]) : layer.heat;
    const canvas = figure.querySelector("canvas");
    paint(canvas, heat, (rate) => mix(paper, mine, rate / HIGHEST));
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${figure.title}, mean rate ${layer.mean.toFixed(2)}`);
    figure.querySelector("b").textContent = layer.mean.toFixed(2);
  }

  drawRamp(paper, mine) {
    const ramp = this.place.querySelector(".ramp");
    paint(ramp, [Array.from({ length: 64 }, (_, i) => i / 63)], (share) => mix(paper, mine, share));
  }

  colour(name) {
    return rgb(getComputedStyle(this.place).getPropertyValue(name));
  }
}

export function rgb(hex) {
  const digits = hex.trim().slice(1);
  return [0, 2, 4].map((at) => parseInt(digits.slice(at, at + 2), 16));
}

export function mix(from, to, share) {
  const part = Math.min(1, Math.max(0, share));
  return from.map((value, i) => value + (to[i] - value) * part);
}

// A matrix as a picture of one pixel for each entry; CSS makes it larger.
export function paint(canvas, matrix, colour) {
  const [rows, columns] = [matrix.length, matrix[0].length];
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== rows) canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  matrix.flat().forEach((value, i) => image.data.set([...colour(value), 255], 4 * i));
  context.putImageData(image, 0, 0);
}
