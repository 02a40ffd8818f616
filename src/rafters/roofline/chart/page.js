"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
// Plotly reads a few tags in its texts: data is escaped before it gets there.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const palette = ["#1f77b4", "#d95f02", "#2ca02c", "#a6408f", "#8c6d31", "#17a2b8", "#e7298a", "#7f7f7f"];
const families = [...new Set(data.points.map((p) => p.family))].sort();
const colour = (family) => palette[families.indexOf(family) % palette.length];
let order = { column: "#", descending: false };

function fill(select, values, every) {
  for (const [text, value] of [[every, ""], ...values]) {
    const option = document.createElement("option");
    option.textContent = text;
    option.value = value;
    select.append(option);
  }
  select.addEventListener("change", show);
}

function chosen() {
  const family = byId("family").value, dtype = byId("dtype").value, smallest = Number(byId("smallest").value);
  return data.points.filter((p) => (!family || p.family === family) && (!dtype || p.dtype === dtype) && p.bytes >= smallest);
}

function layout(title, x, y) {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink"), line = style.getPropertyValue("--line"), paper = style.getPropertyValue("--paper");
  const axis = { gridcolor: line, zeroline: false, linecolor: line };
  return {
    title: { text: title, font: { size: 15 }, x: 0, xanchor: "left" }, font: { color: ink }, paper_bgcolor: paper, plot_bgcolor: paper,
    xaxis: { ...axis, ...x }, yaxis: { ...axis, ...y }, margin: { t: 40, r: 10, b: 45, l: 60 },
    hovermode: "closest", legend: { font: { size: 11 }, orientation: "h", y: -0.22 },
  };
}

function marks(points, x, y, symbol) {
  return families.filter((f) => points.some((p) => p.family === f)).map((f) => {
    const mine = points.filter((p) => p.family === f);
    return {
      type: "scatter", mode: "markers+text", name: plain(f), x: mine.map(x), y: mine.map(y), text: mine.map((p) => String(p.number)),
      textposition: "top right", textfont: { size: 10 }, marker: { color: colour(f), size: 9, symbol }, customdata: mine.map((p) => p.number),
      hovertext: mine.map((p) => p.hover.map(plain).join("<br>")), hoverinfo: "text",
    };
  });
}

function drawRoofline(points) {
  const placed = points.filter((p) => p.flops);
  const slopes = data.roofs.filter((r) => r.slope), flats = data.roofs.filter((r) => !r.slope);
  const inner = [...data.points.map((p) => p.intensity).filter((v) => v > 0), ...data.ridges.map((r) => r.x), 0.1, 10];
  const low = Math.min(...inner) / 10, high = Math.max(...inner) * 10, top = Math.max(...flats.map((f) => f.value), 0) || Infinity;
  const at = Array.from({ length: 101 }, (_, i) => low * (high / low) ** (i / 100));
  const solid = slopes.filter((r) => r.solid).sort((a, b) => a.value - b.value);
  const traces = slopes.map((r) => ({
    type: "scatter", mode: "lines", name: plain(`${r.name} ${(r.value / 1e9).toLocaleString("en", { maximumFractionDigits: 0 })} GB/s`),
    x: at, y: at.map((i) => Math.min(i * r.value, top)), hoverinfo: "name",
    line: { width: 1.2, dash: r.solid ? "solid" : "dash", color: "#8a8f98" },
  }));
  if (solid.length > 1) {
    const edge = (value, more) => ({ type: "scatter", mode: "lines", x: at, y: at.map((i) => Math.min(i * value, top)),
      line: { width: 0 }, hoverinfo: "skip", showlegend: false, ...more });
    traces.unshift(edge(solid[0].value, {}), edge(solid.at(-1).value, { fill: "tonexty", fillcolor: "rgba(138,143,152,0.25)" }));
  }
  traces.push(...flats.map((r) => ({
    type: "scatter", mode: "lines", name: plain(`${r.name} ${(r.value / 1e12).toPrecision(3)} TFLOP/s`), x: [low, high],
    y: [r.value, r.value], hoverinfo: "name", line: { width: 1.2, color: "#8a8f98" },
  })));
  traces.push({ type: "scatter", mode: "markers", name: "ridge points", x: data.ridges.map((r) => r.x), y: data.ridges.map((r) => r.y),
    hovertext: data.ridges.map((r) => plain(`ridge, ${r.name}: ${r.x.toPrecision(3)} FLOP/byte`)), hoverinfo: "text",
    marker: { symbol: "line-ns-open", size: 12, color: "#8a8f98" } });
  traces.push({ type: "scatter", mode: "markers", name: "attainable at this size", x: placed.filter((p) => p.attainable).map((p) => p.intensity),
    y: placed.filter((p) => p.attainable).map((p) => p.attainable), hoverinfo: "skip", marker: { symbol: "circle-open", size: 9, color: "#8a8f98" } });
  traces.push(...marks(placed, (p) => p.intensity, (p) => p.flops, "circle"));
  const shown = layout("FLOP/s against FLOP per byte", { type: "log", title: { text: "FLOP per byte" } },
    { type: "log", title: { text: "FLOP/s" }, exponentformat: "SI" });
  const known = new Map(placed.map((p) => [p.number, p]));
  shown.annotations = data.arrows.filter(([a, b]) => known.has(a) && known.has(b)).map(([a, b]) => ({
    x: Math.log10(known.get(b).intensity), y: Math.log10(known.get(b).flops), ax: Math.log10(known.get(a).intensity),
    ay: Math.log10(known.get(a).flops), axref: "x", ayref: "y", xref: "x", yref: "y", showarrow: true, arrowhead: 3, arrowcolor: "#8a8f98",
  }));
  Plotly.react("roofline", traces, shown, { responsive: true, displaylogo: false });
}

