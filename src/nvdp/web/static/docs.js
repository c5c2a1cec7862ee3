// The API's description, made from openapi.json alone, with a form to try each route.

const made = (tag, text = "", kind = "") => Object.assign(document.createElement(tag), { textContent: text, className: kind });

function kindOf(schema, all) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map((each) => kindOf(each, all)).join(" or ");
  if (schema.prefixItems) return `[${schema.prefixItems.map((each) => kindOf(each, all)).join(", ")}]`;
  if (schema.type === "array") return `[${schema.items ? kindOf(schema.items, all) : "…"}]`;
  const bounds = [];
  const short = (bound) => (Math.abs(bound) < 1e6 ? String(bound) : Number(bound.toPrecision(2)).toExponential()).replace("e+", "e");
  if (schema.minimum !== undefined) bounds.push(`${short(schema.minimum)} to ${short(schema.maximum)}`);
  if (schema.maxLength !== undefined) bounds.push(`at most ${schema.maxLength} characters`);
  return [schema.type ?? "any", ...bounds].join(", ");
}

function sizeOf(schema) {
  return schema.maxItems === undefined || schema.prefixItems ? "" : ` (${schema.minItems ?? 0} to ${schema.maxItems})`;
}

function fields(schema, all) {
  const record = schema?.$ref ? all[schema.$ref.split("/").at(-1)] : schema?.items?.$ref ? all[schema.items.$ref.split("/").at(-1)] : null;
  const table = made("table");
  for (const [name, value] of Object.entries(record?.properties ?? {})) {
    const row = table.insertRow();
    row.append(made("td", name), made("td", kindOf(value, all) + sizeOf(value)), made("td", value.description ?? ""));
  }
  const scroll = made("div", "", "scroll");
  scroll.append(table);
  return [scroll, record];
}

function trial(method, path, example) {
  const place = made("div");
  const body = made("textarea");
  body.rows = 3;
  body.value = JSON.stringify(example ?? {});
  body.setAttribute("aria-label", `Body of ${path}`);
  const send = made("button", "Try it");
  const answer = made("pre");
  answer.hidden = true;
  send.addEventListener("click", async () => {
    const options = method === "post" ? { method: "POST", headers: { "Content-Type": "application/json" }, body: body.value } : {};
    const response = await fetch(path.slice(1), options);
    answer.hidden = false;
    answer.textContent = `${response.status}\n${(await response.text()).slice(0, 4000)}`;
  });
  if (method === "post") place.append(body);
  place.append(answer, send);
  return place;
}

const description = await fetch("api/openapi.json").then((response) => response.json());
const all = description.components.schemas;
for (const [path, methods] of Object.entries(description.paths)) {
  for (const [method, route] of Object.entries(methods)) {
    const card = made("section", "", "route");
    const title = made("h2");
    title.append(made("b", method.toUpperCase()), path);
    card.append(title, made("p", route.description));
    const [asked, record] = fields(route.requestBody?.content["application/json"].schema, all);
    if (record) card.append(made("h3", "Body"), asked);
    card.append(made("h3", "Answer"), fields(route.responses[200].content["application/json"].schema, all)[0]);
    const refusals = Object.entries(route.responses).filter(([code]) => code !== "200");
    if (refusals.length) card.append(made("h3", `Refusals: {"detail": why}`), made("p", refusals.map(([code, { description }]) => `${code} ${description}`).join(" · ")));
    card.append(made("h3", "Try"), trial(method, path, record?.example));
    document.getElementById("routes").append(card);
  }
}
