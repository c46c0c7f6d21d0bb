// One switch a page for the code of its cells, which a reader of the results need not see.
document.addEventListener("DOMContentLoaded", () => {
  "use strict";
  const article = document.querySelector("article.bd-article"), heading = article && article.querySelector("h1");
  const cells = article ? article.querySelectorAll(".cell.tag_hide-input > details.above-input") : [];
  if (!heading || !cells.length) return;
  const button = document.createElement("button");
  button.className = "eagle3lab-code-switch";
  button.type = "button";
  const show = (shown) => {
    article.classList.toggle("eagle3lab-code-hidden", !shown);
    cells.forEach((cell) => { cell.open = shown; });
    button.textContent = shown ? "Hide the code" : "Show the code";
    button.setAttribute("aria-pressed", String(shown));
  };
  button.addEventListener("click", () => show(button.getAttribute("aria-pressed") !== "true"));
  heading.insertAdjacentElement("afterend", button);
  show(false);
});
