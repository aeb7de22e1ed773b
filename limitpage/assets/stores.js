// The stores: a table of the stores in memory, and the calls and failures of each store in Redis.
const stores = (() => {
  const { $, el, cell, textCell, say, entitle, rows, pairs, fold } = dom, { num, plural, rate, compact, bytes, span, named } = words;

  const namesOf = limiters => limiters.map(named).join(", ");

  const makeMemory = () => {
    const tr = cell("tr", "", "row"), names = cell("th", "names", "rowheader");
    names.scope = "row";
    names.append(el("span"));
    tr.append(names, textCell("n", "keys"), textCell("n", "memory"), textCell("n", "inserted"), textCell("n", "evicted"), textCell("n", "rejected"), textCell("n", "not settled"));
    return tr;
  };

  const drawMemory = all => {
    $("memory").hidden = $("ownstores").hidden = all.length === 0;
    all.sort((a, b) => b.memory.evictions + b.memory.rejected - a.memory.evictions - a.memory.rejected || b.memory.bytes - a.memory.bytes);
    rows($("memory").querySelector("tbody"), few(all.length, "store"), makeMemory).forEach((tr, i) => {
      const { limiters, memory } = all[i], cells = [...tr.children];
      entitle(cells[0].firstChild, namesOf(limiters));
      const figures = [num(memory.keys), bytes(memory.bytes), num(memory.inserts), num(memory.evictions), num(memory.rejected), num(memory.ended)];
      figures.forEach((text, j) => say(cells[j + 1].firstChild, text));
      cells[4].classList.toggle("bad", memory.evictions > 0);
      cells[5].classList.toggle("bad", memory.rejected > 0);
      cells[6].classList.toggle("bad", memory.ended > 0);
    });
  };

  const makeRedis = () => {
    const box = el("div", "store"), head = el("h3");
    head.append(el("span", "", "Redis"), el("small"));
    box.append(head, el("ul", "pills"), el("ul", "figures"), el("p", "error"), el("h4", "label"), el("ul", "latency"));
    return box;
  };

  // quantile returns, in words, the time within which the given share of the calls was answered.
  const quantile = (counts, bounds, share) => {
    let left = share * data.sum(counts);
    if (left === 0) return "–";
    const i = counts.findIndex(n => (left -= n) <= 0);
    return i < bounds.length ? "≤" + span(bounds[i]) : ">" + span(bounds[bounds.length - 1]);
  };

  // failures says how many decisions were made without Redis and why, and what else went wrong.
  const failures = redis => {
    const why = [[redis.timeouts, "without an answer in time"], [redis.breakerOpen, "while the circuit breaker was open"],
      [redis.errorReplies, "with an error as the reply"], [redis.otherErrors, "with another error"]];
    const parts = why.filter(([n]) => n > 0).map(([n, text]) => num(n) + " " + text);
    const all = [];
    if (redis.failures > 0) all.push(plural(redis.failures, "decision") + " without Redis: " + parts.join(", ") + ".");
    if (redis.lost > 0) all.push(plural(redis.lost, "event") + " perhaps not given back.");
    if (redis.ended > 0) all.push(plural(redis.ended, "hold") + " not settled in time.");
    if (redis.unreadable > 0) all.push(plural(redis.unreadable, "unreadable state") + " replaced.");
    return all.join(" ");
  };

  const drawBreakers = (pills, breakers) => {
    const states = Object.entries(breakers || {});
    pills.hidden = states.length === 0;
    rows(pills, states.length, () => el("li")).forEach((li, i) => {
      const [server, is] = states[i];
      say(li, (server ? server + ": " : "") + "circuit breaker " + is);
      li.className = is === "closed" ? "" : is === "half-open" ? "half" : "bad";
    });
  };

  const drawLatency = (ul, counts, bounds) => {
    const most = Math.max(1, ...counts);
    ul.hidden = data.sum(counts) === 0;
    rows(ul, counts.length, () => {
      const li = el("li"), bar = el("div");
      bar.append(el("em"), el("i"));
      li.append(bar, el("span"));
      return li;
    }).forEach((li, i) => {
      const [count, bar] = li.firstChild.children;
      say(count, counts[i] ? compact(counts[i]) : "");
      bar.style.setProperty("--share", counts[i] ? Math.max(4, 100 * counts[i] / most) + "%" : "0px");
      say(li.lastChild, i < bounds.length ? "≤" + span(bounds[i]).replace(" ", "\u00a0") : "more");
    });
  };

  const drawRedis = (box, index) => {
    const { limiters, redis } = data.report.stores[index], [head, pills, figures, failed, title, latency] = box.children;
    const before = data.earlier(index, limiters[0]), old = before?.store.redis;
    const recent = old && before.seconds > 9;
    const counts = recent ? redis.latency.map((n, i) => n - old.latency[i]) : redis.latency;
    const time = recent ? "in the last " + Math.round(before.seconds) + " seconds" : "since the start";
    entitle(head.lastChild, namesOf(limiters));
    drawBreakers(pills, redis.breakers);
    pairs(figures, [
      [old ? rate((redis.calls - old.calls) / before.seconds) : "–", "calls a second"],
      [quantile(counts, redis.latencyBounds, .5), "half of the calls"],
      [quantile(counts, redis.latencyBounds, .99), "99\u00a0% of the calls"],
      [num(redis.calls), "calls"],
      [num(redis.cached), "denied from the cache"],
      [num(redis.leased), "granted from leases"],
      [num(redis.coalesced), "sent together"],
    ]);
    const text = failures(redis);
    failed.hidden = text === "";
    say(failed, text);
    say(title, data.sum(counts) ? "Calls by the time until the reply, " + time : "No reply " + time);
    drawLatency(latency, counts, redis.latencyBounds);
  };

  const draw = () => {
    const names = new Set(data.limiters.map(l => l.name));
    const all = data.report.stores.map(s => s.limiters.some(l => names.has(l)) ? s : {}), redis = [...all.keys()].filter(i => all[i].redis);
    $("stores").hidden = !all.some(s => s.memory || s.redis);
    drawMemory(all.filter(s => s.memory));
    rows($("redis"), redis.length, makeRedis).forEach((box, i) => drawRedis(box, redis[i]));
  };

  const few = fold($("morestores"), 10, draw);

  return { draw };
})();
