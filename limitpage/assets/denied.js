// The table of the keys that were denied most.
const denied = (() => {
  const { $, el, button, cell, textCell, say, entitle, rows, fold, here, order } = dom, { num, ago, ahead, when, named, keyed } = words;
  const make = () => {
    const tr = cell("tr", "", "row"), key = cell("th", "key", "rowheader"), share = cell("td", "share", "cell", "denied lately");
    key.scope = "row";
    const choose = button("", "", () => lookup.show({ limiter: tr.shown.limiter.name, id: tr.shown.top.id }));
    choose.append(el("span"));
    key.append(choose);
    const bar = el("div"), meter = el("i", "meter");
    meter.append(el("i"));
    bar.append(meter, el("span"));
    share.append(bar);
    const by = cell("td", "name", "cell", "by"), both = el("div");
    both.append(el("span"), el("small"));
    by.append(both);
    tr.append(key, by, share, textCell("n", "since"), textCell("n", "last"), textCell("n", "back"));
    return tr;
  };

  const ordered = order(t => t.limiter.name + "\0" + t.top.id, (a, b) => b.top.denied - a.top.denied);

  // byOf says which limit denied the key, and for how many events the request was, if not for one.
  const byOf = ({ limiter, top }) => [top.partLimit || limiter.limit + (top.part > 0 ? ", part " + top.part : ""),
    top.n === 1 ? "" : "asked for " + num(top.n)].filter(Boolean).join("; ");

  const draw = () => {
    const { now } = data.report, body = $("top").tBodies[0];
    const found = data.limiters.flatMap(limiter => limiter.top.map(top => ({ limiter, top })));
    ordered(found, body.matches(":focus-within") || body.matches(":hover") && here());
    const listed = found.slice(0, 200), all = listed.slice(0, few(listed.length, "key")), most = Math.max(1, ...all.map(t => t.top.denied));
    $("keys").hidden = all.length === 0;
    $("nokeys").hidden = all.length > 0;
    say($("nokeys"), $("find").value.trim() ? "No key that fits was denied lately." : "No key was denied lately.");
    rows(body, all.length, make).forEach((tr, i) => {
      tr.shown = all[i];
      const { limiter, top } = all[i], [key, name, share, since, at, again] = tr.children;
      const choose = key.firstChild;
      entitle(choose.firstChild, keyed(top.key) + (top.cut ? "… (only the start of this long key is kept)" : ""));
      choose.disabled = top.cut;
      entitle(name.firstChild.firstChild, named(limiter.name));
      entitle(name.firstChild.lastChild, byOf(all[i]));
      share.querySelector(".meter i").style.width = 100 * top.denied / most + "%";
      say(share.querySelector("span"), top.denied >= 1 ? num(Math.round(top.denied)) : "<1");
      say(since.firstChild, when(top.since, now));
      say(at.firstChild, ago(now - top.at));
      // A key that does not wait for its turn is denied again: the time of its turn would mislead.
      const later = top.never || top.back > now + 1000, asking = !later && top.denied > 1.5 && now - top.at < 10000;
      say(again.firstChild, top.never ? "never" : asking ? "keeps asking" : top.back === null ? "–" : ahead(top.back - now));
      again.classList.toggle("soon", later || asking);
    });
  };

  const few = fold($("morekeys"), 12, draw);

  return { draw };
})();
