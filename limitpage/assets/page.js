// The head of the page, and the loop that updates the whole page with a report each second.
{
  const { $, el, say, rows } = dom, { num, plural, rate, percent, bytes, span, clock, zone, date } = words;

  // storesOf says how many stores these are, and how many of them have a single limiter: most limiters are given none.
  const storesOf = all => {
    const alone = all.filter(s => s.limiters.length === 1).length, n = plural(all.length, "store");
    return alone === 0 ? n : alone < all.length ? n + ", " + num(alone) + " of one limiter each" : n + " of one limiter" + (alone > 1 ? " each" : "");
  };

  // tiles returns four things of each tile: the value, the label, the note, and how bad the value is.
  const tiles = () => {
    const { stores, history } = data.report, recent = data.total(10), all = data.total(history);
    const memory = stores.filter(s => s.memory).map(s => s.memory), redis = stores.filter(s => s.redis).map(s => s.redis);
    const open = redis.flatMap(r => Object.values(r.breakers || {})).filter(s => s !== "closed").length;
    const time = "in the last " + span(all.seconds);
    const health = redis.some(r => Object.keys(r.outages).length) ? "Redis fails" : open ? plural(open, "circuit breaker") + " not closed" : "Redis: all circuit breakers closed";
    return [
      [rate(recent.all / recent.seconds), "decisions a second", "in the last " + plural(recent.seconds, "second")],
      [all.all ? percent(all.denied + all.refused, all.all) : "–", all.refused ? "denied or refused" : "denied",
        all.all ? "of " + num(all.all) + " " + time : "no decision " + time, charts.level(all.denied + all.refused, all.all)],
      memory.length
        ? [num(data.sum(memory.map(m => m.keys))), "keys in memory", bytes(data.sum(memory.map(m => m.bytes))) + " in " + storesOf(stores.filter(s => s.memory))]
        : ["–", "keys in memory", "no store in memory"],
      [num(all.degraded), "decided without the store",
        (all.degraded ? charts.refusals(all) + (redis.length ? "; " : "") : "") + (redis.length ? health : all.degraded ? "" : time), all.degraded > 0 || open > 0 ? "bad" : ""],
    ];
  };

  const drawTiles = () => {
    const all = tiles();
    rows($("tiles"), all.length, () => {
      const li = el("li");
      li.append(el("b"), el("span"), el("small"));
      return li;
    }).forEach((li, i) => {
      [...li.children].forEach((e, j) => say(e, all[i][j]));
      li.className = all[i][3] || "";
    });
  };

  const draw = () => {
    const { program, host, started, now, ignored, limiters } = data.report;
    const process = program + (host ? " on " + host : "");
    say($("process"), process);
    if (document.title !== "Rate limits · " + process) document.title = "Rate limits · " + process;
    say($("lead"), plural(limiters.length, "limiter") + ", watched for " + span(Math.floor((now - started) / 1000)) + ", as of " + date(now) +
      (ignored ? "; " + plural(ignored, "decision") + " of further limiters not shown" : ""));
    say($("zone"), zone(now));
    $("findlabel").hidden = limiters.length < 2;
    drawTiles();
    outages.draw();
    charts.draw();
    denied.draw();
    used.draw();
    lookup.drawForm();
    stores.draw();
  };

  const status = (text, cls) => {
    say($("status"), text);
    $("status").className = "status " + cls;
  };

  let timer = 0, paused = false, polling = false, failures = 0, answered = null;

  // poll fetches a report each second. It waits for one before it fetches the next, and fetches none
  // while the page is paused or hidden.
  const poll = async () => {
    clearTimeout(timer);
    if (polling || paused || document.hidden) return;
    polling = true;
    let problem = "";
    try {
      await data.update();
    } catch (e) {
      problem = e.message.slice(0, 200); // the text may be long
    }
    polling = false;
    failures = problem ? failures + 1 : 0;
    timer = setTimeout(poll, Math.min(1000 * 2 ** Math.max(0, failures - 1), 15000));
    if (problem) {
      if (!paused) status(problem + (answered ? " since " + clock(answered, true) : "") + "; trying again", "lost");
      return;
    }
    answered = Date.now() / 1000;
    if (!paused) status("live", "live");
    draw();
    lookup.refresh();
  };

  $("pause").addEventListener("click", () => {
    paused = !paused;
    say($("pause"), paused ? "Continue" : "Pause");
    status(paused ? "paused" : "connecting", "");
    poll();
  });
  $("find").addEventListener("input", () => {
    if (data.report) draw();
    poll(); // for the keys that are not shown otherwise
  });
  document.addEventListener("visibilitychange", poll);
  addEventListener("online", poll);
  poll();
}
