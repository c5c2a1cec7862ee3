// A dropped table, read in the visitor's browser: only the points of the task that is looked at go to the server.

const MOST_BYTES = 8 * 1024 * 1024;
const MOST_COLUMNS = 100;
const MOST_ROWS = 100_000;
const EMPTY = new Set(["", "na", "n/a", "nan", "null", "none", "-"]); // in any case: as `nvdp predict` reads them

export async function readTable(file) {
  if (file.size > MOST_BYTES)
    throw new Error(`${file.name} holds ${(file.size / 2 ** 20).toFixed(1)} MB; expected at most ${MOST_BYTES / 2 ** 20} MB.`);
  return parseTable(await file.text(), file.name);
}

export function parseTable(text, name) {
  if (/[\0\uFFFD]/.test(text)) throw new Error(`${name} is not a text file in UTF-8; expected a CSV.`);
  const body = text.replace(/^\uFEFF/, "");
  const end = body.search(/[\r\n]/);
  const first = end < 0 ? body : body.slice(0, end);
  if (!first.trim()) throw new Error(`${name} is empty; expected a line of column names and rows.`);
  const delimiter = [",", ";", "\t"].reduce((best, each) => (first.split(each).length > first.split(best).length ? each : best));
  const lines = cells(body, delimiter, name);
  const columns = lines[0].cells.map((cell) => cell.trim());
  if (columns.length < 2) throw new Error(`${name} has 1 column; expected at least two, with commas between them.`);
  if (columns.length > MOST_COLUMNS) throw new Error(`${name} has ${columns.length} columns; expected at most ${MOST_COLUMNS}.`);
  const twice = columns.find((column, i) => columns.indexOf(column) !== i);
  if (twice !== undefined) throw new Error(`${name} has two columns named '${twice}'.`);
  const rows = lines.slice(1);
  if (rows.length === 0) throw new Error(`${name} has 0 rows; expected at least one under its column names.`);
  const ragged = rows.find((row) => row.cells.length !== columns.length);
  if (ragged) throw new Error(`${name}: line ${ragged.line} has ${ragged.cells.length} cells; expected ${columns.length}.`);
  return { name, columns, rows, decimalComma: delimiter === ";" };
}

// Cells with quotes, line by line; empty lines are left out.
function cells(text, delimiter, name) {
  const rows = [];
  let [row, cell, quoted, line, start] = [[], "", false, 1, 1];
  const endRow = () => {
    row.push(cell);
    if (row.length > 1 || row[0].trim()) rows.push({ cells: row, line: start });
    if (rows.length > MOST_ROWS + 1) throw new Error(`${name} has more than ${MOST_ROWS} rows, which is the most.`);
    [row, cell] = [[], ""];
  };
  for (let i = 0; i < text.length; i += 1) {
    const sign = text[i];
    if (sign === "\n") line += 1;
    if (quoted) {
      if (sign !== '"') cell += sign;
      else if (text[i + 1] === '"') cell += text[(i += 1)];
      else quoted = false;
    } else if (sign === '"' && !cell.trim()) [quoted, cell] = [true, ""];
    else if (sign === delimiter) {
      row.push(cell);
      cell = "";
    } else if (sign === "\n") {
      endRow();
      start = line;
    } else if (sign !== "\r") cell += sign;
  }
  if (quoted) throw new Error(`${name}: a quotation mark that opens in line ${start} is not closed.`);
  endRow();
  return rows;
}

// The tasks of a table by name, in order of first appearance; rows with an empty cell are left out and counted.
export function tasksOf(table, { task, x, y }) {
  const named = [task, x, ...y].filter((column) => column !== null);
  const twice = named.find((column, i) => named.indexOf(column) !== i);
  if (twice !== undefined) throw new Error(`The column '${twice}' is chosen twice; a column has one part.`);
  const place = (column) => table.columns.indexOf(column);
  const tasks = new Map();
  let leftOut = 0;
  for (const { cells: row, line } of table.rows) {
    const number = (column) => numberIn(row[place(column)], column, line, table);
    const values = [x, ...y].map(number);
    const name = task === null ? "all rows" : row[place(task)].trim();
    if (values.includes(null) || EMPTY.has(name.toLowerCase())) {
      leftOut += 1;
      continue;
    }
    if (!tasks.has(name)) tasks.set(name, { name, x: [], y: [] });
    tasks.get(name).x.push(values[0]);
    tasks.get(name).y.push(values.slice(1));
  }
  if (tasks.size === 0) throw new Error(`${table.name}: each of its ${table.rows.length} rows has an empty cell.`);
  return { tasks: [...tasks.values()], leftOut };
}

function numberIn(cell, column, line, table) {
  const text = cell.trim();
  if (EMPTY.has(text.toLowerCase())) return null;
  const plain = table.decimalComma ? text.replace(",", ".") : text;
  const value = /^[-+\d.]/.test(plain) && !/^[-+]?0[xXbBoO]/.test(plain) ? Number(plain) : NaN;
  if (Number.isFinite(value)) return value;
  throw new Error(`${table.name}: column '${column}' holds '${text.slice(0, 40)}' in line ${line}; expected a number.`);
}
