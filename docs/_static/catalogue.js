// Makes the catalogue's tables searchable. Without this file, the page has plain tables.
(() => {
  const catalogue = document.querySelector("#all-quirks");
  if (!catalogue) return;
  const rows = [...catalogue.querySelectorAll("tbody tr")];

  const element = (name, properties, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };
  const search = element("input", { type: "search", name: "text", placeholder: "any words, for example refit gemma" });
  const count = element("output", { name: "count" });
  count.setAttribute("aria-live", "polite");
  const label = element("label", {}, element("span", { textContent: "Search" }), search);
  const form = element("form", { className: "filters" }, label, count);
  form.setAttribute("role", "search");
  catalogue.prepend(form);

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    count.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} quirks`;
  };
  const recall = () => {
    search.value = new URLSearchParams(location.hash.slice(1)).get("text") ?? "";
    filter();
  };
  search.addEventListener("input", () => {
    filter();
    history.replaceState(null, "", `#${new URLSearchParams(search.value ? { text: search.value } : {})}`);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", recall);
  recall();
})();
