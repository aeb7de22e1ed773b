// The table of the keys that were denied most.
const denied = (() => {
  const { $, el, button, cell, textCell, say, entitle, rows } = dom, { num, ago, ahead, named, keyed } = words;
  let filter = null; // the limiter whose keys are shown; null for those of all
  let places = [];   // the keys in the rows, from top to bottom

  const make = () => {
    const tr = cell("tr", "", "row"), key = cell("th", "key", "rowheader"), share = cell("td", "share", "cell", "denied lately");
    key.scope = "row";
    const choose = button("", "", () => lookup.show({ limiter: tr.shown.limiter, id: tr.shown.top.id }));
    choose.append(el("span"));
    key.append(choose);
    const bar = el("div"), meter = el("i", "meter");
    meter.append(el("i"));
    bar.append(meter, el("span"));
    share.append(bar);
    tr.append(key, textCell("name", "limiter"), share, textCell("n", "asked for"), textCell("n", "last"), textCell("n", "back"));
    return tr;
  };

  // ordered returns the keys to show, those denied most first. While somebody points at one, or
  // has moved the focus there, keys keep their places, so that a click does not hit another one.
  const ordered = () => {
    const place = t => JSON.stringify([t.limiter, t.top.id]);
    const all = data.report.limiters.filter(l => filter === null || l.name === filter)
      .flatMap(l => l.top.map(top => ({ limiter: l.name, top })))
      .sort((a, b) => b.top.denied - a.top.denied);
    const body = $("top").tBodies[0];
    if (body.matches(":hover, :focus-within")) {
      const known = new Map(places.map((p, i) => [p, i]));
      const of = t => known.get(place(t)) ?? places.length;
      all.sort((a, b) => of(a) - of(b)); // those that are new stay in their order
    }
    const first = all.slice(0, filter === null ? 12 : 20);
    places = first.map(place);
    return first;
  };

  const drawFilter = () => {
    const { limiters } = data.report;
    if (!limiters.some(l => l.name === filter)) filter = null;
    const choices = [null, ...limiters.map(l => l.name)];
    $("filterbar").hidden = limiters.length < 2;
    rows($("filter"), choices.length, () => el("option")).forEach((o, i) => {
      o.choice = choices[i];
      say(o, choices[i] === null ? "all" : named(choices[i]));
    });
    $("filter").selectedIndex = choices.indexOf(filter);
  };

  const draw = () => {
    drawFilter();
    const all = ordered(), most = Math.max(1, ...all.map(t => t.top.denied)), { now } = data.report;
    $("keys").hidden = all.length === 0;
    $("nokeys").hidden = all.length > 0;
    rows($("top").tBodies[0], all.length, make).forEach((tr, i) => {
      tr.shown = all[i];
      const { limiter, top } = all[i], [key, name, share, n, at, again] = tr.children;
      const choose = key.firstChild;
      entitle(choose.firstChild, keyed(top.key) + (top.cut ? "… (only the start of this long key is kept)" : ""));
      choose.disabled = top.cut;
      entitle(name.firstChild, named(limiter));
      share.querySelector(".meter i").style.width = 100 * top.denied / most + "%";
      say(share.querySelector("span"), top.denied >= 1 ? num(Math.round(top.denied)) : "<1");
      say(n.firstChild, num(top.n));
      say(at.firstChild, ago(now - top.at));
      const soon = top.never || top.back !== null && top.back > now;
      say(again.firstChild, top.never ? "never" : top.back === null ? "–" : ahead(top.back - now));
      again.classList.toggle("soon", soon);
    });
  };

  $("filter").addEventListener("change", () => {
    filter = $("filter").selectedOptions[0].choice;
    places = [];
    draw();
  });

  return { draw };
})();
