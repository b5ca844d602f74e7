"use strict";
(() => {
  const rows = [...document.querySelectorAll("tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const search = document.querySelector("input");
  const choices = [...document.querySelectorAll("select")];
  const show = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    let shown = 0;
    rows.forEach((row, number) => {
      const chosen = choices.every((one) => !one.selectedIndex || row.dataset[one.dataset.column] === one.value);
      row.hidden = !(chosen && words.every((word) => texts[number].includes(word)));
      shown += !row.hidden;
    });
    document.getElementById("shown").textContent = `${shown} of ${rows.length} shown`;
  };
  [search, ...choices].forEach((one) => one.addEventListener("input", show));
  show();
  document.documentElement.dataset.ready = "1";
})();
