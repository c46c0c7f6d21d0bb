// Draws the page's figures and keeps their colours those of the page, light or dark.
// eagle3lab.figures.theme leaves text, grid and background to the template; only the template is changed here, so
// a colour that a chapter sets on purpose stays.
(() => {
  "use strict";

  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function coloured(layout, narrow) {
    const text = variable("--pst-color-text-base") || "#767676";
    const grid = variable("--pst-color-border") || "rgba(128,128,128,0.35)";
    const surface = variable("--pst-color-surface") || "#888888";
    const copy = structuredClone(layout);
    const template = ((copy.template ??= {}).layout ??= {});
    (template.font ??= {}).color = text;
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, tickcolor: grid };
    Object.assign((template.xaxis ??= {}), axis);
    Object.assign((template.yaxis ??= {}), axis);
    template.hoverlabel = { ...template.hoverlabel, bgcolor: surface, bordercolor: grid, font: { color: text } };
    template.modebar = { bgcolor: "rgba(0,0,0,0)", color: grid, activecolor: text };
    if (narrow) {
      (template.font ??= {}).size = 11;
    }
    return copy;
  }

  function draw(figure) {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const plot = figure.querySelector(".eagle3lab-plot");
    const narrow = figure.clientWidth < 500;
    const config = { responsive: true, displaylogo: false, displayModeBar: narrow ? false : "hover", ...spec.config };
    return Plotly.react(plot, spec.data, coloured(spec.layout, narrow), config);
  }

  function drawAll() {
    for (const figure of document.querySelectorAll("figure.eagle3lab-figure")) {
      draw(figure);
    }
  }

  function start() {
    drawAll();
    new MutationObserver(drawAll).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  if (document.readyState === "loading") {
    document.addEventListener("DOMContentLoaded", start);
  } else {
    start();
  }
})();
