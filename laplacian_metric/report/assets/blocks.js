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
