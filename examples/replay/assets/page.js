(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const el = (parent, tag, text) => {
    const e = document.createElement(tag);
    e.textContent = text;
    parent.append(e);
    return e;
  };
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const num = n => n.toLocaleString("en-US");
  const sum = row => row.reduce((a, b) => a + b, 0);
  const width = data.step < 1 ? data.step * 1000 + " ms" : data.step < 60 ? data.step + " s" :
    data.step < 3600 ? data.step / 60 + " min" : data.step < 86400 ? data.step / 3600 + " h" : data.step / 86400 + " d";

  const iso = t => new Date(Math.round(t * 1000)).toISOString().replace("T", " ");
  const clock = (u, at, i, space, incr) => at.map(t => incr < 60 ? iso(t).slice(11, 19) : incr < 86400 ? iso(t).slice(5, 16) : iso(t).slice(0, 10));

  // A plot has steps, and a last point that ends the last of them.
  const close = row => row.concat(row[row.length - 1]);
  const times = close(data.lines[0].offered).map((_, i) => data.start + i * data.step);
  const steps = { width: 0, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } };
  const axis = {
    stroke: () => css("--muted"),
    grid: { stroke: () => css("--line"), width: 1 },
    ticks: { stroke: () => css("--line"), width: 1, size: 4 },
    font: "11px system-ui, sans-serif",
    labelFont: "11px system-ui, sans-serif",
  };

  // The first plot has all events, and before them those that the first algorithm, the reference,
  // allowed. Another plot has, above zero, the events that only its algorithm denied and, below, those
  // that only the reference denied.
  const reference = data.algorithms[0];
  const rows = (l, i) => {
    const onlyHere = l.stricter[i], denied = l.denied[i];
    return i === 0 ? [l.offered, l.offered.map((n, at) => n - denied[at])] :
      [onlyHere, onlyHere.map((n, at) => denied[at] - n - l.denied[0][at])];
  };
  const inWords = ([up, down], i, of) => i === 0 ? "Denies " + num(of(up) - of(down)) + " of " + num(of(up)) + "." :
    "Denies " + num(of(up)) + " that the " + reference + " allows, and allows " + num(Math.abs(of(down))) + " that it denies.";

  let shown, range; // the line, and the lowest and the highest value of differences
  const charts = [...document.querySelectorAll(".chart")].map((box, i) => {
    const place = box.querySelector(".plot"), said = box.querySelector(".said"), when = box.querySelector(".when");
    if (!place) return null; // the words say which plot is the same
    const whole = said.textContent;
    let drawn;
    const say = at => {
      said.textContent = at === null && shown === data.lines[0] ? whole : inWords(drawn, i, at === null ? sum : row => row[at]);
      when.textContent = at === null ? "" : iso(times[at]).slice(0, 19);
    };
    const plot = new uPlot({
      width: Math.max(200, place.clientWidth),
      height: 116,
      padding: [8, 40, 0, 0],
      legend: { show: false },
      tzDate: t => uPlot.tzDate(new Date(t * 1e3), "Etc/UTC"),
      scales: { y: { range: (u, min, max) => i === 0 ? [0, Math.max(1, max)] : range } },
      axes: [{ ...axis, size: 26, space: 90, values: clock }, { ...axis, size: 52, label: data.event + "s / " + width, labelSize: 18, values: (u, at) => at.map(n => num(Math.abs(n))) }],
      series: [{}, { ...steps, fill: () => css("--denied-fill") }, { ...steps, fill: () => css("--allowed-fill") }],
      cursor: { y: false, points: { show: false }, sync: { key: "time", scales: ["x", null] } },
      hooks: { setCursor: [u => say(u.cursor.left < 0 ? null : Math.min(u.valToIdx(u.posToVal(u.cursor.left, "x")), shown.offered.length - 1))] },
    }, [times, times, times], place);
    plot.root.setAttribute("role", "img");
    const draw = () => {
      drawn = rows(shown, i);
      plot.setData([times, ...drawn.map(close)]);
      say(null);
      plot.root.setAttribute("aria-label", data.algorithms[i] + ": " + said.textContent);
    };
    return { plot, place, draw };
  }).filter(c => c);

  const pick = document.getElementById("pick");
  data.lines.forEach(l => el(pick, "option", l.name));
  const show = () => {
    shown = data.lines[pick.selectedIndex];
    const differences = data.algorithms.slice(1).flatMap((_, i) => rows(shown, i + 1)).flat();
    range = [differences.reduce((a, b) => Math.min(a, b), 0), differences.reduce((a, b) => Math.max(a, b), 1)];
    charts.forEach(c => c.draw());
  };
  pick.addEventListener("change", show);
  show();

  new ResizeObserver(() => charts.forEach(c => {
    if (c.plot.width !== c.place.clientWidth) c.plot.setSize({ width: Math.max(200, c.place.clientWidth), height: 116 });
  })).observe(document.getElementById("charts"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(c => c.plot.redraw(false)));
})();
