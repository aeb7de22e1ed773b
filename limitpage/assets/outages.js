// The failures: which store failed, since when and why, and how decisions were made without it.
const outages = (() => {
  const { $, el, say, rows } = dom, { plural, when, named } = words;

  // list returns the outages, each with its limiters. Each store that the page knows has one outage. The
  // failures of other stores and of lookups are grouped by cause. Outages that are over come last, and
  // among equals the latest comes first.
  const list = () => {
    const by = new Map();
    for (const l of data.report.limiters) {
      if (!l.outage) continue;
      const { since, last, cause, over } = l.outage, place = l.store === null ? cause : l.store;
      const o = by.get(place) || { store: data.report.stores[l.store], since, last: 0, over: true, limiters: [] };
      if (last >= o.last) Object.assign(o, { last, cause });
      o.since = Math.min(o.since, since);
      o.over &&= over;
      o.limiters.push(l.name);
      by.set(place, o);
    }
    for (const o of by.values()) { // redisstore knows more: since when no command succeeds on each server
      const servers = Object.entries(o.store?.redis?.outages || {});
      if (servers.length === 0) continue;
      o.over = false;
      o.since = Math.min(...servers.map(([, s]) => s.since));
      o.cause = servers.slice(0, 3).map(([name, s]) => (name && !s.cause.includes(name) ? name + ": " : "") + s.cause).join("; ") +
        (servers.length > 3 ? "; and " + plural(servers.length - 3, "more server") : "");
    }
    return [...by.values()].sort((a, b) => a.over - b.over || b.last - a.last);
  };

  const headOf = o => {
    const { now } = data.report, what = o.store?.redis ? "Redis" : o.store?.memory ? "The store in memory" : "A store or a lookup";
    return what + (o.over ? " failed from " + when(o.since, now) + " to " + when(o.last, now) : " has failed since " + when(o.since, now));
  };

  const whatOf = o => {
    const c = { degraded: 0, refused: 0 };
    for (const name of o.limiters) for (const kind in c) c[kind] += data.counts(name, data.report.history, null)[kind];
    const names = o.limiters.slice(0, 3).map(named).join(", ") + (o.limiters.length > 3 ? " and " + plural(o.limiters.length - 3, "more limiter") : "");
    return names + (c.degraded ? ": " + plural(c.degraded, "decision") + " without it in the last minutes, " + charts.refusals(c) : "");
  };

  const draw = () => {
    const all = list(), shown = all.slice(0, 5);
    $("outages").hidden = all.length === 0;
    rows($("outages"), shown.length, () => {
      const box = el("div");
      box.append(el("b"), el("p", "cause"), el("p"));
      return box;
    }).forEach((box, i) => {
      const [head, cause, what] = box.children, o = shown[i];
      box.className = o.over ? "over" : "";
      say(head, headOf(o));
      say(cause, o.cause);
      say(what, whatOf(o) + (i === 4 && all.length > 5 ? "; and " + plural(all.length - 5, "more failure") : ""));
    });
  };

  return { draw };
})();
