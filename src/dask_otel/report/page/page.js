"use strict";
// Opens the visible timelines, and bokeh's charts in the colours of the light or dark page.

const dark = matchMedia("(prefers-color-scheme: dark)");

// Placeholders for the colours of text, lines and background, which no figure uses otherwise.
function coloured(text) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  return text.replaceAll("#010203", colour("--text")).replaceAll("#010204", colour("--line")).replaceAll("#010205", colour("--bg"));
}

async function openCharts(scope) {
  for (const target of scope.querySelectorAll("[data-chart]")) {
    if (target.dataset.done) continue;
    target.dataset.done = "1";
    const item = await unpack(document.getElementById(target.dataset.chart).textContent);
    const shown = JSON.parse(coloured(JSON.stringify(item)));
    target.replaceChildren();
    const view = await Bokeh.embed.embed_item(shown, target.id);
    target.view = view;
    target.dataset.ready = "1";
  }
}

async function open(scope) {
  try {
    await openTimelines(scope);
    await openFlames(scope);
    await openCharts(scope);
  } catch (error) {
    document.documentElement.dataset.error = String(error);
    console.error(error);
  }
}

// The list of what happened, by severity.
function filterLogs(list) {
  const least = Number(list.querySelector("select").value), workers = list.querySelector("input").checked;
  for (const row of list.querySelectorAll("tr[data-severity]")) {
    row.hidden = Number(row.dataset.severity) < least || (!workers && "worker" in row.dataset);
  }
}

function visible() {
  const runs = [...document.querySelectorAll("details.run")];
  return runs.length ? runs.filter((run) => run.open) : [document.body];
}

async function start() {
  for (const list of document.querySelectorAll("[data-logs]")) {
    list.addEventListener("change", () => filterLogs(list));
    filterLogs(list);
  }
  for (const run of document.querySelectorAll("details.run")) {
    run.addEventListener("toggle", () => { if (run.open) open(run); });
  }
  for (const scope of [...document.querySelectorAll(".compared"), ...visible()]) await open(scope);
  dark.addEventListener("change", async () => {
    for (const target of document.querySelectorAll("[data-chart]")) delete target.dataset.done;
    for (const scope of visible()) await openCharts(scope);
  });
  document.documentElement.dataset.ready = "1";
}

document.addEventListener("DOMContentLoaded", start);
