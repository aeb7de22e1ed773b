// Elements of the document. The scripts write only text nodes and style properties, and no markup,
// because names and keys may be any text.
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

  // cell makes a part of a table. On narrow screens, the style sheet lays the table out as blocks:
  // then the role still says what the part is, and label replaces the head of the column.
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

  // say changes the text of e, if it differs. An equal text is left alone, so that a selection stays.
  const say = (e, text) => { if (e.textContent !== text) e.textContent = text; };

  // entitle sets the text of e, which the style sheet may cut, and makes the whole text its title.
  const entitle = (e, text) => {
    say(e, text);
    if (e.title !== text) e.title = text;
  };

  // rows adds or removes children of parent until it has n, and returns them. make makes a child.
  const rows = (parent, n, make) => {
    while (parent.children.length > n) parent.lastChild.remove();
    while (parent.children.length < n) parent.append(make());
    return [...parent.children];
  };

  // pairs gives ul an item for each pair of texts in list, and returns the items.
  const pairs = (ul, list) => {
    const items = rows(ul, list.length, () => {
      const li = el("li");
      li.append(el("b"), el("span"));
      return li;
    });
    items.forEach((li, i) => [li.firstChild, li.lastChild].forEach((e, j) => say(e, list[i][j])));
    return items;
  };

  // fold returns a function that says how many items of a list to show: few, or all of them once the
  // button was pressed.
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

  // here reports whether the viewer has moved the pointer or pressed a key in the last ten seconds. A
  // pointer that merely rests on the page does not count.
  let moved = 0;
  for (const event of ["pointermove", "keydown"]) addEventListener(event, () => { moved = Date.now(); });
  const here = () => Date.now() - moved < 10000;

  // order returns a function that sorts a list. If held is true, items that were in the list before keep
  // their places, so that a click does not hit another item.
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
