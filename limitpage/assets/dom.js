// Elements of the document. Everything is drawn as text nodes and style properties, never as
// markup: names and keys may be anything.
const dom = (() => {
  const $ = id => document.getElementById(id);

  const el = (tag, cls, text) => {
    const e = document.createElement(tag);
    if (cls) e.className = cls;
    if (text !== undefined) e.textContent = text;
    return e;
  };

  const button = (cls, text, click) => {
    const b = el("button", cls, text);
    b.type = "button";
    b.addEventListener("click", click);
    return b;
  };

  // cell makes a part of a table. The role stays where the style sheet lays the table out as
  // blocks, and label is what it writes there in place of the column's head.
  const cell = (tag, cls, role, label) => {
    const e = el(tag, cls);
    e.setAttribute("role", role);
    if (label) e.dataset.label = label;
    return e;
  };

  // textCell makes a cell with an element for its text.
  const textCell = (cls, label) => {
    const td = cell("td", cls, "cell", label);
    td.append(el("span"));
    return td;
  };

  // say changes the text of e if it is another one, so that a selection stays.
  const say = (e, text) => { if (e.textContent !== text) e.textContent = text; };

  // entitle says a text that the style sheet may cut, and shows all of it as the title.
  const entitle = (e, text) => {
    say(e, text);
    if (e.title !== text) e.title = text;
  };

  // rows makes parent have n children, which make makes, and returns them.
  const rows = (parent, n, make) => {
    while (parent.children.length > n) parent.lastChild.remove();
    while (parent.children.length < n) parent.append(make());
    return [...parent.children];
  };

  // pairs makes ul have an item for each of list, with its two texts, and returns the items.
  const pairs = (ul, list) => {
    const items = rows(ul, list.length, () => {
      const li = el("li");
      li.append(el("b"), el("span"));
      return li;
    });
    items.forEach((li, i) => [li.firstChild, li.lastChild].forEach((e, j) => say(e, list[i][j])));
    return items;
  };

  // fold returns a function that says how many of a list to show: few, or all once the button was
  // pressed.
  const fold = (button, few, draw) => {
    let open = false;
    button.setAttribute("aria-expanded", open);
    button.addEventListener("click", () => {
      open = !open;
      button.setAttribute("aria-expanded", open);
      draw();
    });
    return (n, noun) => {
      button.parentNode.hidden = n <= few;
      say(button, open ? "Show only the first " + few : "Show all " + words.plural(n, noun));
      return open ? n : Math.min(few, n);
    };
  };

  // Somebody is here who has moved the pointer or pressed a key within some seconds. A pointer that
  // is left behind does not count.
  let moved = 0;
  for (const event of ["pointermove", "keydown"]) addEventListener(event, () => { moved = Date.now(); });
  const here = () => Date.now() - moved < 10000;

  // order returns a function that puts a list in an order. While held, what was in the list keeps its
  // place, so that a click does not hit something else.
  const order = (id, compare) => {
    let places = new Map();
    return (list, held) => {
      const of = x => places.get(id(x)) ?? places.size;
      list.sort((a, b) => held && of(a) - of(b) || compare(a, b));
      places = new Map(list.map((x, i) => [id(x), i]));
      return list;
    };
  };

  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  return { $, el, button, cell, textCell, say, entitle, rows, pairs, fold, here, order, css };
})();
