"use strict";

const element = (id) => document.getElementById(id);
let health = null;
let file = null;

async function ask(path, options) {
  const response = await fetch(path, options);
  let content;
  try {
    content = await response.json();
  } catch {
    throw new Error(`the service answered ${response.status}`);
  }
  if (!response.ok) throw new Error(content.detail || `the service answered ${response.status}`);
  return content;
}

function posted(content) {
  return { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(content) };
}

function choose(chosen) {
  file = chosen;
  element("name").textContent = file ? file.name : "";
}

function request() {
  const options = { k: Number(element("k").value), all: element("all").checked };
  const vector = element("vector").value.trim();
  const text = element("text").value.trim();
  if (file) {
    return ask(`query/image?k=${options.k}&all=${options.all}`, { method: "POST", body: file });
  }
  if (text) return ask("query/text", posted({ ...options, text }));
  if (!vector) throw new Error("nothing to search for: choose an image, or fill in a field");
  const numbers = vector.replace(/[[\]]/g, " ").split(/[\s,;]+/).filter(Boolean).map(Number);
  if (numbers.some((number) => !Number.isFinite(number))) throw new Error("the vector has something that is no number");
  const name = health && health.features !== null ? "features" : "embedding";
  return ask("query/vector", posted({ ...options, [name]: numbers }));
}

function show(answer) {
  const refused = answer.answered === false;
  const verdict = element("verdict");
  verdict.textContent = refused ? "Refused" : answer.label !== null ? answer.label : "Nearest items";
  verdict.className = refused ? "bad" : answer.reason === "trusted" ? "good" : "";
  const parts = [];
  if (answer.probability !== null) parts.push(`The nearest item is right with probability ${answer.probability.toFixed(2)}.`);
  if (answer.reason !== null) parts.push(`Reason: ${answer.reason} (${answer.because}).`);
  if (refused && answer.reason === null) parts.push(answer.refusal);
  element("why").textContent = parts.join(" ");
  element("items").replaceChildren(...answer.neighbours.map((item) => {
    const row = document.createElement("tr");
    const probability = item.probability === null ? "–" : item.probability.toFixed(3);
    for (const value of [item.id, item.similarity.toFixed(4), probability]) {
      const cell = document.createElement("td");
      cell.textContent = value;
      row.append(cell);
    }
    return row;
  }));
  element("answer").hidden = false;
}

async function search(event) {
  event.preventDefault();
  element("error").hidden = true;
  element("answer").hidden = true;
  const button = element("form").querySelector("button");
  button.disabled = true;
  try {
    show(await request());
  } catch (error) {
    element("error").textContent = error.message;
    element("error").hidden = false;
  }
  button.disabled = false;
}

async function start() {
  try {
    health = await ask("health");
  } catch (error) {
    element("about").textContent = `The service does not answer: ${error.message}`;
    return;
  }
  element("about").textContent = `${health.items.toLocaleString("en")} items in ${health.dim} dimensions.`;
  element("width").textContent = health.features === null ? health.dim : health.features;
  for (const input of document.querySelectorAll("[data-takes]")) {
    input.hidden = !health.takes.includes(input.dataset.takes);
  }
}

element("form").addEventListener("submit", search);
element("file").addEventListener("change", (event) => choose(event.target.files[0] || null));
const drop = element("drop");
for (const name of ["dragenter", "dragover"]) {
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files.length) choose(event.dataTransfer.files[0]);
});
start();
