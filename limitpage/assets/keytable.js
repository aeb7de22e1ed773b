// A table of the keys that have the greatest counts in a list of each limiter.

// keytable returns the function that draws a table:
//   table, box, none, more: the table, what has it, the words in its place if no key is listed, and its button
//   first:    how many keys are shown before the button is pressed
//   keys:     the list of a limiter
//   count:    the count of a key in that list; label: what is counted
//   about:    what the table says of the limit, for a limiter and a key
//   cells:    the labels of the other cells; say: what they say, for their elements and a key
//   nothing:  the words if no key is listed, and if none has what the viewer looks for
const keytable = ({ table, box, none, more, first, keys, count, label, about, cells, say: sayCells, nothing }) => {
  const { $, el, button, cell, textCell, say, entitle, rows, fold, here, order } = dom, { compact, named, keyed } = words;
  const make = () => {
    const tr = cell("tr", "", "row"), key = cell("th", "key", "rowheader"), share = cell("td", "share", "cell", label);
    key.scope = "row";
    const choose = button("", "", () => lookup.show({ limiter: tr.shown.limiter.name, id: tr.shown.key.id }));
    choose.append(el("span"));
    key.append(choose);
    const bar = el("div"), meter = el("i", "meter");
    meter.append(el("i"));
    bar.append(meter, el("span"));
    share.append(bar);
    const by = cell("td", "name", "cell", "by"), both = el("div");
    both.append(el("span"), el("small"));
    by.append(both);
    tr.append(key, by, share, ...cells.map(text => textCell("n", text)));
    return tr;
  };

  const ordered = order(t => t.limiter.name + "\0" + t.key.id, (a, b) => count(b.key) - count(a.key));

  const draw = () => {
    const body = table.tBodies[0];
    const found = data.limiters.flatMap(limiter => keys(limiter).map(key => ({ limiter, key })));
    ordered(found, body.matches(":focus-within") || body.matches(":hover") && here());
    const listed = found.slice(0, data.mostKeys), all = listed.slice(0, few(listed.length, "key")), most = Math.max(1, ...all.map(t => count(t.key)));
    box.hidden = all.length === 0;
    none.hidden = all.length > 0;
    say(none, nothing[$("find").value.trim() ? 1 : 0]);
    rows(body, all.length, make).forEach((tr, i) => {
      tr.shown = all[i];
      const { limiter, key } = all[i], [head, name, share, ...others] = tr.children, n = count(key);
      const choose = head.firstChild;
      entitle(choose.firstChild, keyed(key.key) + (key.cut ? "… (only the start of this long key is kept)" : ""));
      choose.disabled = key.cut;
      entitle(name.firstChild.firstChild, named(limiter.name));
      entitle(name.firstChild.lastChild, about(limiter, key));
      share.querySelector(".meter i").style.width = 100 * n / most + "%";
      say(share.querySelector("span"), n >= 1 ? compact(Math.round(n), 1e6) : "<1");
      sayCells(others, key);
    });
  };

  const few = fold(more, first, draw);

  return draw;
};
