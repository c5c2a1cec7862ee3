// Which page is shown: the hash names it. A page without a model is not listed, but that of tables says how to make one.
import { models } from "./api.js";
import { startCharacters } from "./characters.js";
import { startData } from "./data.js";
import { startFunctions } from "./functions.js";
import { startImages } from "./images.js";

const STARTS = { functions: startFunctions, images: startImages, characters: startCharacters, data: startData };
const trouble = document.querySelector(".trouble");

// Nothing hides what was told; with `own`, only if that is what stands there.
export function tell(reason, own) {
  if (!reason && own && trouble.textContent !== own) return;
  trouble.hidden = !reason;
  trouble.textContent = reason ?? "";
}

// What `nvdp info` prints of the models of a page.
function showCards(models) {
  const cards = document.getElementById("cards");
  cards.hidden = !models.length;
  cards.lastElementChild.replaceChildren(...models.flatMap((model) => {
    const [title, list] = [document.createElement("h3"), document.createElement("ul")];
    title.textContent = `${model.label} (${model.name})`;
    list.append(...model.card.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
    return [title, list];
  }));
}

async function open() {
  const all = await models();
  const started = new Set();
  const pages = Object.keys(STARTS).filter((page) => page === "data" || all.some((model) => model.page === page));
  for (const link of document.querySelectorAll("nav [data-page]")) link.hidden = !pages.includes(link.dataset.page);

  const show = () => {
    const wanted = location.hash.slice(1);
    const current = pages.includes(wanted) ? wanted : pages[0];
    for (const page of Object.keys(STARTS)) document.getElementById(page).hidden = page !== current;
    for (const link of document.querySelectorAll("nav [data-page]")) {
      if (link.dataset.page === current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    showCards(all.filter((model) => model.page === current && model.card.length));
    if (!started.has(current)) {
      started.add(current);
      STARTS[current](all.filter((model) => model.page === current), tell);
    }
  };
  addEventListener("hashchange", show);
  show();
}

open().catch((error) => tell(error.message));
