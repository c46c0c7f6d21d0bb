// Reads a pasted decode line: what its accept rate counts, by release, and how many drafts that is.
// A formula and a number of draft tokens D are taken to fit where both printed numbers, rounded to two decimals, agree.
(() => {
  "use strict";
  const LARGEST_D = 64, HALF = 0.005, SLACK = 1e-9;
  const PRINTED = {
    "len/D": (length, d) => length / d,
    "len/(steps+1)": (length, d) => length / d, // of a chain, whose D is steps + 1
    "(len-1)/(D-1)": (length, d) => (length - 1) / (d - 1),
  };

  function fitting(formula, length, rate) {
    const printed = PRINTED[formula], found = [];
    for (let d = 2; d <= LARGEST_D; d++) {
      if (length > d + HALF) continue;
      const low = printed(length - HALF, d) - HALF, high = printed(length + HALF, d) + HALF;
      if (low + SLACK < rate && rate < high - SLACK) found.push(d);
    }
    return found;
  }

  function drafts(length, ds) {
    if (Math.abs(length - 1) < HALF) return "nothing is accepted";
    const shares = ds.map((d) => Math.round((100 * (length - 1)) / (d - 1)));
    const low = Math.min(...shares), high = Math.max(...shares);
    return `${low === high ? low : `${low} to ${high}`} % of the drafts are accepted`;
  }

  function read(line, ranges) {
    const length = line.match(/accept[ _]?len(?:gth)?\D{0,4}(\d+(?:\.\d+)?)/i);
    const rate = line.match(/accept[ _]?rate\D{0,4}(\d+(?:\.\d+)?)/i);
    const numbers = line.match(/\d+\.\d+/g) || [];
    const l = Number(length ? length[1] : numbers[0]);
    const r = Number(rate ? rate[1] : numbers[1]);
    if (!(l >= 1)) return ["No accept length of 1 or more is in this line."];
    const said = [`Accept length ${l.toFixed(2)}: ${(l - 1).toFixed(2)} drafted tokens are kept per verify step.`];
    if (Number.isNaN(r)) return said;
    for (const { releases, formula } of ranges) {
      if (!(formula in PRINTED)) continue;
      const ds = fitting(formula, l, r);
      if (!ds.length) continue;
      const d = ds.length > 3 ? `${ds[0]} to ${ds[ds.length - 1]}` : ds.join(" or ");
      said.push(`SGLang ${releases}: the rate is ${formula}, with D = ${d} draft tokens: ${drafts(l, ds)}.`);
    }
    if (said.length === 1) said.push("No release of SGLang prints this pair of numbers.");
    return said;
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const field of document.querySelectorAll(".eagle3lab-rate")) {
      const input = field.querySelector("input"), output = field.querySelector("output");
      const ranges = JSON.parse(field.querySelector("script").textContent);
      const show = () => output.replaceChildren(...read(input.value, ranges).map((sentence) => {
        const line = document.createElement("p");
        line.textContent = sentence;
        return line;
      }));
      input.addEventListener("input", show);
      show();
    }
  });
})();
