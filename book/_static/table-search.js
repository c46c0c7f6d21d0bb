// A field above each table that asks for one: only the rows that hold every word typed into it stay.
document.addEventListener("DOMContentLoaded", () => {
  for (const holder of document.querySelectorAll(".eagle3lab-table[data-search]")) {
    const rows = [...holder.querySelectorAll("tbody tr")].map((row) => [row, row.textContent.toLowerCase()]);
    const label = document.createElement("label");
    const field = document.createElement("input");
    const count = document.createElement("output");
    label.className = "eagle3lab-search";
    field.type = "search";
    label.append(`${holder.dataset.search} `, field, " ", count);
    holder.before(label);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [row, text] of rows) {
        const fits = words.every((word) => text.includes(word));
        row.hidden = !fits;
        shown += fits;
      }
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    });
  }
});
