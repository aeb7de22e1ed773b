// The limiters: the limit, the numbers and the plot of each. Limiters that deny most come first. All plots show the same
// seconds, and one line moves through all plots.
const charts = (() => {
  const { $, el, button, say, entitle, rows, fold, here, order } = dom, { plural, rate, percent, bytes, clock, named } = words;
  let range = 300; // how many seconds the plots show
  let at = null;   // the second whose numbers are shown; null shows the numbers of the range

  const move = t => { if (t !== at) { at = t; draw(); } };

  const make = () => {
    const box = el("div", "chart"), text = el("div", "words"), canvas = el("canvas");
    text.append(el("h3"), el("p", "limit"), el("div", "big"), el("p", "rates"), el("p", "held"), el("p", "part"));
    canvas.setAttribute("role", "img");
    for (const event of ["pointerdown", "pointermove"])
      canvas.addEventListener(event, e => move(plot.timeAt(canvas, e.offsetX, data.end, range)));
    canvas.addEventListener("pointerleave", () => move(null));
    box.append(text, canvas);
    return box;
  };

  const keysOf = l => {
    const store = l.store === null ? null : data.report.stores[l.store];
    if (store?.redis) return "in Redis";
    if (!store?.memory) return "";
    const of = store.limiters.length;
    return plural(store.memory.keys, "key") + " · " + bytes(store.memory.bytes) + (of > 1 ? " in a store of " + of + " limiters" : "");
  };

  const ratesOf = (l, c) => {
    if (!l.granted && !l.denied && !l.degraded)
      return l.withheld ? plural(l.withheld, "grant") + " withheld by other keys" : "no decision yet; only limiters made with WithObserver are counted";
    const per = kind => rate(c[kind] / c.seconds) + "/s ";
    let text = (at === null ? "" : clock(at, true) + " · ") + per("granted") + "granted · " + per("denied") + "denied";
    if (c.degraded) text += " · " + per("degraded") + "without the store, " + refusals(c);
    return text;
  };

  // refusals says how many of the decisions that were made without the store were refused.
  const refusals = c => c.refused === 0 ? "all granted" : c.refused >= c.degraded ? "all refused" : percent(c.refused, c.degraded) + " refused";

  // level returns how bad it is that denied of all decisions were denied.
  const level = (denied, all) => denied === 0 ? "none" : denied < .1 * all ? "some" : denied < .5 * all ? "much" : "most";

  // partOf says which part of an All denies most.
  const partOf = l => l.deniedBy ? "denied lately mostly by: " + l.deniedBy : "";

  // The order is that of the last five minutes, so that limiters seldom change their places.
  const ordered = order(l => l.name, (a, b) => b.c.denied + b.c.refused - a.c.denied - a.c.refused || b.c.degraded - a.c.degraded || b.c.all - a.c.all);

  const draw = () => {
    if (!data.report) return;
    const all = data.limiters.map(l => ({ ...l, c: data.counts(l.name, data.report.history, null) }));
    if (at !== null && (at < data.end - range || at >= data.end)) at = null;
    ordered(all, at !== null && here());
    say($("nolimiters"), data.report.limiters.length ? "No limiter has such a name, or lists such a key." : "No limiter yet. Make limiters with WithObserver, and show them with Add.");
    $("nolimiters").hidden = all.length > 0;
    $("plots").hidden = all.length === 0;
    const limiters = all.slice(0, few(all.length, "limiter"));
    rows($("charts"), limiters.length, make).forEach((box, i) => {
      const l = limiters[i], c = data.counts(l.name, range, at), canvas = box.lastChild;
      const [name, limit, big, rates, held, part] = box.firstChild.children;
      entitle(name, named(l.name));
      say(limit, l.added ? l.limit : "not added to the page");
      limit.title = l.algorithm;
      const share = c.all ? percent(c.denied + c.refused, c.all) : "–", what = c.refused ? " denied or refused" : " denied";
      if (big.textContent !== share + what) big.replaceChildren(share, el("span", "", what));
      big.className = "big " + level(c.denied + c.refused, c.all);
      say(rates, ratesOf(l, c));
      say(held, keysOf(l));
      say(part, partOf(l));
      canvas.setAttribute("aria-label", named(l.name) + ": " + rates.textContent);
      plot.draw(canvas, data.seconds(l.name), data.end, range, at);
    });
  };

  const few = fold($("morelimiters"), 10, draw);

  // The arrow keys also move the line.
  $("charts").addEventListener("keydown", e => {
    const first = data.end - range, last = data.end - 1, now = at === null ? last + 1 : at;
    const to = { ArrowLeft: now - (e.shiftKey ? 10 : 1), ArrowRight: now + (e.shiftKey ? 10 : 1), Home: first, End: last, Escape: null }[e.key];
    if (to === undefined || e.altKey || e.ctrlKey || e.metaKey) return;
    e.preventDefault();
    move(to === null ? null : Math.min(last, Math.max(first, to)));
  });
  $("charts").addEventListener("blur", () => move(null));

  for (const [seconds, text] of [[60, "1 minute"], [300, "5 minutes"]]) {
    const b = button("", text, () => {
      range = seconds;
      for (const other of $("ranges").children) other.setAttribute("aria-pressed", other === b);
      draw();
    });
    b.setAttribute("aria-pressed", seconds === range);
    $("ranges").append(b);
  }
  new ResizeObserver(draw).observe($("charts"));
  for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", draw);

  return { draw, refusals, level };
})();
