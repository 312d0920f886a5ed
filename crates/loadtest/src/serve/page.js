// Starts runs by Fortio's REST interface and shows them. Names and values from elsewhere are only ever set as text.
"use strict";

const POLL_MS = 500;
const STOPPED = 4;
const element = (id) => document.getElementById(id);
const milliseconds = (seconds) => `${(seconds * 1e3).toPrecision(4)} ms`;

let running = 0;

function say(text, isBad) {
  element("message").textContent = text;
  element("message").classList.toggle("bad", Boolean(isBad));
}

async function fetched(path, options) {
  const response = await fetch(path, options);
  const value = await response.json();
  if (!response.ok) throw new Error(value.message);
  return value;
}

function parameters() {
  const wanted = { async: "on" };
  for (const field of element("form").elements) {
    if (!field.name) continue;
    if (field.type === "checkbox") {
      if (field.checked) wanted[field.name] = "on";
    } else if (field.name === "H") {
      wanted.headers = field.value.split("\n").map((line) => line.trim()).filter(Boolean);
    } else if (field.value.trim()) {
      wanted[field.name] = field.name === "payload" ? field.value : field.value.trim();
    }
  }
  return wanted;
}

async function start(event) {
  event.preventDefault();
  const body = JSON.stringify(parameters());
  try {
    const started = await fetched("/fortio/rest/run", { method: "POST", headers: { "content-type": "application/json" }, body });
    say("");
    follow(started.RunID, started.ResultID);
  } catch (error) {
    say(error.message, true);
  }
}

async function follow(run, name) {
  running = run;
  element("stop").disabled = false;
  element("now").hidden = false;
  element("title").textContent = name;
  element("figures").replaceChildren();
  element("chart").replaceChildren();
  while (running === run) {
    try {
      const at = await fetched(`/fortio/rest/live?runid=${run}`);
      if (at.State === STOPPED) return ended(at);
      if (at.Live) show(at.Live, at.Live.Errors, at.Live.CallsPerConnection);
    } catch (error) {
      return ended({ Failure: error.message });
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

function ended(at) {
  running = 0;
  element("stop").disabled = true;
  if (at.Failure) return say(at.Failure, true);
  const result = at.Result;
  show(result, result.ErrorsDurationHistogram.Count, result.Evenkeel.CallsPerConnection);
  say(`Done: ${result.DurationHistogram.Count} calls, ${result.RequestedDuration}`);
  // The file is written when the run has ended.
  setTimeout(list, POLL_MS);
}

function show(measured, errors, each) {
  const latencies = measured.DurationHistogram;
  const figures = [
    ["Calls", latencies.Count],
    ["Calls a second", measured.ActualQPS.toFixed(1)],
    ["Errors", errors],
    ["Mean", milliseconds(latencies.Avg)],
    ...(latencies.Percentiles || []).map(({ Percentile, Value }) => [`p${Percentile}`, milliseconds(Value)]),
    ["Maximum", milliseconds(latencies.Max)],
    ["Calls per connection", `${each[0]} to ${each[1]}`],
  ];
  element("figures").replaceChildren(...figures.map(([name, value]) => {
    const box = document.createElement("div");
    box.append(with_text("dt", name), with_text("dd", value));
    return box;
  }));
  draw(latencies);
}

function with_text(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

function shape(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Bars by latency on a logarithmic axis, and the share of calls below.
function draw(latencies) {
  const ranges = latencies.Data || [];
  const chart = element("chart");
  if (ranges.length === 0) return chart.replaceChildren();
  const [left, right, top, bottom] = [30, 750, 15, 265];
  const low = Math.floor(Math.log10(Math.max(latencies.Min, 1e-6)));
  const high = Math.max(Math.ceil(Math.log10(Math.max(latencies.Max, 1e-6))), low + 1);
  const x = (seconds) => left + ((Math.log10(Math.max(seconds, 1e-6)) - low) / (high - low)) * (right - left);
  const most = Math.max(...ranges.map((range) => range.Count));
  const shapes = [];
  for (let decade = low; decade <= high; decade++) {
    const at = x(10 ** decade);
    shapes.push(shape("line", { x1: at, x2: at, y1: top, y2: bottom }));
    shapes.push(shape("text", { x: at, y: bottom + 20, "text-anchor": "middle" }, `${Number((10 ** (decade + 3)).toPrecision(1))} ms`));
  }
  for (const range of ranges) {
    const [from, to] = [x(range.Start), x(range.End)];
    const height = Math.max((range.Count / most) * (bottom - top), 1);
    const bar = shape("rect", { x: from, y: bottom - height, width: Math.max(to - from - 1, 1), height });
    bar.append(shape("title", {}, `${milliseconds(range.Start)} to ${milliseconds(range.End)}: ${range.Count} calls`));
    shapes.push(bar);
  }
  const share = (percent) => bottom - (percent / 100) * (bottom - top);
  const points = [`${x(ranges[0].Start)},${bottom}`, ...ranges.map((range) => `${x(range.End)},${share(range.Percent)}`)];
  shapes.push(shape("polyline", { points: points.join(" ") }));
  for (const percent of [50, 100]) shapes.push(shape("text", { x: right + 8, y: share(percent) + 4 }, `${percent} %`));
  chart.replaceChildren(...shapes);
}

async function list() {
  try {
    const names = await fetched("/fortio/data/");
    element("saved").replaceChildren(...names.map((name) => {
      const [entry, label, box] = [document.createElement("li"), document.createElement("label"), document.createElement("input")];
      box.type = "checkbox";
      box.value = name;
      label.append(box, ` ${name}`);
      entry.append(label);
      return entry;
    }));
    if (names.length === 0) element("saved").append(with_text("li", "none yet"));
    choose();
  } catch (error) {
    say(error.message, true);
  }
}

const chosen = () => [...element("saved").querySelectorAll("input:checked")].map((box) => box.value);

function choose() {
  element("show").disabled = chosen().length === 0;
  element("compare").disabled = chosen().length !== 2;
}

element("form").addEventListener("submit", start);
element("stop").addEventListener("click", () => fetched(`/fortio/rest/stop?runid=${running}`, { method: "POST" }).catch((error) => say(error.message, true)));
element("saved").addEventListener("change", choose);
element("show").addEventListener("click", () => {
  window.location.assign(`/fortio/report?${new URLSearchParams(chosen().map((name) => ["name", name]))}`);
});
element("compare").addEventListener("click", async () => {
  // The list has the newest first.
  const [after, before] = chosen();
  const response = await fetch(`/fortio/compare?${new URLSearchParams({ before, after })}`);
  element("difference").textContent = `before ${before}\nafter  ${after}\n\n${await response.text()}`;
  element("difference").hidden = false;
});
list();
