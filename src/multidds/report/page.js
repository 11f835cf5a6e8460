"use strict";
const tip = document.getElementById("tip");

const data = chart => JSON.parse(chart.querySelector("script").textContent);
const percent = y => {
  const p = 100 * y;
  return (p >= 9.95 || p === 0 ? p.toFixed(p % 1 && p < 99.95 ? 1 : 0) : p.toPrecision(2)) + "%";
};
const short = y => Math.abs(y) >= 1000 ? Math.round(y).toLocaleString("en") : String(Number(y.toPrecision(3)));

function element(tag, text, colour) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (colour) made.style.background = colour;
  return made;
}

function showTip(x, y, ...content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 4)) + "px";
  tip.style.top = Math.max(4, y + 18 + box.height > innerHeight ? y - box.height - 14 : y + 18) + "px";
}
const hideTip = () => { tip.hidden = true; };

// Areas and lines: the values at the step under the pointer, or under a cursor that the arrow keys move.
for (const chart of document.querySelectorAll(".chart.area, .chart.lines")) {
  const { x, low, held, percent: shares, series } = data(chart);
  const plot = chart.querySelector(".plot");
  const cursor = plot.appendChild(element("i"));
  cursor.className = "cursor";
  cursor.hidden = true;
  const wide = x[x.length - 1] - low || 1;
  let at = x.length - 1;

  const show = (clientX, clientY) => {
    const where = (x[at] - low) / wide;
    cursor.hidden = false;
    cursor.style.left = 100 * where + "%";
    const box = plot.getBoundingClientRect();
    const rows = element("div");
    const known = series.filter(one => one.y[at] !== null && one.y[at] !== undefined);
    for (const one of held ? known.reverse() : known.sort((a, b) => b.y[at] - a.y[at]))
      rows.append(element("i", "", one.colour), element("span", one.name), element("b", (shares ? percent : short)(one.y[at])));
    showTip(clientX ?? box.left + where * box.width, clientY ?? box.top, element("b", `step ${x[at].toLocaleString("en")}`), rows);
  };
  const leave = () => { cursor.hidden = true; hideTip(); };
  const point = event => {
    const box = plot.getBoundingClientRect();
    const wanted = low + wide * Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    at = x.findLastIndex(step => step <= wanted + 1e-9);
    if (at < 0) at = 0;
    if (!held && at + 1 < x.length && x[at + 1] - wanted < wanted - x[at]) at += 1;
    show(event.clientX, event.clientY);
  };
  plot.addEventListener("pointermove", point);
  plot.addEventListener("pointerdown", point);
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("blur", leave);
  plot.addEventListener("keydown", event => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    at = Math.min(x.length - 1, Math.max(0, at + step));
    show();
  });
  // A name of the legend brings out what is its own.
  for (const entry of chart.querySelectorAll(".legend li")) {
    const colour = entry.querySelector("i").style.background;
    const same = path => { const probe = element("i", "", path.getAttribute("fill") || path.getAttribute("stroke")); return probe.style.background === colour; };
    const fade = on => { for (const path of plot.querySelectorAll("path")) path.style.opacity = on && !same(path) ? .12 : ""; };
    entry.addEventListener("pointerenter", () => fade(true));
    entry.addEventListener("pointerleave", () => fade(false));
  }
}

for (const chart of document.querySelectorAll(".chart.heat")) {
  const { steps, tables, highest } = data(chart);
  const cells = [...chart.querySelectorAll("tbody td")];
  const rows = [...chart.querySelectorAll("tbody th")].map(cell => cell.textContent);
  const columns = [...chart.querySelectorAll("thead th")].map(cell => cell.textContent);
  let shown = tables[tables.length - 1];
  cells.forEach((cell, i) => {
    cell.addEventListener("pointerenter", event => showTip(event.clientX, event.clientY,
      element("span", `dev set ${rows[Math.floor(i / columns.length)]}, dataset ${columns[i % columns.length]}: ${shown[i][0].toFixed(2)}${shown[i][1] === null ? "" : ` ± ${shown[i][1].toFixed(2)}`}`)));
    cell.addEventListener("pointerleave", hideTip);
  });
  const slider = chart.querySelector("input");
  if (slider) slider.addEventListener("input", () => {
    shown = tables[slider.value];
    chart.querySelector("output").textContent = steps[slider.value].toLocaleString("en");
    cells.forEach((cell, i) => {
      const value = shown[i][0];
      cell.textContent = value.toFixed(2);
      cell.style.background = `rgba(${value >= 0 ? "68,119,170" : "221,84,98"},${Math.min(1, Math.abs(value) / highest).toFixed(2)})`;
    });
  });
}

// Tables sort by the column whose heading is pressed.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), table = button.closest("table"), body = table.tBodies[0];
    const column = head.cellIndex, up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = row => row.cells[column].dataset.number;
    const rows = [...body.rows];
    rows.sort((a, b) => {
      if (a.className !== b.className) return a.className ? 1 : -1;  // the average stays last
      const x = value(a), y = value(b);
      if ((x === undefined) !== (y === undefined)) return x === undefined ? 1 : -1;  // so does what is missing
      const order = x === undefined
        ? a.cells[column].textContent.trim().localeCompare(b.cells[column].textContent.trim())
        : x - y;
      return up ? order : -order;
    });
    body.append(...rows);
  });
}
