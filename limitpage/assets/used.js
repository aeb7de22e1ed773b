// The table of the keys that have used most.
const used = (() => {
  const { $, say } = dom, { ago, when } = words;

  const sayCells = ([since, at], key) => {
    const { now } = data.report;
    say(since.firstChild, when(key.since, now));
    say(at.firstChild, ago(now - key.at));
  };

  const draw = keytable({
    table: $("used"), box: $("usedkeys"), none: $("nousedkeys"), more: $("moreusedkeys"), first: 6,
    keys: l => l.used, count: key => key.used, label: "used lately", about: limiter => limiter.limit, cells: ["since", "last"], say: sayCells,
    nothing: ["No key has used anything lately.", "No key that fits has used anything lately."],
  });

  return { draw };
})();
