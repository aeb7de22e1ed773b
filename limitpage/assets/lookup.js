// One key that is looked up: the answer of Peek, and a forecast of the next decisions.
const lookup = (() => {
  const { $, el, button, say, rows, pairs } = dom, { num, span, exact, when, named, keyed } = words;
  let query = null;   // names the key that is shown; sent again with each update of the page
  let asking = null;  // the query that is under way

  // show looks up the key that asked names, and scrolls to it.
  const show = async asked => {
    if (data.has(asked.limiter)) $("limiter").value = asked.limiter;
    $("h-look").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    $("h-look").focus({ preventScroll: true });
    await start(asked);
  };

  const start = async asked => {
    query = asked;
    $("found").hidden = false;
    $("found").replaceChildren(el("p", "empty", "Looking up the key"));
    await refresh();
    if (query !== asked) return;
    const verdict = $("found").querySelector(".verdict");
    say($("heard"), verdict ? verdict.innerText.replace(/\s+/g, " ") : $("found").textContent);
  };

  const refresh = async () => {
    const asked = query;
    if (!asked || asking === asked) return;
    asking = asked;
    let answer;
    try {
      answer = await data.ask({ action: "lookup", ...asked });
    } catch (e) {
      answer = { error: e.message };
    }
    if (asking === asked) asking = null;
    if (query === asked) draw(answer);
  };

  const draw = answer => {
    const box = $("found"), d = answer.decision;
    if (!d) {
      box.replaceChildren(el("p", "error", answer.error));
      return;
    }
    if (!box.querySelector(".verdict")) {
      build(box);
      if (query.id) $("key").value = answer.verbatim ? answer.key : "";
    }
    const [verdict, error, columns] = box.children;
    const [word, key, limit] = verdict.children;
    const locked = answer.lockedUntil ? "locked until " + when(answer.lockedUntil, data.report.now) : "";
    say(word, d.allowed ? "granted" : locked || "denied");
    word.classList.toggle("no", !d.allowed);
    say(key, keyed(answer.key));
    say(limit, named(answer.limiter) + (answer.limit ? ": " + answer.limit + " (" + answer.algorithm + ")" : ""));
    error.hidden = !answer.error;
    say(error, answer.error || "");
    drawFields(columns.querySelector("dl"), d);
    drawNext(columns.querySelector(".steps"), answer);
  };

  const build = box => {
    const verdict = el("div", "verdict"), columns = el("div", "columns"), fields = el("div"), next = el("div");
    verdict.append(el("b"), el("span", "mono"), el("small"));
    fields.append(el("h3", "label", "Peek"), el("dl"));
    next.append(el("h3", "label", "What the next requests are granted, if no other comes before"), el("ul", "steps"));
    if (data.report.reset) next.append(...resetting());
    columns.append(fields, next);
    box.replaceChildren(verdict, el("p", "error"), columns);
  };

  const drawFields = (dl, d) => {
    const fields = [
      ["Allowed", String(d.allowed)],
      ["Limit", num(d.limit)],
      ["Remaining", num(d.remaining)],
      ["RetryAfter", exact(d.retryAfter)],
      ["ResetAfter", exact(d.resetAfter)],
      ["Delay", exact(d.delay)],
      ["Part", d.partLimit ? d.partLimit + " (" + d.part + ")" : String(d.part)],
      ["Degraded", d.standIn ? "true: another limit decided in its place" : d.degraded ? "true: the failure policy decided" : "false"],
    ].flat();
    let tag = "dd";
    rows(dl, fields.length, () => el(tag = tag === "dd" ? "dt" : "dd")).forEach((e, i) => say(e, fields[i]));
  };

  const drawNext = (ul, { decision, next }) => {
    const verb = n => num(n) + (n === 1 || n >= Number.MAX_SAFE_INTEGER ? " is" : " are");
    const texts = next.map(({ granted, exactly, in: wait }, i) => {
      const text = granted === 0 ? "none is granted" + (decision.retryAfter === null ? ", and none ever will be" : "")
        : i > 0 && exactly ? "it is like an unused key: " + num(granted) + " at once"
        : verb(granted) + " granted" + (exactly ? ", one more is denied" : "");
      return [wait === 0 ? "now" : "in " + span(wait), ": " + text];
    });
    pairs(ul, texts).forEach((li, i) => li.classList.toggle("no", next[i].granted === 0));
  };

  // resetting makes the buttons that reset the key, and the line that shows the result. To reset a
  // key takes two clicks.
  const resetting = () => {
    const place = el("div", "controls"), done = el("p", "error");
    done.setAttribute("role", "status");
    const arm = on => {
      first.hidden = on;
      sure.hidden = no.hidden = !on;
      (on ? sure : first).focus();
    };
    const first = button("", "Reset this key", () => arm(true));
    const sure = button("danger", "Give it its whole limit again", async () => {
      arm(false);
      const asked = query;
      let answer, said = "The key was reset.";
      try {
        answer = await data.ask({ action: "reset", ...asked });
      } catch (e) {
        said = "The key may not have been reset: " + e.message;
      }
      if (query !== asked) return;
      if (answer) draw(answer);
      say(done, said);
    });
    const no = button("", "Cancel", () => arm(false));
    sure.hidden = no.hidden = true;
    place.append(first, sure, no);
    return [place, done];
  };

  // drawForm offers the limiters whose keys can be looked up: those that were added to the page.
  const drawForm = () => {
    const names = data.report.limiters.filter(l => l.added).map(l => l.name), select = $("limiter"), chosen = select.selectedOptions[0]?.value;
    $("look").hidden = names.length === 0;
    $("hashed").hidden = !data.report.hashed;
    rows(select, names.length, () => el("option")).forEach((o, i) => {
      say(o, named(names[i]));
      if (o.value !== names[i]) o.value = names[i];
    });
    if (select.value !== chosen && names.includes(chosen)) select.value = chosen;
  };

  $("form").addEventListener("submit", e => {
    e.preventDefault();
    start({ limiter: $("limiter").value, key: $("key").value });
  });

  return { show, refresh, drawForm };
})();
