// The data from the server: the latest report, and the decisions of the last minutes by second.
const data = (() => {
  const kinds = ["granted", "denied", "degraded", "refused"]; // a refused decision is degraded as well
  const series = new Map(); // by name of the limiter: for each kind, the counts of the seconds before end
  const samples = [];       // the stores in each report of the last minute: { at, stores }
  const sum = a => a.reduce((x, y) => x + y, 0);
  const mostKeys = 200;     // that a table shows
  let report = null, end = 0;

  // json returns the server's answer, or throws an Error that says why there is none.
  const json = async (url, options) => {
    let answer, body;
    try {
      answer = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(10000), ...options });
    } catch {
      throw new Error("no answer");
    }
    try {
      body = await answer.json();
    } catch {
      throw new Error(answer.ok ? "the answer is not JSON" : "error " + answer.status + " " + answer.statusText);
    }
    if (!answer.ok) throw new Error(body?.error || "error " + answer.status + " " + answer.statusText);
    return body;
  };

  // ask posts fields, so that keys are not in the logs of proxies.
  const ask = fields => json(location.pathname, { method: "POST", body: new URLSearchParams(fields) });

  const sought = () => dom.$("find").value.trim().toLowerCase(); // what the viewer looks for

  // update fetches the latest report, with the seconds that are not known yet, and with the keys that
  // a table can show, or all of them while the viewer looks for some.
  const update = async () => {
    const latest = await json(location.pathname + "?format=json&since=" + end + (sought() ? "" : "&keys=" + mostKeys));
    if (!Array.isArray(latest?.limiters)) throw new Error("the answer is not a report");
    merge(latest);
  };

  const merge = latest => {
    if (report && report.started !== latest.started) { // the report is of another process
      samples.length = 0;
      end = 0; // no second is known
    }
    const before = end;
    for (const { name, seconds } of latest.limiters) {
      const known = seconds.from <= before && series.get(name) || {}, all = {};
      for (const kind of kinds) {
        const old = known[kind] || [];
        const keep = Math.max(0, old.length - (before - seconds.from)); // seconds that are sent again replace the known ones
        all[kind] = old.slice(0, keep).concat(seconds[kind] || seconds.granted.map(() => 0)).slice(-latest.history);
      }
      series.set(name, all);
      end = seconds.from + seconds.granted.length;
    }
    const names = new Set(latest.limiters.map(l => l.name));
    for (const name of [...series.keys()]) if (!names.has(name)) series.delete(name);
    samples.push({ at: latest.now, stores: latest.stores });
    while (latest.now - samples[0].at > 60000) samples.shift();
    report = latest;
  };

  // counts returns the decisions of a limiter in the last seconds or, if at is not null, in second at.
  const counts = (name, last, at) => {
    const s = series.get(name), n = s.granted.length, out = {};
    for (const kind of kinds) out[kind] = at === null ? sum(s[kind].slice(-last)) : s[kind][n - (end - at)] || 0;
    out.all = out.granted + out.denied + out.degraded;
    out.seconds = at === null ? Math.max(1, Math.min(last, n)) : 1;
    return out;
  };

  // found returns the limiters whose name has the text, with all of their listed keys, and the limiters that
  // list keys with the text, with only these keys.
  const found = text => {
    const has = s => s.toLowerCase().includes(text), hasName = l => has(words.named(l.name));
    const of = (l, keys) => hasName(l) ? keys : keys.filter(k => has(words.keyed(k.key)));
    return report.limiters.map(l => ({ ...l, top: of(l, l.top), used: of(l, l.used) }))
      .filter(l => l.top.length > 0 || l.used.length > 0 || hasName(l));
  };

  // total returns the decisions of all limiters in the last seconds.
  const total = last => {
    const out = { granted: 0, denied: 0, degraded: 0, refused: 0, all: 0, seconds: 1 };
    for (const name of series.keys()) {
      const c = counts(name, last, null);
      for (const kind of [...kinds, "all"]) out[kind] += c[kind];
      out.seconds = Math.max(out.seconds, c.seconds);
    }
    return out;
  };

  // earlier returns the oldest sample of a store, and how many seconds ago it was taken.
  const earlier = (i, first) => {
    const s = samples.find(s => s.stores[i]?.limiters[0] === first);
    return s && report.now > s.at ? { store: s.stores[i], seconds: (report.now - s.at) / 1000 } : null;
  };

  return {
    ask, update, counts, total, earlier, sum, mostKeys,
    get limiters() { return found(sought()); }, // the limiters that the viewer looks for
    seconds: name => series.get(name),
    has: name => series.has(name),
    get report() { return report; },
    get end() { return end; }, // the second after the latest known one
  };
})();
