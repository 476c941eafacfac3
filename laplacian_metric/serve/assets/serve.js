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
  const k = Number(element("k").value);
  const typed = element("vector").value.trim();
  const text = element("text").value.trim();
  if (file) return ask(`query/image?k=${k}`, { method: "POST", body: file });
  if (text) return ask("query/text", posted({ k, text }));
  if (!typed) throw new Error("nothing to search for: choose an image, or fill in a field");
  const vector = typed.replace(/[[\]]/g, " ").split(/[\s,;]+/).filter(Boolean).map(Number);
  if (vector.some((number) => !Number.isFinite(number))) throw new Error("the vector has an entry that is not a number");
  return ask("query/vector", posted({ k, vector }));
}

function show(answer) {
  const accepted = answer.verdict === "accept";
  const verdict = element("verdict");
  verdict.textContent = accepted ? answer.label ?? answer.nearest : answer.verdict;
  verdict.className = accepted ? "good" : "bad";
  const probability = answer.probability === null ? "unknown" : answer.probability.toFixed(2);
  const against = accepted ? "" : ` Against it: ${answer.because}.`;
  element("why").textContent = `The nearest item, ${answer.nearest}, is right with probability ${probability}.${against}`;
  element("items").replaceChildren(...answer.neighbours.map((item) => {
    const row = document.createElement("tr");
    for (const value of [item.id, item.label ?? "–", item.distance.toFixed(4)]) {
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
  element("about").textContent = `${health.items.toLocaleString("en")} items. An answer is accepted from a probability of ${health.threshold.toFixed(2)} on.`;
  element("width").textContent = health.dim;
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
