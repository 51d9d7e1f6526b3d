// Makes the catalogue's table searchable. Without this file, the page is a plain table.
(() => {
  const table = document.querySelector("#catalogue table");
  if (!table) return;
  const selects = ["kind", "model", "flag", "severity", "status", "evidence"]; // headings of columns; a cell may list several words
  const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const rows = [...table.tBodies[0].rows];
  const words = (row, name) => row.cells[headings.indexOf(name)].textContent.split(",").map((word) => word.trim());

  const element = (name, properties, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  const labelled = (text, control) => element("label", {}, element("span", { textContent: text }), control);

  // A cell's word is also its colour (see site.css).
  for (const cell of table.querySelectorAll("td")) {
    if (cell.children.length <= 1) cell.dataset.word = cell.textContent.trim();
  }

  const search = element("input", { type: "search", name: "text", placeholder: "any words, for example refit gemma" });
  const form = element("form", { className: "filters" }, labelled("Search", search));
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "Filter the table");
  for (const name of selects) {
    const found = [...new Set(rows.flatMap((row) => words(row, name)))].sort();
    const options = [new Option("all", ""), ...found.map((word) => new Option(word, word))];
    form.append(labelled(name[0].toUpperCase() + name.slice(1), element("select", { name }, ...options)));
  }
  const count = element("output", { name: "count" });
  count.setAttribute("aria-live", "polite");
  form.append(element("button", { type: "reset", textContent: "Reset" }), count);
  document.getElementById("catalogue").prepend(form);

  const matches = (row, wanted) =>
    wanted.text.toLowerCase().split(/\s+/).every((word) => row.textContent.toLowerCase().includes(word)) &&
    selects.every((name) => {
      // What concerns any model concerns the chosen one, too.
      const has = words(row, name);
      return !wanted[name] || has.includes(wanted[name]) || (name === "model" && has.some((word) => word.startsWith("any")));
    });

  const filter = () => {
    const wanted = Object.fromEntries(new FormData(form));
    for (const row of rows) row.hidden = !matches(row, wanted);
    count.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} quirks`;
    return wanted;
  };
  const remember = () => {
    const kept = new URLSearchParams(Object.entries(filter()).filter(([, value]) => value));
    history.replaceState(null, "", `#${kept}`);
  };
  const recall = () => {
    const kept = new URLSearchParams(location.hash.slice(1));
    for (const name of ["text", ...selects]) form.elements[name].value = kept.get(name) ?? "";
    filter();
  };

  for (const kind of ["input", "change"]) form.addEventListener(kind, remember);
  form.addEventListener("reset", () => setTimeout(remember)); // the form is empty only after this event
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", recall);
  recall();
})();
