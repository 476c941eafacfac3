"""The one style sheet and the one script of the interactive blocks.

Without the script every block is readable as it is; the script adds what needs one. It puts text into the page as
text only, opens no connection, and adds no handler in an attribute.
"""

from __future__ import annotations

from laplacian_metric.report.blocks import palette
from laplacian_metric.report.page import Enhancement

_COLOURS = f"""
:root {{ --paper: {palette.PAPER}; --text: {palette.TEXT}; --quiet: {palette.QUIET}; --right: {palette.RIGHT};
  --wrong: {palette.WRONG}; --accent: {palette.ACCENT}; --panel: {palette.PANEL}; }}
"""

_STYLE = (
    _COLOURS
    + """
h1, h2, h3, p, figcaption, caption, summary { overflow-wrap: anywhere; }
[hidden] { display: none !important; }
h3 { font-size: 1.02rem; margin: 1.6rem 0 .3rem; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.quiet { color: var(--quiet); font-size: .9rem; }
button { font: inherit; font-size: .85rem; color: var(--accent); background: var(--paper); border: 1px solid;
  border-radius: .3rem; padding: .25rem .6rem; min-height: 2rem; cursor: pointer; }
.cards { list-style: none; padding: 0; margin: .8rem 0; display: grid; gap: .8rem;
  grid-template-columns: repeat(auto-fill, minmax(min(18rem, 100%), 1fr)); }
.card { border: 1px solid #d5dae1; border-radius: .4rem; padding: .7rem; display: flex; flex-direction: column;
  justify-content: space-between; gap: .5rem; min-width: 0; }
.card .enlarge { align-self: flex-start; }
.query { display: flex; gap: .7rem; align-items: flex-start; }
.query img { width: 5rem; flex: none; }
.query img.clickable { cursor: zoom-in; }
.small { image-rendering: pixelated; }
.about { min-width: 0; overflow-wrap: anywhere; font-size: .88rem; line-height: 1.4; }
.about p, .shown p { margin: 0; }
.name { font-weight: 600; font-size: 1rem; }
.right { color: var(--right); }
.wrong { color: var(--wrong); }
.verdict { font-weight: 600; }
.neighbours { list-style: none; display: grid; grid-template-columns: repeat(5, minmax(0, 1fr)); gap: .4rem;
  padding: 0; margin: .6rem 0 0; }
.neighbours li { font-size: .76rem; line-height: 1.3; border-top: 3px solid; padding-top: .25rem;
  overflow-wrap: anywhere; }
.neighbours li.wrong { border-top-style: double; border-top-width: 5px; }
.neighbours img { width: 100%; display: block; margin-bottom: .2rem; }
.neighbours .what { color: var(--text); }
dialog.larger { border: 0; border-radius: .5rem; padding: 0; width: min(46rem, 94vw); max-height: 92vh;
  color: var(--text); background: var(--paper); }
dialog.larger::backdrop { background: rgb(20 26 34 / .6); }
.inner { padding: 1rem; }
.bar { display: flex; flex-wrap: wrap; gap: .4rem; align-items: center; margin-bottom: .8rem; }
.bar .place { margin: 0; flex: 1; text-align: center; }
.larger .query { flex-wrap: wrap; }
.larger .query img { width: min(20rem, 100%); }
.larger .about { font-size: 1rem; }
.larger .neighbours { gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(6.6rem, 1fr)); }
.larger .neighbours li { font-size: .85rem; }
.larger .neighbours img { max-width: 9rem; }
.plane { display: grid; gap: 1rem; grid-template-columns: minmax(0, 1fr) 13rem; align-items: start; }
.plane svg { width: 100%; height: auto; border: 1px solid #d5dae1; border-radius: .4rem; display: block;
  touch-action: manipulation; }
.plane .ring { fill: none; stroke: #000; stroke-width: 2.5; pointer-events: none; }
.shown { background: var(--panel); border-radius: .4rem; padding: .7rem; min-height: 15rem; font-size: .88rem;
  overflow-wrap: anywhere; }
.shown img { width: 9rem; max-width: 100%; display: block; margin-bottom: .5rem; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0; margin: .6rem 0;
  font-size: .88rem; }
.legend li { display: flex; align-items: center; gap: .35rem; overflow-wrap: anywhere; }
.legend svg { width: 1rem; height: 1rem; flex: none; }
.control { background: var(--panel); border-radius: .4rem; padding: .9rem 1rem; }
.control label { display: block; font-weight: 600; }
.control input { width: 100%; margin: .5rem 0; min-height: 2rem; accent-color: var(--accent); display: block; }
.readings { display: grid; gap: .5rem 1.2rem; margin: .4rem 0 0;
  grid-template-columns: repeat(auto-fill, minmax(min(12.5rem, 100%), 1fr)); }
.readings dt { color: var(--quiet); font-size: .85rem; }
.readings dd { margin: 0; font-size: 1.1rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.curve { max-width: 34rem; }
.curve svg { width: 100%; height: auto; display: block; }
.curve text { font: 11px system-ui, sans-serif; fill: var(--quiet); }
.curve .grid { stroke: #e4e8ed; }
.curve .band { fill: var(--accent); fill-opacity: .16; }
.curve .own { fill: none; stroke: var(--accent); stroke-width: 2.2; }
.curve .oracle { fill: none; stroke: var(--text); stroke-width: 1.3; stroke-dasharray: 6 3; }
.curve .random { fill: none; stroke: var(--text); stroke-width: 1.3; stroke-dasharray: 1.5 3; }
.curve .mark { fill: var(--accent); stroke: #fff; stroke-width: 1.5; }
summary { cursor: pointer; color: var(--accent); padding: .3rem 0; }
@media (max-width: 42rem) {
  body { padding: 1rem .8rem; }
  .plane { grid-template-columns: minmax(0, 1fr); }
  .shown { min-height: 9rem; }
  .shown img { width: 6rem; float: left; margin-right: .7rem; }
  .shown::after { content: ""; display: block; clear: both; }
}
"""
)

