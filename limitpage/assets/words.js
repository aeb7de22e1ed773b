// Numbers, times and names as text.
const words = (() => {
  const num = n => n >= Number.MAX_SAFE_INTEGER ? "any number" : n.toLocaleString("en-US"); // an Unlimited has such numbers
  const plural = (n, noun) => num(n) + " " + noun + (n === 1 ? "" : "s");
  const rate = n => n >= 100 || n === 0 ? num(Math.round(n)) : n >= 0.1 ? n.toFixed(1) : "<0.1";
  // compact formats n with three digits and a unit if n is at least from: 12.3k, or 64T.
  const units = [["E", 1e18], ["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]];
  const compact = (n, from = 1e4) => {
    if (n < from) return num(n);
    const [unit, size] = units.find(([, size]) => n >= size);
    return num(+(n / size).toPrecision(3)) + unit;
  };

  const percent = (part, whole) => {
    const p = 100 * part / Math.max(whole, 1);
    if (part > 0 && p < 0.1) return "<0.1\u00a0%";
    if (part < whole && p > 99.9) return ">99.9\u00a0%";
    return p.toFixed(1) + "\u00a0%";
  };

  const bytes = n => {
    for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
      if (n >= size) return (n / size).toFixed(n < 10 * size ? 1 : 0) + "\u00a0" + unit;
    return num(n) + "\u00a0bytes";
  };

  // span formats seconds with about three digits.
  const span = s => {
    if (s === null) return "never";
    if (s === 0) return "0 s";
    if (s < 1e-6) return Math.ceil(s * 1e9) + " ns";
    if (s < 1e-3) return +(s * 1e6).toPrecision(3) + " µs";
    if (s < 1) return +(s * 1e3).toPrecision(3) + " ms";
    if (s < 60) return +s.toFixed(1) + " s";
    for (const [unit, size, less, lesser] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]])
      if (s >= size) {
        const part = Math.floor(s % size / lesser);
        return num(Math.floor(s / size)) + " " + unit + (part ? " " + part + " " + less : "");
      }
  };

  // exact formats a duration to the nanosecond, as the server has sent it.
  const exact = s => s === null ? "never" : s === 0 ? "0" : s < 1e-3 ? +(s * 1e6).toFixed(3) + " µs" : s < 60 ? s + " s" : s + " s (" + span(s) + ")";

  // ago and ahead say how far a moment is from now, in milliseconds. They leave out fractions of
  // seconds, which pass before anybody reads them.
  const ago = ms => ms < 1500 ? "now" : span(ms < 60000 ? Math.round(ms / 1000) : 60 * Math.floor(ms / 60000)) + " ago";
  const ahead = ms => ms <= 0 ? "now" : ms < 1000 ? "in <1 s" : "in " + span(Math.ceil(ms / 1000));

  const pad = n => String(n).padStart(2, "0");
  // clock formats the time of day at t, in seconds since the Unix epoch.
  const clock = (t, exact) => {
    const d = new Date(t * 1000);
    return pad(d.getHours()) + ":" + pad(d.getMinutes()) + (exact ? ":" + pad(d.getSeconds()) : "");
  };

  // zone names the time zone of the browser, at a moment in milliseconds. All times of the page are in it.
  const zone = ms => {
    const ahead = -new Date(ms).getTimezoneOffset(), abs = Math.abs(ahead);
    return "UTC" + (ahead ? (ahead < 0 ? "-" : "+") + Math.floor(abs / 60) + (abs % 60 ? ":" + pad(abs % 60) : "") : "");
  };
  // date formats a moment, in milliseconds, with the time zone.
  const day = d => d.getFullYear() + "-" + pad(d.getMonth() + 1) + "-" + pad(d.getDate());
  const date = ms => day(new Date(ms)) + " " + clock(ms / 1000, true) + " " + zone(ms);
  // when formats a moment, in milliseconds. It leaves out the day if it is that of now.
  const when = (ms, now) => (day(new Date(ms)) === day(new Date(now)) ? "" : day(new Date(ms)) + " ") + clock(ms / 1000, true);

  // named returns the name of a limiter for display. Characters that cannot be seen, or that change
  // the direction of the text around them, are written as numbers.
  const named = name => name === "" ? "(no name)"
    : name.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, c => "\\u{" + c.codePointAt(0).toString(16) + "}");
  // keyed returns a key for display. The server has quoted keys that are not printable.
  const keyed = key => key === "" ? "(empty)" : key;

  return { num, plural, rate, compact, percent, bytes, span, exact, ago, ahead, clock, zone, date, when, named, keyed };
})();
