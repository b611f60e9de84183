"use strict";
(() => {
  const frame = document.getElementById("graph");
  const svg = frame.querySelector("svg");
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const nodes = [...svg.querySelectorAll(".node")];
  const edges = [...svg.querySelectorAll(".edge")];
  const hint = document.querySelector(".hint");
  const LEAST = 0.1, MOST = 3, READABLE = 0.7, STEP = 1.25;
  let scale = 1, chosen = null;

  // Zoom, with the content under (x, y) of the frame [px] kept in its place.
  function zoom(to, x = frame.clientWidth / 2, y = frame.clientHeight / 2) {
    const next = Math.min(MOST, Math.max(LEAST, to));
    const left = (frame.scrollLeft + x) / scale, top = (frame.scrollTop + y) / scale;
    svg.setAttribute("width", width * next);
    svg.setAttribute("height", height * next);
    scale = next;
    frame.scrollLeft = left * next - x;
    frame.scrollTop = top * next - y;
  }

  const whole = () => Math.min(1, frame.clientWidth / width, parseFloat(getComputedStyle(frame).maxHeight) / height);
  const zooms = { in: () => zoom(scale * STEP), out: () => zoom(scale / STEP), fit: () => zoom(whole()) };
  const keys = { "+": zooms.in, "=": zooms.in, "-": zooms.out, "0": zooms.fit };

  // Bring a node into the frame, and nothing but the frame into motion.
  function reveal(node) {
    const box = node.getBoundingClientRect(), seen = frame.getBoundingClientRect();
    if (box.left < seen.left || box.right > seen.right) frame.scrollLeft += (box.left + box.right - seen.left - seen.right) / 2;
    if (box.top < seen.top || box.bottom > seen.bottom) frame.scrollTop += (box.top + box.bottom - seen.top - seen.bottom) / 2;
  }

  // The node itself and all that it rests on.
  function upstream(key) {
    const found = new Set([key]);
    for (const one of found) for (const edge of edges) if (edge.dataset.to === one) found.add(edge.dataset.from);
    return found;
  }

  function choose(key, focus) {
    const facts = document.getElementById(key);
    if (!facts || !facts.classList.contains("facts")) return false;
    chosen = key;
    for (const one of document.querySelectorAll(".facts")) one.classList.toggle("shown", one === facts);
    const behind = upstream(key), near = new Set(behind);
    for (const edge of edges) {
      const reads = behind.has(edge.dataset.to), feeds = edge.dataset.from === key;
      edge.classList.toggle("near", reads || feeds);
      if (feeds) near.add(edge.dataset.to);
    }
    for (const node of nodes) {
      node.classList.toggle("far", !near.has(node.dataset.node));
      if (node.dataset.node === key) {
        node.setAttribute("aria-current", "true");
        reveal(node);
      } else node.removeAttribute("aria-current");
    }
    hint.hidden = true;
    if (focus) {
      const heading = facts.querySelector("h3");
      heading.focus({ preventScroll: true });
      const box = heading.getBoundingClientRect();
      if (box.top < 0 || box.bottom > innerHeight - 160) heading.scrollIntoView({ block: "center" });
    }
    return true;
  }

  function clear() {
    const node = nodes.find((one) => one.dataset.node === chosen);
    for (const one of document.querySelectorAll(".shown, .near, .far")) one.classList.remove("shown", "near", "far");
    if (node) {
      node.removeAttribute("aria-current");
      node.focus();
    }
    chosen = null;
    hint.hidden = false;
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link) return;
    const key = link.getAttribute("href").slice(1);
    if (choose(key, true)) event.preventDefault();
    else if (location.protocol === "about:") { // shown inside another page, whose address a fragment would change
      event.preventDefault();
      document.getElementById(key).scrollIntoView();
    }
  });
  document.querySelector(".tools").addEventListener("click", (event) => {
    const button = event.target.closest("[data-zoom]");
    if (button) zooms[button.dataset.zoom]();
  });
  frame.addEventListener("keydown", (event) => {
    if (event.key in keys && !event.ctrlKey && !event.metaKey) {
      keys[event.key]();
      event.preventDefault();
    }
  });
  document.getElementById("lineage").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chosen) clear();
  });
  frame.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = frame.getBoundingClientRect();
    zoom(scale * Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });

  // A mouse drags the graph; a finger scrolls it as it scrolls anything.
  let grip = null;
  frame.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0) grip = { x: event.clientX, y: event.clientY, moved: false };
  });
  addEventListener("pointermove", (event) => {
    if (!grip) return;
    const x = event.clientX - grip.x, y = event.clientY - grip.y;
    if (!grip.moved && Math.hypot(x, y) < 4) return;
    frame.classList.add("dragged");
    frame.scrollBy(-x, -y);
    grip = { x: event.clientX, y: event.clientY, moved: true };
  });
  addEventListener("pointerup", () => {
    const dragged = grip && grip.moved;
    grip = null;
    frame.classList.remove("dragged");
    if (!dragged) return;
    const swallow = (event) => { event.preventDefault(); event.stopPropagation(); };
    addEventListener("click", swallow, { capture: true });
    setTimeout(() => removeEventListener("click", swallow, { capture: true }), 0);
  });
  svg.addEventListener("dragstart", (event) => event.preventDefault());

  document.documentElement.classList.add("js");
  document.querySelector(".tools").hidden = false;
  hint.hidden = false;
  zoom(Math.max(whole(), READABLE));
  frame.scrollLeft = 0;
  if (location.hash) choose(decodeURIComponent(location.hash.slice(1)), false);
  addEventListener("hashchange", () => choose(decodeURIComponent(location.hash.slice(1)), true));
})();