function drawShares(points) {
  const sized = points.filter((p) => p.share !== null);
  const traces = [];
  if (data.attainable) traces.push({ type: "scatter", mode: "lines", name: "ceiling share a copy attains", ...data.attainable,
    hoverinfo: "skip", line: { width: 1.2, color: "#8a8f98" } });
  traces.push(...marks(sized, (p) => p.bytes, (p) => p.share, "circle"));
  const shown = layout("Share of attainable against bytes moved", { type: "log", title: { text: "bytes" }, exponentformat: "SI" },
    { title: { text: "share of attainable" }, tickformat: ".0%", rangemode: "tozero" });
  shown.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { width: 1, color: "#8a8f98" } }];
  Plotly.react("shares", traces, shown, { responsive: true, displaylogo: false });
}

function key(point) {
  const numbers = { "#": point.number, "µs": point.microseconds, "of attainable": point.share };
  if (order.column in numbers) return numbers[order.column] ?? -1;
  const text = point.cells[order.column], number = parseFloat(text.replaceAll(",", "").replace("±", ""));
  return order.column === "call" || Number.isNaN(number) ? text : number;
}

function drawTable(points) {
  const head = document.querySelector("#points thead tr"), body = document.querySelector("#points tbody");
  head.replaceChildren();
  body.replaceChildren();
  if (!data.points.length) return;
  for (const name of Object.keys(data.points[0].cells)) {
    const button = document.createElement("button"), cell = document.createElement("th");
    button.type = "button";
    button.textContent = name + (name === order.column ? (order.descending ? " ↓" : " ↑") : "");
    button.addEventListener("click", () => {
      order = { column: name, descending: name === order.column && !order.descending };
      show();
    });
    cell.append(button);
    head.append(cell);
  }
  const sign = order.descending ? -1 : 1;
  for (const point of [...points].sort((a, b) => (key(a) < key(b) ? -sign : key(a) > key(b) ? sign : 0))) {
    const row = document.createElement("tr");
    if (point.cells.verdict !== "VALID") row.className = "bad";
    row.title = point.remarks.join("\n");
    for (const text of Object.values(point.cells)) {
      const cell = document.createElement("td");
      cell.textContent = text;
      row.append(cell);
    }
    body.append(row);
  }
}

function show() {
  const points = chosen();
  drawRoofline(points);
  drawShares(points);
  drawTable(points);
}

byId("source").textContent = data.title;
fill(byId("family"), families.map((f) => [f, f]), "all");
fill(byId("dtype"), [...new Set(data.points.map((p) => p.dtype))].sort().map((d) => [d, d]), "all");
fill(byId("smallest"), [["1 MB", 1e6], ["10 MB", 1e7], ["100 MB", 1e8]], "any size");
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
byId("theme").addEventListener("click", () => {
  const root = document.documentElement.dataset;
  root.theme = root.theme === "dark" ? "light" : "dark";
  show();
});
show();
