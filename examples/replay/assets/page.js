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

  const charts = data.algorithms.map((name, i) => {
    const box = el(document.getElementById("charts"), "div", "");
    box.className = "chart";
    const words = el(box, "div", ""), place = el(box, "div", "");
    el(words, "h3", name);
    const share = el(words, "p", ""), when = el(words, "p", "");
    let line;
    const say = (offered, denied) => {
      share.textContent = num(denied) + " of " + num(offered) + " denied";
    };
    const plot = new uPlot({
      width: Math.max(200, place.clientWidth),
      height: 116,
      padding: [8, 40, 0, 0],
      legend: { show: false },
      tzDate: t => uPlot.tzDate(new Date(t * 1e3), "Etc/UTC"),
      scales: { y: { range: (u, min, max) => [0, Math.max(1, max)] } },
      axes: [{ ...axis, size: 26, space: 90, values: clock }, { ...axis, size: 52, label: data.event + "s / " + width, labelSize: 18, values: (u, at) => at.map(num) }],
      series: [{}, { ...steps, fill: () => css("--denied-fill") }, { ...steps, fill: () => css("--allowed-fill") }],
      cursor: { y: false, points: { show: false }, sync: { key: "time", scales: ["x", null] } },
      hooks: {
        setCursor: [u => {
          const at = u.cursor.left < 0 ? null : Math.min(u.valToIdx(u.posToVal(u.cursor.left, "x")), line.offered.length - 1);
          when.textContent = at === null ? "" : iso(times[at]).slice(0, 19);
          at === null ? say(sum(line.offered), sum(line.denied[i])) : say(line.offered[at], line.denied[i][at]);
        }],
      },
    }, [times, times, times], place);
    plot.root.setAttribute("role", "img");
    const draw = l => {
      line = l;
      plot.setData([times, close(l.offered), close(l.offered.map((n, at) => n - l.denied[i][at]))]);
      say(sum(l.offered), sum(l.denied[i]));
      plot.root.setAttribute("aria-label", name + ": " + share.textContent);
    };
    return { plot, place, draw };
  });

  const pick = document.getElementById("pick");
  data.lines.forEach(l => el(pick, "option", l.name));
  const show = () => charts.forEach(c => c.draw(data.lines[pick.selectedIndex]));
  pick.addEventListener("change", show);
  show();

  new ResizeObserver(() => charts.forEach(c => {
    if (c.plot.width !== c.place.clientWidth) c.plot.setSize({ width: Math.max(200, c.place.clientWidth), height: 116 });
  })).observe(document.getElementById("charts"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(c => c.plot.redraw(false)));
})();
