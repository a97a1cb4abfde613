// Theme switch, sortable and filterable tables, the current chapter. The pages are complete without it.
"use strict";
(function () {
  const root = document.documentElement;

  function isDark() {
    if (root.dataset.theme) return root.dataset.theme === "dark";
    return matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function announceTheme() {
    document.dispatchEvent(new CustomEvent("deltamux:theme"));
  }

  for (const button of document.querySelectorAll(".theme")) {
    button.addEventListener("click", () => {
      const next = isDark() ? "light" : "dark";
      root.dataset.theme = next;
      try {
        localStorage.setItem("deltamux-theme", next);
      } catch {
        // The choice then holds for this page only.
      }
      announceTheme();
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", announceTheme);

  // Tables. A header with data-sort gets a button; a cell's data-value is what it is sorted by, and a cell without
  // one (not measured) stays at the end in both directions.

  const collator = new Intl.Collator(root.lang, { numeric: true, sensitivity: "base" });

  function compare(a, b, numeric) {
    return numeric ? Number(a) - Number(b) : collator.compare(a, b);
  }

  function sortBy(table, header, direction) {
    const column = header.cellIndex;
    const numeric = header.dataset.sort === "number";
    const sign = direction === "descending" ? -1 : 1;
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row, index) => ({ row, index, value: row.cells[column]?.dataset.value }));
    rows.sort((a, b) => {
      if (a.value === undefined || b.value === undefined) {
        return (a.value === undefined) - (b.value === undefined) || a.index - b.index;
      }
      return sign * compare(a.value, b.value, numeric) || a.index - b.index;
    });
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction);
    body.append(...rows.map((entry) => entry.row));
  }

  for (const table of document.querySelectorAll("table")) {
    for (const header of table.querySelectorAll("thead th[data-sort]")) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => {
        const first = header.dataset.first || "ascending";
        const second = first === "ascending" ? "descending" : "ascending";
        sortBy(table, header, header.getAttribute("aria-sort") === first ? second : first);
      });
    }
  }

  // Filters of the list of runs: every control narrows; words of the search must all occur.

  const filters = document.querySelector(".filters");
  const list = document.querySelector("table.runs-table");
  if (filters && list) {
    const rows = Array.from(list.tBodies[0].rows);
    const search = filters.querySelector("input[type=search]");
    const selects = Array.from(filters.querySelectorAll("select"));
    const count = filters.querySelector("output");
    const empty = document.querySelector(".empty");

    const apply = () => {
      const words = search.value.toLocaleLowerCase(root.lang).split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLocaleLowerCase(root.lang);
        const keep =
          words.every((word) => text.includes(word)) &&
          selects.every((select) => {
            if (select.value === "") return true;
            return JSON.parse(row.dataset[select.name] || "[]").includes(select.value);
          });
        row.hidden = !keep;
        shown += keep;
      }
      count.textContent = count.dataset.text.replace("{shown}", shown).replace("{all}", rows.length);
      if (empty) empty.hidden = shown > 0;
    };
    filters.addEventListener("input", apply);
    filters.addEventListener("submit", (event) => event.preventDefault());
    apply();
  }

  // The chapter being read, in the contents.

  const links = new Map();
  for (const link of document.querySelectorAll(".contents a")) {
    const chapter = document.getElementById(decodeURIComponent(link.hash.slice(1)));
    if (chapter) links.set(chapter, link);
  }
  if (links.size > 0 && "IntersectionObserver" in window) {
    const visible = new Set();
    const observer = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (entry.isIntersecting) visible.add(entry.target);
          else visible.delete(entry.target);
        }
        let current = null;
        for (const chapter of links.keys()) {
          if (visible.has(chapter)) {
            current = chapter;
            break;
          }
        }
        for (const [chapter, link] of links) {
          if (chapter === current) link.setAttribute("aria-current", "true");
          else link.removeAttribute("aria-current");
        }
      },
      { rootMargin: "-15% 0px -70% 0px" },
    );
    for (const chapter of links.keys()) observer.observe(chapter);
  }

  // Closed details would be missing on paper.
  const reopened = [];
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details:not([open])")) {
      details.open = true;
      reopened.push(details);
    }
  });
  addEventListener("afterprint", () => {
    for (const details of reopened.splice(0)) details.open = false;
  });
})();
