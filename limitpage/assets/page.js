(() => {
  "use strict";

  // Everything is drawn as text nodes and style properties, never as markup: names and keys
  // may be anything.
  const $ = id => document.getElementById(id);
  const el = (tag, cls, text) => {
    const e = document.createElement(tag);
    if (cls) e.className = cls;
    if (text !== undefined) e.textContent = text;
    return e;
  };
  // say changes the text of e if it is another one, so that a selection stays.
  const say = (e, text) => { if (e.textContent !== text) e.textContent = text; };
  // rows makes parent have n children, which make makes, and returns them.
  const rows = (parent, n, make) => {
    while (parent.children.length > n) parent.lastChild.remove();
    while (parent.children.length < n) parent.append(make());
    return [...parent.children];
  };
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // ---- Words ---------------------------------------------------------------

  const num = n => n.toLocaleString("en-US");
  const rate = n => n >= 100 || n === 0 ? num(Math.round(n)) : n >= 0.1 ? n.toFixed(1) : "<0.1";
  const percent = (part, whole) => {
    const p = 100 * part / Math.max(whole, 1);
    if (part > 0 && p < 0.1) return "<0.1\u00a0%";
    if (part < whole && p > 99.9) return ">99.9\u00a0%";
    return p.toFixed(1) + "\u00a0%";
  };
  const bytes = n => {
    for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
      if (n >= size) return (n / size).toFixed(n < 10 * size ? 1 : 0) + "\u00a0" + unit;
    return num(n) + "\u00a0bytes";
  };
  // span formats seconds with about three digits.
  const span = s => {
    if (s === null) return "never";
    if (s === 0) return "0 s";
    if (s < 1e-6) return Math.ceil(s * 1e9) + " ns";
    if (s < 1e-3) return +(s * 1e6).toPrecision(3) + " µs";
    if (s < 1) return +(s * 1e3).toPrecision(3) + " ms";
    if (s < 60) return +s.toFixed(1) + " s";
    for (const [unit, size, less, lesser] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]])
      if (s >= size) {
        const part = Math.floor(s % size / lesser);
        return num(Math.floor(s / size)) + " " + unit + (part ? " " + part + " " + less : "");
      }
  };
  // exact is a duration as it was sent, to the nanosecond.
  const exact = s => s === null ? "never" : s === 0 ? "0" : s < 1e-3 ? span(s) : s + " s";
  const ago = ms => ms < 1500 ? "now" : span(Math.round(ms / 1000)) + " ago";
  const plural = (n, noun) => num(n) + " " + noun + (n === 1 ? "" : "s");
  const named = name => name === "" ? "(no name)" : name;
  const shownKey = key => key === "" ? "(empty)" : key;
  const sum = a => a.reduce((x, y) => x + y, 0);

  // ---- Data ----------------------------------------------------------------

  const kinds = ["granted", "denied", "degraded"];
  const state = { report: null, end: 0, range: 300, hover: null, filter: null, paused: false, found: null };
  const series = new Map(); // by limiter: of each kind, the counts of the seconds before state.end
  const samples = [];       // of Redis, of the last minute: { at, stores }

  const merge = report => {
    if (state.report && state.report.started !== report.started) { // the process has started again
      series.clear();
      samples.length = 0;
      state.end = 0;
    }
    state.report = report;
    const names = new Set();
    for (const l of report.limiters) {
      names.add(l.name);
      const s = l.seconds, end = s.from + s.granted.length;
      let old = series.get(l.name);
      if (!old || s.from > state.end) old = { granted: [], denied: [], degraded: [] };
      for (const kind of kinds) {
        const keep = Math.max(0, old[kind].length - Math.max(0, state.end - s.from));
        old[kind] = old[kind].slice(0, keep).concat(s[kind]).slice(-report.history);
      }
      series.set(l.name, old);
      if (names.size === report.limiters.length) state.end = end;
    }
    for (const name of [...series.keys()]) if (!names.has(name)) series.delete(name);
    samples.push({ at: report.now, stores: report.stores });
    while (report.now - samples[0].at > 60000) samples.shift();
  };

  // shown returns how many seconds are shown: fewer than chosen while the page is young.
  const shown = () => Math.min(state.range, Math.max(60, ...[...series.values()].map(s => s.granted.length)));

  // counts returns those of the seconds shown: of the one at the pointer, or of all.
  const counts = name => {
    const s = series.get(name), out = {};
    const n = s.granted.length;
    for (const kind of kinds) {
      if (state.hover === null) out[kind] = sum(s[kind].slice(-state.range));
      else out[kind] = s[kind][n - (state.end - state.hover)] || 0;
    }
    out.all = out.granted + out.denied + out.degraded;
    out.seconds = state.hover === null ? Math.max(1, Math.min(state.range, n)) : 1;
    return out;
  };

  // ---- Plots ---------------------------------------------------------------

  const pad = n => String(n).padStart(2, "0");
  const clock = (t, exact) => {
    const d = new Date(t * 1000);
    return pad(d.getHours()) + ":" + pad(d.getMinutes()) + (exact ? ":" + pad(d.getSeconds()) : "");
  };
  const niceStep = (max, count) => {
    for (let p = 1; ; p *= 10) for (const m of [1, 2, 5]) if (max / (p * m) <= count) return p * m;
  };
  const compact = n => n >= 1e6 ? n / 1e6 + "M" : n >= 1e4 ? n / 1e3 + "k" : num(n);

  const left = 46, right = 10, top = 8, bottom = 20; // margins of a plot

  const draw = (canvas, s) => {
    const scale = devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, height);
    g.font = "11px system-ui, sans-serif";
    const n = shown(), plotWidth = width - left - right, plotHeight = height - top - bottom;
    const tail = kind => s[kind].slice(-n);
    const [granted, denied, degraded] = kinds.map(tail);
    let most = 1;
    granted.forEach((v, i) => { most = Math.max(most, v + denied[i] + degraded[i]); });
    most *= 1.08;
    const first = state.end - n;
    const x = t => left + (t - first) / n * plotWidth;
    const y = v => top + plotHeight * (1 - v / most);

    // The grid: whole numbers, and times of the clock.
    g.fillStyle = css("--muted");
    g.strokeStyle = css("--line");
    g.lineWidth = 1;
    g.textAlign = "right";
    g.textBaseline = "middle";
    const step = niceStep(most, 5);
    for (let v = 0; v <= most; v += step) {
      const at = Math.round(y(v)) + .5;
      g.beginPath(); g.moveTo(left, at); g.lineTo(width - right, at); g.stroke();
      g.fillText(compact(v), left - 7, at);
    }
    g.textAlign = "center";
    g.textBaseline = "alphabetic";
    const exact = n <= 120, room = plotWidth / (exact ? 80 : 56);
    const every = (exact ? [10, 20, 30, 60] : [60, 120]).find(s => n / s <= room) || 300;
    for (let t = Math.ceil(first / every) * every; t <= state.end; t += every) {
      const at = x(t), half = exact ? 23 : 15;
      if (at - half < left - 10 || at + half > width) continue;
      g.fillText(clock(t, exact), at, height - 4);
      g.beginPath(); g.moveTo(Math.round(at) + .5, top + plotHeight); g.lineTo(Math.round(at) + .5, top + plotHeight + 4); g.stroke();
    }

    // The seconds, from device pixel to device pixel so that neighbours neither overlap nor gap.
    const snap = v => Math.round(v * scale) / scale;
    const begin = state.end - granted.length;
    [["--granted-fill", i => 0, i => granted[i]],
      ["--denied-fill", i => granted[i], i => granted[i] + denied[i]],
      ["--degraded-fill", i => granted[i] + denied[i], i => granted[i] + denied[i] + degraded[i]]].forEach(([color, from, to]) => {
      g.fillStyle = css(color);
      granted.forEach((_, i) => {
        if (to(i) === from(i)) return;
        const x0 = snap(x(begin + i)), x1 = Math.max(snap(x(begin + i + 1)), x0 + 1 / scale);
        const y0 = snap(y(to(i))), y1 = snap(y(from(i)));
        g.fillRect(x0, Math.min(y0, y1 - 1 / scale), x1 - x0, Math.max(y1 - y0, 1 / scale));
      });
    });
    if (state.hover !== null) {
      const at = Math.round(x(state.hover + .5)) + .5;
      g.strokeStyle = css("--ink");
      g.setLineDash([3, 3]);
      g.beginPath(); g.moveTo(at, top); g.lineTo(at, top + plotHeight); g.stroke();
      g.setLineDash([]);
    }
  };

  const chart = () => {
    const box = el("div", "chart"), words = el("div", "words"), canvas = el("canvas");
    words.append(el("h3"), el("p", "limit"), el("div", "big"), el("p", "rates"), el("p", "held"));
    canvas.setAttribute("role", "img");
    canvas.addEventListener("pointermove", e => {
      const share = (e.offsetX - left) / (canvas.clientWidth - left - right);
      const t = Math.floor(state.end - shown() + share * shown());
      hover(share >= 0 && share < 1 ? t : null);
    });
    canvas.addEventListener("pointerleave", () => hover(null));
    box.append(words, canvas);
    return box;
  };
  const hover = t => { if (t !== state.hover) { state.hover = t; drawCharts(); } };

  const storeOf = l => l.store === null ? null : state.report.stores[l.store];

  const drawCharts = () => {
    if (!state.report) return;
    const { limiters } = state.report;
    if (state.hover !== null && (state.hover < state.end - shown() || state.hover >= state.end)) state.hover = null;
    $("nolimiters").hidden = limiters.length > 0;
    rows($("charts"), limiters.length, chart).forEach((box, i) => {
      const l = limiters[i], c = counts(l.name);
      const [name, limit, big, rates, held] = box.querySelector(".words").children;
      say(name, named(l.name));
      say(limit, l.added ? l.limit : "not added to the page");
      limit.title = l.algorithm;
      const share = c.all ? percent(c.denied, c.all) : "–";
      if (big.firstChild?.textContent !== share) big.replaceChildren(share, el("span", "", " denied"));
      big.classList.toggle("none", c.denied === 0);
      const per = kind => rate(c[kind] / c.seconds);
      say(rates, (state.hover === null ? "" : clock(state.hover, true) + " · ") +
        per("granted") + "/s granted · " + per("denied") + "/s denied" + (c.degraded ? " · " + per("degraded") + "/s without the store" : ""));
      const store = storeOf(l);
      if (l.added && !l.granted && !l.denied && !l.degraded) say(held, "no decision seen yet; is it made with WithObserver?");
      else if (store?.memory) say(held, plural(store.memory.keys, "key") + " · " + bytes(store.memory.bytes) + (store.limiters.length > 1 ? " in a shared store" : ""));
      else say(held, store?.redis ? "in Redis" : l.withheld ? plural(l.withheld, "grant") + " withheld by other keys" : "");
      const canvas = box.lastChild;
      canvas.setAttribute("aria-label", named(l.name) + ": " + rates.textContent);
      draw(canvas, series.get(l.name));
    });
  };

  // ---- Tiles ---------------------------------------------------------------

  const drawTiles = () => {
    const { limiters, stores, history } = state.report;
    const last = (kind, n) => sum(limiters.map(l => sum(series.get(l.name)[kind].slice(-n))));
    const all = n => sum(kinds.map(kind => last(kind, n)));
    const seen = Math.min(10, Math.max(1, ...limiters.map(l => series.get(l.name).granted.length)));
    const memory = stores.filter(s => s.memory).map(s => s.memory);
    const redis = stores.filter(s => s.redis).map(s => s.redis);
    const states = redis.flatMap(r => Object.values(r.breakers || {}));
    const open = states.filter(s => s !== "closed").length;
    const minutes = "in the last " + span(Math.max(1, ...limiters.map(l => series.get(l.name).granted.length)));
    const degraded = last("degraded", history);
    const tiles = [
      [rate(all(seen) / seen), "decisions a second", "in the last " + seen + " seconds"],
      [all(history) ? percent(last("denied", history), all(history)) : "–", "denied", "of " + num(all(history)) + " " + minutes],
      [num(sum(memory.map(m => m.keys))), "keys in memory", bytes(sum(memory.map(m => m.bytes))) + " in " + plural(memory.length, "store")],
      [num(degraded), "decided without the store", redis.length ? (open ? plural(open, "circuit breaker") + " not closed" : "Redis: all circuit breakers closed") : minutes, degraded > 0 || open > 0],
    ];
    rows($("tiles"), tiles.length, () => {
      const li = el("li");
      li.append(el("b"), el("span"), el("small"));
      return li;
    }).forEach((li, i) => {
      const [value, label, note, bad] = tiles[i];
      say(li.children[0], value);
      say(li.children[1], label);
      say(li.children[2], note);
      li.classList.toggle("bad", Boolean(bad));
    });
  };

  // ---- Keys denied most ----------------------------------------------------

  const cell = (tag, cls, role, label) => {
    const e = el(tag, cls);
    e.setAttribute("role", role);
    if (label) e.dataset.label = label;
    return e;
  };
  const topRow = () => {
    const tr = cell("tr", "", "row");
    const key = cell("th", "key", "rowheader"), share = cell("td", "share", "cell", "denied lately");
    key.scope = "row";
    const button = el("button");
    button.type = "button";
    button.addEventListener("click", () => {
      const { limiter, top } = tr.shown;
      lookUp({ limiter, id: top.id });
      $("h-look").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    });
    key.append(button);
    const bar = el("div"), meter = el("i", "meter");
    meter.append(el("i"));
    bar.append(meter, el("span"));
    share.append(bar);
    const text = (cls, label) => { const td = cell("td", cls, "cell", label); td.append(el("span")); return td; };
    tr.append(key, text("name", "limiter"), share, text("n", "asked for"), text("n", "last"), text("n", "back"));
    return tr;
  };

  const drawTop = () => {
    const { limiters, now } = state.report;
    if (!limiters.some(l => l.name === state.filter)) state.filter = null;
    const choices = limiters.length > 1 ? [null, ...limiters.filter(l => l.top.length).map(l => l.name)] : [];
    rows($("filters"), choices.length, () => {
      const b = el("button");
      b.type = "button";
      b.addEventListener("click", () => { state.filter = b.filter; drawTop(); });
      return b;
    }).forEach((b, i) => {
      b.filter = choices[i];
      say(b, choices[i] === null ? "all limiters" : named(choices[i]));
      b.setAttribute("aria-pressed", state.filter === choices[i]);
    });
    const all = limiters.filter(l => state.filter === null || l.name === state.filter)
      .flatMap(l => l.top.map(top => ({ limiter: l.name, top })))
      .sort((a, b) => b.top.denied - a.top.denied).slice(0, state.filter === null ? 12 : 20);
    const most = Math.max(1, ...all.map(t => t.top.denied));
    $("top").hidden = all.length === 0;
    $("nokeys").hidden = all.length > 0;
    rows($("top").tBodies[0], all.length, topRow).forEach((tr, i) => {
      tr.shown = all[i];
      const { limiter, top } = all[i];
      const [key, name, share, n, at, again] = tr.children;
      say(key.firstChild, shownKey(top.key) + (top.cut ? "…" : ""));
      key.firstChild.disabled = top.cut;
      key.firstChild.title = top.cut ? "Only the start of this long key is kept." : "";
      say(name.firstChild, named(limiter));
      share.querySelector(".meter i").style.width = 100 * top.denied / most + "%";
      say(share.querySelector("span"), top.denied >= 1 ? num(Math.round(top.denied)) : "<1");
      say(n.firstChild, num(top.n));
      say(at.firstChild, ago(now - top.at));
      const soon = top.back !== null && top.back > now;
      say(again.firstChild, top.never ? "never" : top.back === null ? "–" : soon ? "in " + span((top.back - now) / 1000) : "now");
      again.classList.toggle("soon", soon || top.never);
    });
  };

  // ---- One key -------------------------------------------------------------

  const ask = async fields => {
    const answer = await fetch(location.pathname, {
      method: "POST", body: new URLSearchParams(fields), cache: "no-store", signal: AbortSignal.timeout(10000),
    });
    return answer.json();
  };

  // lookUp looks up what query says, and goes on to do so while it is shown.
  const lookUp = async query => {
    state.found = query;
    if (series.has(query.limiter)) $("limiter").value = query.limiter;
    if (query.key !== undefined) $("key").value = query.key;
    await refresh(true);
  };
  let asking = false;
  const refresh = async first => {
    const query = state.found;
    if (!query || asking && !first) return;
    asking = true;
    let answer;
    try {
      answer = await ask({ action: "lookup", ...query });
    } catch {
      answer = { error: "There is no answer." };
    }
    asking = false;
    if (query === state.found) drawFound(answer, first);
  };

  const verb = n => n === 1 ? "1 is" : num(n) + " are";

  const drawFound = (a, first) => {
    const box = $("found");
    box.hidden = false;
    if (!a.decision) {
      box.replaceChildren(el("p", "error", a.error));
      return;
    }
    const d = a.decision;
    if (first && state.found.id) $("key").value = state.report.hashed ? "" : a.key;
    if (first || !box.querySelector(".verdict")) {
      const verdict = el("div", "verdict"), columns = el("div", "columns"), fields = el("div"), next = el("div");
      verdict.append(el("b"), el("span", "mono"), el("small"));
      fields.append(el("h4", "", "Peek"), el("dl"));
      next.append(el("h4", "", "What the next requests are granted, if no other comes before"), el("ul", "steps"), el("div", "controls"));
      columns.append(fields, next);
      box.replaceChildren(verdict, el("p", "error"), columns);
      if (state.report.reset) addReset(next.lastChild);
    }
    const [verdict, error, columns] = box.children;
    say(verdict.children[0], d.allowed ? "granted" : "denied");
    verdict.children[0].classList.toggle("no", !d.allowed);
    say(verdict.children[1], shownKey(a.key));
    say(verdict.children[2], named(a.limiter) + ": " + a.limit + " (" + a.algorithm + ")");
    error.hidden = !a.error;
    say(error, a.error || "");
    const fields = [
      ["Allowed", d.allowed ? "true" : "false"],
      ["Limit", num(d.limit)],
      ["Remaining", num(d.remaining)],
      ["RetryAfter", exact(d.retryAfter)],
      ["ResetAfter", exact(d.resetAfter)],
      ["Delay", exact(d.delay)],
      ["Part", d.part + (d.partLimit ? ": " + d.partLimit : "")],
      ["Degraded", d.degraded ? "true: the failure policy decided" : "false"],
    ];
    const list = rows(columns.querySelector("dl"), 2 * fields.length, () => el("dd"));
    if (list[0].tagName !== "DT") columns.querySelector("dl").replaceChildren(...fields.flatMap(() => [el("dt"), el("dd")]));
    const entries = [...columns.querySelector("dl").children];
    fields.forEach(([name, value], i) => { say(entries[2 * i], name); say(entries[2 * i + 1], value); });
    const steps = rows(columns.querySelector(".steps"), a.next.length, () => {
      const li = el("li");
      li.append(el("b"), el("span"));
      return li;
    });
    a.next.forEach((step, i) => {
      const { granted, exactly } = step;
      const at = step.in === 0 ? "now" : "in " + span(step.in);
      const text = granted === 0 ? "none is granted" + (d.retryAfter === null ? ", and none ever will be" : "")
        : i > 0 && exactly ? "it is like an unused key: " + num(granted) + " at once"
        : verb(granted) + " granted" + (exactly ? ", one more is denied" : "");
      say(steps[i].firstChild, at);
      say(steps[i].lastChild, ": " + text);
      steps[i].classList.toggle("no", granted === 0);
    });
  };

  // A reset takes two clicks.
  const addReset = place => {
    const button = el("button", "", "Reset this key"), sure = el("button", "danger", "Give it its whole limit again"), no = el("button", "", "Cancel");
    for (const b of [button, sure, no]) b.type = "button";
    const show = on => { button.hidden = on; sure.hidden = no.hidden = !on; };
    button.addEventListener("click", () => { show(true); sure.focus(); });
    no.addEventListener("click", () => show(false));
    sure.addEventListener("click", async () => {
      show(false);
      let answer;
      try {
        answer = await ask({ action: "reset", ...state.found });
      } catch {
        answer = { error: "There is no answer: it is unknown whether the key was reset." };
      }
      drawFound(answer, false);
    });
    show(false);
    place.append(button, sure, no);
  };

  $("form").addEventListener("submit", e => {
    e.preventDefault();
    lookUp({ limiter: $("limiter").value, key: $("key").value });
  });

  const drawForm = () => {
    const names = state.report.limiters.filter(l => l.added).map(l => l.name);
    rows($("limiter"), names.length, () => el("option")).forEach((o, i) => {
      say(o, named(names[i]));
      if (o.value !== names[i]) o.value = names[i];
    });
  };

  // ---- Stores --------------------------------------------------------------

  const figures = (ul, list) => rows(ul, list.length, () => {
    const li = el("li");
    li.append(el("b"), el("span"));
    return li;
  }).forEach((li, i) => {
    const [value, label, bad] = list[i];
    say(li.firstChild, value);
    say(li.lastChild, label);
    li.classList.toggle("bad", Boolean(bad));
  });

  const drawStores = () => {
    const { stores } = state.report;
    $("stores").hidden = stores.length === 0;
    rows($("storelist"), stores.length, () => {
      const box = el("div", "store"), head = el("h3");
      head.append(el("span"), el("small"));
      box.append(head, el("ul", "pills"), el("ul", "figures"), el("h4"), el("ul", "latency"));
      return box;
    }).forEach((box, i) => {
      const { limiters, memory, redis } = stores[i];
      const [head, pills, numbers, title, latency] = box.children;
      say(head.children[0], memory ? "In memory" : "Redis");
      say(head.children[1], limiters.map(named).join(", "));
      for (const e of [pills, title, latency]) e.hidden = !redis;
      if (memory) {
        figures(numbers, [[num(memory.keys), "keys"], [bytes(memory.bytes), "of memory"], [num(memory.inserts), "keys inserted"],
          [num(memory.evictions), "evicted", memory.evictions > 0], [num(memory.rejected), "rejected or shared", memory.rejected > 0]]);
        return;
      }
      const before = samples.find(s => s.stores[i]?.redis) || { at: 0 };
      const seconds = (state.report.now - before.at) / 1000;
      const old = before.at && seconds > 0 ? before.stores[i].redis : null;
      figures(numbers, [
        [old ? rate((redis.calls - old.calls) / seconds) : "–", "calls a second"],
        [num(redis.calls), "calls"],
        [num(redis.cached), "denied from the cache"],
        [num(redis.coalesced), "sent together"],
        [num(redis.leased), "granted from leases"],
        [num(redis.failures), "failures", redis.failures > 0],
        [num(redis.timeouts), "of them timeouts", redis.timeouts > 0],
        [num(redis.refused), "breaker open", redis.refused > 0],
        [num(redis.errorReplies), "error replies", redis.errorReplies > 0],
        [num(redis.otherErrors), "other errors", redis.otherErrors > 0],
      ]);
      const states = Object.entries(redis.breakers || {});
      rows(pills, states.length, () => el("li")).forEach((li, j) => {
        const [server, is] = states[j];
        say(li, (server ? server + ": " : "") + "circuit breaker " + is);
        li.className = is === "closed" ? "" : is === "half-open" ? "half" : "bad";
      });
      const recent = old && seconds > 9 ? redis.latency.map((n, j) => n - old.latency[j]) : [];
      const use = sum(recent) ? recent : redis.latency, most = Math.max(1, ...use);
      say(title, "Calls by the time until the reply, " + (use === recent ? "in the last " + Math.round(seconds) + " seconds" : "since the start"));
      const bounds = redis.latencyBounds;
      rows(latency, use.length, () => {
        const li = el("li"), bar = el("div");
        bar.append(el("i"));
        li.append(bar, el("span"));
        return li;
      }).forEach((li, j) => {
        const bar = li.querySelector("i");
        bar.style.setProperty("--share", use[j] ? Math.max(4, 100 * use[j] / most) + "%" : "0");
        li.title = num(use[j]);
        say(li.lastChild, j < bounds.length ? "≤" + span(bounds[j]).replace(" ", "\u00a0") : "more");
      });
    });
  };

  // ---- Update --------------------------------------------------------------

  const update = () => {
    const { program, host, started, now, ignored, limiters } = state.report;
    say($("process"), program + (host ? " on " + host : ""));
    say($("lead"), plural(limiters.length, "limiter") + ", watched for " + span(Math.floor((now - started) / 1000)) +
      (ignored ? "; " + plural(ignored, "decision") + " of further limiters not shown" : ""));
    drawTiles();
    drawCharts();
    drawTop();
    drawForm();
    drawStores();
  };

  const status = (text, cls) => { say($("status"), text); $("status").className = "status " + cls; };

  let timer = 0, failures = 0;
  const poll = async () => {
    clearTimeout(timer);
    if (state.paused || document.hidden) return;
    let report = null;
    try {
      const answer = await fetch(location.pathname + "?format=json&since=" + state.end, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (answer.ok) report = await answer.json();
    } catch {
      // The server is away: try again.
    }
    failures = report ? 0 : failures + 1;
    clearTimeout(timer);
    timer = setTimeout(poll, Math.min(1000 * 2 ** Math.max(0, failures - 1), 15000));
    if (!report) {
      status("no answer; trying again", "lost");
      return;
    }
    merge(report);
    if (!state.paused) status("live", "live");
    update();
    refresh(false);
  };

  $("pause").addEventListener("click", () => {
    state.paused = !state.paused;
    $("pause").setAttribute("aria-pressed", state.paused);
    say($("pause"), state.paused ? "Continue" : "Pause");
    status(state.paused ? "paused" : "connecting", "");
    poll();
  });
  document.addEventListener("visibilitychange", poll);

  for (const [seconds, text] of [[60, "1 minute"], [300, "5 minutes"]]) {
    const b = el("button", "", text);
    b.type = "button";
    b.setAttribute("aria-pressed", seconds === state.range);
    b.addEventListener("click", () => {
      state.range = seconds;
      for (const other of $("ranges").children) other.setAttribute("aria-pressed", other === b);
      drawCharts();
    });
    $("ranges").append(b);
  }
  new ResizeObserver(() => drawCharts()).observe($("charts"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts());
  poll();
})();
