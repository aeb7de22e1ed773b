// The table of the keys that were denied most.
const denied = (() => {
  const { $, say } = dom, { num, ago, ahead, when } = words;

  // about says which limit denied the key, and for how many events the request was, if not for one.
  const about = (limiter, key) => [key.partLimit || limiter.limit + (key.part > 0 ? ", part " + key.part : ""),
    key.n === 1 ? "" : "asked for " + num(key.n)].filter(Boolean).join("; ");

  const sayCells = ([since, at, again], key) => {
    const { now } = data.report;
    say(since.firstChild, when(key.since, now));
    say(at.firstChild, ago(now - key.at));
    // A key that does not wait for its turn is denied again: the time of its turn would mislead.
    const later = key.never || key.back > now + 1000, asking = !later && key.denied > 1.5 && now - key.at < 10000;
    say(again.firstChild, key.never ? "never" : asking ? "keeps asking" : key.back === null ? "–" : ahead(key.back - now));
    again.classList.toggle("soon", later || asking);
  };

  const draw = keytable({
    table: $("top"), box: $("keys"), none: $("nokeys"), more: $("morekeys"), first: 12,
    keys: l => l.top, count: key => key.denied, label: "denied lately", about, cells: ["since", "last", "back"], say: sayCells,
    nothing: ["No key was denied lately.", "No key that fits was denied lately."],
  });

  return { draw };
})();