_SCRIPT = """
"use strict";
(() => {
  const make = (tag, name, text) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const button = (text, action) => {
    const element = make("button", "", text);
    element.type = "button";
    element.addEventListener("click", action);
    return element;
  };
  const read = (root) => JSON.parse(root.querySelector('script[type="application/json"]').textContent);

  const gallery = (root) => {
    const cards = Array.from(root.querySelectorAll(".card"));
    const dialog = make("dialog", "larger");
    const content = make("div", "content");
    const place = make("p", "place");
    let current = 0;
    const show = (position) => {
      current = (position + cards.length) % cards.length;
      content.replaceChildren(cards[current].querySelector(".body").cloneNode(true));
      place.textContent = `${current + 1} of ${cards.length}`;
    };
    const close = button("Close", () => dialog.close());
    const bar = make("div", "bar");
    const inner = make("div", "inner");
    place.setAttribute("role", "status");
    bar.append(button("Previous", () => show(current - 1)), place, button("Next", () => show(current + 1)), close);
    inner.append(bar, content);
    dialog.append(inner);
    dialog.setAttribute("aria-label", `Larger view: ${root.dataset.title}`);
    dialog.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      show(current + step);
    });
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => cards[current].querySelector(".enlarge").focus());
    root.append(dialog);
    cards.forEach((card, position) => {
      const open = () => { show(position); dialog.showModal(); close.focus(); };
      const enlarge = card.querySelector(".enlarge");
      enlarge.hidden = false;
      enlarge.addEventListener("click", open);
      const picture = card.querySelector(".query img");
      if (picture) {
        picture.classList.add("clickable");
        picture.addEventListener("click", open);
      }
    });
  };

  const scatter = (root) => {
    const { points } = read(root);
    const svg = root.querySelector(".plane svg");
    const shown = root.querySelector(".shown");
    const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    let current = -1;
    const show = (position) => {
      if (position < 0 || position >= points.length || position === current) return;
      current = position;
      const point = points[position];
      const text = make("div");
      ring.setAttribute("cx", point.x);
      ring.setAttribute("cy", point.y);
      ring.setAttribute("visibility", "visible");
      point.lines.forEach((line, n) => text.append(make("p", n ? "" : "name", line)));
      shown.replaceChildren(text);
      if (point.image) {
        const picture = make("img", point.small ? "small" : "");
        picture.alt = `Image: ${point.lines[0]}`;
        picture.src = point.image;
        shown.prepend(picture);
      }
    };
    const towards = (right, down) => {
      const from = points[current];
      let best = -1;
      let least = Infinity;
      points.forEach((point, position) => {
        const along = (point.x - from.x) * right + (point.y - from.y) * down;
        const across = Math.abs((point.x - from.x) * down) + Math.abs((point.y - from.y) * right);
        if (along > 0 && across <= along && along + across < least) {
          least = along + across;
          best = position;
        }
      });
      return best;
    };
    const moves = {
      ArrowRight: () => towards(1, 0),
      ArrowLeft: () => towards(-1, 0),
      ArrowDown: () => towards(0, 1),
      ArrowUp: () => towards(0, -1),
      Home: () => 0,
      End: () => points.length - 1,
      PageUp: () => current - 1,
      PageDown: () => current + 1,
    };
    const pointed = (event) => {
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      let best = -1;
      let least = 20 * 20;
      points.forEach((point, position) => {
        const squared = (point.x - place.x) ** 2 + (point.y - place.y) ** 2;
        if (squared < least) {
          least = squared;
          best = position;
        }
      });
      show(best);
    };
    svg.querySelectorAll("title").forEach((title) => title.remove());
    ring.setAttribute("class", "ring");
    ring.setAttribute("r", "13");
    ring.setAttribute("visibility", "hidden");
    svg.append(ring);
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "application");
    svg.addEventListener("focus", () => { if (current < 0) show(0); });
    svg.addEventListener("pointermove", pointed);
    svg.addEventListener("click", pointed);
    svg.addEventListener("keydown", (event) => {
      const move = moves[event.key];
      if (!move || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      show(current < 0 ? 0 : move());
    });
    shown.hidden = false;
  };

  const refusal = (root) => {
    const { rows } = read(root);
    const control = root.querySelector(".control");
    const range = control.querySelector("input");
    const readings = Array.from(control.querySelectorAll("dd"));
    const mark = root.querySelector(".mark");
    const asked = control.querySelector(".asked");
    const update = () => {
      const row = rows[Number(range.value)];
      asked.textContent = `${range.value} %`;
      readings.forEach((reading, n) => { reading.textContent = row.texts[n]; });
      range.setAttribute("aria-valuetext", `${range.value} %: ${row.said}`);
      mark.setAttribute("cx", row.x);
      mark.setAttribute("cy", row.y);
    };
    range.addEventListener("input", update);
    mark.setAttribute("visibility", "visible");
    control.hidden = false;
    root.querySelector("details").open = false;
    update();
  };

  const enhance = { gallery, scatter, refusal };
  document.querySelectorAll("[data-block]").forEach((root) => enhance[root.dataset.block](root));
})();
"""

ENHANCEMENT = Enhancement(_STYLE, _SCRIPT)
