// Ranks measured faults by likeness to what the reader typed; the laboratory ranks them by the same arithmetic, and a test compares the two.
(() => {
  "use strict";

  const SHOWN = 6;

  function shares(kept, promised) {
    let reached = 1;
    return kept.map((part, k) => (reached *= Math.min(1, part * promised[k])));
  }

  function distance(expected, seen, length) {
    const known = seen.map((value, k) => [value, expected[k]]).filter(([value]) => value !== null);
    if (known.length) {
      return Math.sqrt(known.reduce((sum, [value, own]) => sum + (value - own) ** 2, 0) / known.length);
    }
    return Math.abs(length - 1 - expected.reduce((sum, own) => sum + own, 0)) / expected.length;
  }

  function start(form) {
    const { retained, promised, links } = JSON.parse(form.querySelector("script").textContent);
    const result = form.querySelector("[data-result]");
    const number = (field) => (field.value === "" ? null : Number(field.value));
    const fields = (kind) => promised.map((_, k) => number(form.querySelector(`[data-${kind}="${k + 1}"]`)));

    function rank() {
      const seen = fields("share");
      const length = number(form.querySelector("[data-length]"));
      result.replaceChildren();
      if (length === null && seen.every((value) => value === null)) {
        return;
      }
      const own = fields("promised").map((value, k) => value ?? promised[k]);
      const ranked = Object.entries(retained).map(([name, kept]) => {
        const expected = shares(kept, own);
        return { name, expected, distance: distance(expected, seen, length) };
      });
      ranked.sort((a, b) => a.distance - b.distance);
      for (const { name, expected } of ranked.slice(0, SHOWN)) {
        const item = document.createElement("li");
        const word = document.createElement(links[name] ? "a" : "span");
        word.textContent = name;
        if (links[name]) {
          word.href = links[name];
        }
        const length = 1 + expected.reduce((sum, share) => sum + share, 0);
        const text = `: expect ${length.toFixed(2)}, by position ${expected.map((s) => s.toFixed(2)).join(", ")}`;
        item.append(word, text);
        result.append(item);
      }
    }

    form.addEventListener("input", rank);
    rank();
  }

  for (const form of document.querySelectorAll("form.eagle3lab-chooser:not([data-started])")) {
    form.dataset.started = "";
    start(form);
  }
})();
