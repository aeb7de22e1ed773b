(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const { algorithms, keys, noun } = data;
  const $ = id => document.getElementById(id);
  const el = (tag, cls, text) => {
    const e = document.createElement(tag);
    if (cls) e.className = cls;
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const num = n => n.toLocaleString("en-US");
  const percent = (part, whole) => {
    const p = 100 * part / Math.max(whole, 1);
    if (part > 0 && p < 0.1) return "<0.1 %";
    if (part < whole && p > 99.9) return ">99.9 %";
    return p.toFixed(1) + " %";
  };

  // ---- Time ----------------------------------------------------------------

  const pad = (n, width = 2) => String(n).padStart(width, "0");
  const months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
  // Times are shown with the precision that the width of a bin requires.
  const clockText = (t, exact) => {
    const d = new Date(Math.round(t * 1000));
    let s = pad(d.getUTCHours()) + ":" + pad(d.getUTCMinutes());
    if (exact < 60) s += ":" + pad(d.getUTCSeconds());
    if (exact < 1) s += "." + pad(d.getUTCMilliseconds(), 3);
    return s;
  };
  const dateText = (t, year) => {
    const d = new Date(Math.round(t * 1000));
    return d.getUTCDate() + " " + months[d.getUTCMonth()] + (year ? " " + d.getUTCFullYear() : "");
  };
  const whenText = (t, exact) => exact >= 86400 ? dateText(t, true) : dateText(t) + " " + clockText(t, exact);
  const widthText = s => {
    for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]])
      if (s >= unit && s % unit === 0) return s / unit + " " + name;
    return Math.round(s * 1000) + " ms";
  };

  // ---- Counts by bin -------------------------------------------------------

  // denied[i] has the counts of algorithm i, by bin.
  const unpack = sparse => {
    const row = new Float64Array(data.bins);
    for (let i = 0, at = 0; i < sparse.length; i += 2) row[at += sparse[i]] = sparse[i + 1];
    return row;
  };
  const unpacked = new Map();
  const subject = key => {
    if (!unpacked.has(key)) {
      const t = key < 0 ? data.all : keys[key];
      unpacked.set(key, { offered: unpack(t.offered), denied: t.denied.map(unpack) });
    }
    return unpacked.get(key);
  };

  // merged adds up the bins of the log into bins that are `factor` times as wide and
  // aligned to the clock.
  const merged = (row, factor) => {
    const out = [];
    for (let i = 0; i < row.length;) {
      const end = Math.min(row.length, i + factor - (data.origin + i) % factor);
      let sum = 0;
      for (; i < end; i++) sum += row[i];
      out.push(sum);
    }
    return out;
  };
  const starts = factor => {
    const out = [];
    for (let i = 0; i < data.bins; i += factor - (data.origin + i) % factor)
      out.push(data.start + (i - (data.origin + i) % factor) * data.step);
    return out;
  };

  // ---- State ---------------------------------------------------------------

  // A log of a few bins gets a margin on both sides.
  const margin = Math.max(0, 12 - data.bins) / 2 * data.step;
  const whole = [data.start - margin, data.start + data.bins * data.step + margin];
  const totals = data.all.denied.map(sparse => sparse.reduce((sum, n, i) => i % 2 ? sum + n : sum, 0));
  const state = { key: -1, range: whole, fit: false, algorithm: totals.indexOf(Math.max(...totals)) };
  let view; // computed from state by update
  const charts = [];

  const chooseFactor = () => {
    const most = Math.max(40, (charts[0] ? charts[0].plot.width : 900) / 3.2);
    const bins = (state.range[1] - state.range[0]) / data.step;
    return data.factors.find(f => bins / f <= most) || data.factors[data.factors.length - 1];
  };

  const update = () => {
    const factor = chooseFactor();
    const { offered, denied } = subject(state.key);
    const x = starts(factor);
    const all = merged(offered, factor);
    const rows = denied.map(row => {
      const d = merged(row, factor);
      return { denied: d, allowed: all.map((n, i) => n - d[i]) };
    });
    const step = factor * data.step;
    const inside = i => x[i] + step > state.range[0] && x[i] < state.range[1];
    const peak = row => row.reduce((m, n, i) => inside(i) ? Math.max(m, n) : m, 0);
    const sum = row => row.reduce((m, n, i) => inside(i) ? m + n : m, 0);
    view = { x, step, offered: all, rows, sum };
    view.top = state.fit ? Math.max(...rows.map(r => peak(r.allowed))) : peak(all);
    view.top = Math.max(view.top, 1) * 1.06;

    // An additional point ends the last step.
    const close = row => row.concat(row[row.length - 1]);
    const xs = x.concat(x[x.length - 1] + step);
    charts.forEach(c => {
      const row = c.index < 0 ? [close(all)] : [close(all), close(rows[c.index].allowed)];
      c.plot.axes[1].label = noun + " / " + widthText(step);
      c.plot.setData([xs, ...row]);
      c.say(null);
    });
    move(null);
    $("reset").disabled = state.range === whole;
    $("fit").setAttribute("aria-pressed", state.fit);
    $("pick").value = state.key;
    document.querySelectorAll(".keyrow").forEach((e, i) => e.setAttribute("aria-pressed", i === state.key));
  };

  // ---- Plots over time -----------------------------------------------------

  const step = uPlot.paths.stepped({ align: 1 });
  let hovered = null; // the plot under the pointer, which the others follow

  // Distances between ticks. Those of time are never less than a bin. uPlot recognizes
  // months and years by these lengths.
  const incrs = [];
  for (let p = 1; p < 1e15; p *= 10) incrs.push(p, 2 * p, 5 * p);
  const times = [.001, .002, .005, .01, .02, .05, .1, .2, .5];
  for (const [unit, counts] of [[1, [1, 2, 5, 10, 15, 30]], [60, [1, 2, 5, 10, 15, 30]], [3600, [1, 2, 3, 6, 12]],
    [86400, [1, 2, 7, 30, 60, 90, 180]], [31536000, [1, 2, 5, 10, 25, 50, 100]]])
    times.push(...counts.map(n => n * unit));
  while (times[0] < data.step && times.length > 1) times.shift();

  // The first and the last plot also show dates, in a second line below the first tick of
  // each day.
  const axisTimes = dated => (u, splits, axis, space, incr) => splits.map((t, i) => {
    const newYear = i === 0 || dateText(t, true).slice(-4) !== dateText(splits[i - 1], true).slice(-4);
    const date = dateText(t, newYear) + (i === 0 ? " UTC" : "");
    if (incr >= 86400) return date;
    const fresh = i === 0 || dateText(t) !== dateText(splits[i - 1]);
    return clockText(t, incr) + (dated && fresh ? "\n" + date : "");
  });

  const plotHeight = dated => dated ? 146 : 132;

  const addChart = (index, name, settings, about) => {
    const box = el("div", "chart"), words = el("div", "words"), place = el("div");
    const title = el("h3", "", name), big = el("div", "big"), counts = el("p"), when = el("p");
    title.title = about;
    words.append(title, big, counts, when);
    box.append(words, place);
    $("charts").append(box);

    // say shows the numbers of bin i, or those of the visible range if i is null.
    const say = i => {
      const pick = row => i === null ? view.sum(row) : row[i];
      const offered = pick(view.offered);
      if (index < 0) {
        big.textContent = num(offered);
        big.append(el("span", "", " " + noun));
        counts.textContent = "";
      } else {
        const denied = pick(view.rows[index].denied);
        big.textContent = percent(denied, offered);
        big.append(el("span", "", " denied"));
        big.classList.toggle("none", denied === 0);
        counts.replaceChildren(el("span", "", num(offered - denied) + " allowed"), " · ", el("span", "", num(denied) + " denied"));
      }
      const [from, to, exact] = i === null
        ? [...state.range, state.range === whole ? Math.max(data.step, 60) : view.step]
        : [view.x[i], view.x[i] + view.step, view.step];
      when.textContent = i === null && state.range === whole ? settings :
        whenText(from, exact) + " – " + (exact < 86400 && dateText(from) === dateText(to) ? clockText(to, exact) : whenText(to, exact));
    };
    if (index < 0) big.classList.add("none");

    const dated = index < 0 || index === algorithms.length - 1;
    const font = size => size + "px system-ui, sans-serif";
    const axis = {
      stroke: () => css("--muted"),
      grid: { stroke: () => css("--line"), width: 1 },
      ticks: { stroke: () => css("--line"), width: 1, size: 4 },
      font: font(11), labelFont: font(11),
    };
    const plot = new uPlot({
      width: Math.max(200, place.clientWidth),
      height: plotHeight(dated),
      padding: [8, 36, 0, 0],
      legend: { show: false },
      tzDate: t => uPlot.tzDate(new Date(t * 1e3), "Etc/UTC"),
      scales: {
        x: { time: true, range: () => state.range },
        y: { range: () => [0, view ? view.top : 1] },
      },
      axes: [
        { ...axis, size: dated ? 40 : 26, space: 90, gap: 6, incrs: times, values: axisTimes(dated) },
        { ...axis, size: 52, space: 20, gap: 4, label: noun, labelSize: 18, labelGap: 0,
          incrs, values: (u, s) => s.map(num) },
      ],
      series: index < 0 ? [
        {},
        { stroke: () => css("--offered"), fill: () => css("--offered-fill"), width: 1, paths: step, points: { show: false } },
      ] : [
        {},
        { fill: () => css("--denied-fill"), width: 0, paths: step, points: { show: false } },
        { fill: () => css("--allowed-fill"), width: 0, paths: step, points: { show: false } },
      ],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        sync: { key: "time", scales: ["x", null] },
        dataIdx: (u, series, closest, x) => {
          let i = closest;
          if (i > 0 && view && view.x[i] > x) i--;
          return view ? Math.min(i, view.x.length - 1) : i;
        },
        bind: { dblclick: () => () => { show({ range: whole }); return null; } },
      },
      hooks: {
        setCursor: [u => say(u.cursor.left < 0 || u.cursor.idx == null ? null : u.cursor.idx)],
        setSelect: [u => {
          if (u !== hovered || u.select.width < 5) return;
          const from = u.posToVal(u.select.left, "x"), to = u.posToVal(u.select.left + u.select.width, "x");
          if (to - from >= 4 * data.step) show({ range: [Math.max(from, whole[0]), Math.min(to, whole[1])] });
          charts.forEach(c => c.plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false));
        }],
      },
    }, [[], [], ...(index < 0 ? [] : [[]])], place);
    plot.over.addEventListener("mouseenter", () => { hovered = plot; });
    plot.root.setAttribute("role", "img");
    plot.root.setAttribute("aria-label", name + ": " + noun + " over time");
    charts.push({ index, plot, place, say, height: plotHeight(dated) });
  };

  // The plots are read by keys, too: at is the bin whose numbers are shown, or null.
  let at = null;
  const move = i => {
    if (i === null && at === null) return;
    at = i;
    charts.forEach(c => c.plot.setCursor({ left: i === null ? -10 : c.plot.valToPos(view.x[i] + view.step / 2, "x"), top: 0 }));
  };
  $("charts").addEventListener("keydown", e => {
    const inside = [...view.x.keys()].filter(i => view.x[i] + view.step > state.range[0] && view.x[i] < state.range[1]);
    const first = inside[0], last = inside[inside.length - 1], now = at === null ? last + 1 : at, far = e.shiftKey ? 10 : 1;
    const to = { ArrowLeft: now - far, ArrowRight: now + far, Home: first, End: last, Escape: null }[e.key];
    if (to === undefined || e.altKey || e.ctrlKey || e.metaKey) return;
    e.preventDefault();
    move(to === null ? null : Math.min(last, Math.max(first, to)));
  });
  $("charts").addEventListener("blur", () => move(null));

  const show = change => { Object.assign(state, change); update(); };

  // ---- Keys ----------------------------------------------------------------

  const niceStep = (max, count) => incrs.find(i => max / i <= count);

  const drawKeys = () => {
    const most = Math.max(1, ...keys.map(k => k.total));
    const tick = niceStep(most, innerWidth < 900 ? 3 : 6);
    const top = Math.ceil(most / tick) * tick;
    $("keys").style.setProperty("--tick", 100 * tick / top + "%");
    document.querySelectorAll(".keyrow").forEach((row, i) => {
      const { total, totalDenied } = keys[i];
      const denied = totalDenied[state.algorithm];
      const [allowed, refused] = row.querySelectorAll(".track i");
      allowed.style.width = 100 * (total - denied) / top + "%";
      refused.style.left = allowed.style.width;
      refused.style.width = 100 * denied / top + "%";
      const text = row.querySelector(".text");
      text.replaceChildren(el("b", "", percent(denied, total)), el("span", "", " · " + num(denied) + " of " + num(total)));
    });
    const axis = $("keys").querySelector(".keyaxis div");
    axis.replaceChildren();
    for (let n = 0; n <= top; n += tick) {
      const s = el("span", "", num(n));
      s.style.left = 100 * n / top + "%";
      axis.append(s);
    }
    axis.append(el("em", "", noun + ", allowed and denied"));
    document.querySelectorAll("#algorithms button").forEach((b, i) => b.setAttribute("aria-pressed", i === state.algorithm));
  };

  keys.forEach((key, i) => {
    const row = el("button", "keyrow");
    row.type = "button";
    const name = el("span", "name", key.label), track = el("span", "track");
    row.title = key.full;
    track.append(el("i"), el("i"));
    row.append(name, track, el("span", "text"));
    row.addEventListener("click", () => {
      show({ key: state.key === i ? -1 : i });
      if (state.key >= 0) $("h-time").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    });
    $("keys").append(row);
    const option = el("option", "", key.label);
    option.value = i;
    $("pick").append(option);
  });
  const heading = el("div", "keyhead");
  heading.append(el("span", "", data.key), el("span"), el("span", "", "denied"));
  $("keys").prepend(heading);
  const keyAxis = el("div", "keyaxis");
  keyAxis.append(el("span"), el("div"), el("span"));
  $("keys").append(keyAxis);
  if (algorithms.length > 1) algorithms.forEach((a, i) => {
    const b = el("button", "", a.name);
    b.type = "button";
    b.title = a.about;
    b.addEventListener("click", () => {
      $("keys").classList.add("keys-ready"); // animates the bars from now on, but not when the page opens
      state.algorithm = i;
      drawKeys();
    });
    $("algorithms").append(b);
  });

  // ---- Start ---------------------------------------------------------------

  addChart(-1, "offered", "all " + noun + " of the log", "All " + noun + " of the log, allowed and denied.");
  algorithms.forEach((a, i) => addChart(i, a.name, a.settings, a.about));
  $("pick").addEventListener("change", e => show({ key: +e.target.value }));
  $("fit").addEventListener("click", () => show({ fit: !state.fit }));
  $("reset").addEventListener("click", () => show({ range: whole }));
  drawKeys();
  update();

  let width = 0;
  new ResizeObserver(() => {
    const w = Math.max(200, charts[0].place.clientWidth);
    if (w === width) return;
    width = w;
    charts.forEach(c => c.plot.setSize({ width: w, height: c.height }));
    drawKeys();
    update();
  }).observe($("charts"));
  for (const media of ["(prefers-color-scheme: dark)", "print"])
    matchMedia(media).addEventListener("change", () => charts.forEach(c => c.plot.redraw(false)));
})();
