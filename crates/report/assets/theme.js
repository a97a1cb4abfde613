// Runs before the first paint: a chosen theme must not flash the other one. Everything else waits for site.js.
"use strict";
(function () {
  const root = document.documentElement;
  root.classList.add("scripted");
  try {
    const chosen = localStorage.getItem("deltamux-theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden (private windows, file:// in some browsers): the system's preference then applies.
  }
})();
