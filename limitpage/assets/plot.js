// A plot on a canvas: the decisions of each second as stacked bars.
const plot = (() => {
  const { css } = dom, { clock, compact } = words;
  const left = 46, right = 10, top = 8, bottom = 20; // margins
  const stack = [["granted", "--granted-fill"], ["denied", "--denied-fill"], ["degraded", "--degraded-fill"]];

  const niceStep = (max, count) => {
    for (let p = 1; ; p *= 10) for (const m of [1, 2, 5]) if (max / (p * m) <= count) return p * m;
  };

  // timeAt returns the second at the horizontal position, or null. The plot shows n seconds
  // before end.
  const timeAt = (canvas, position, end, n) => {
    const share = (position - left) / (canvas.clientWidth - left - right);
    return share >= 0 && share < 1 ? Math.floor(end - n + share * n) : null;
  };

  // draw draws the last n seconds before end of the series s. If at is not null, draw also draws a line
  // at second at.
  const draw = (canvas, s, end, n, at) => {
    const scale = devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, height);
    g.font = "11px system-ui, sans-serif";

    const bars = stack.map(([kind, color]) => ({ counts: s[kind].slice(-n), color: css(color) }));
    const seconds = bars[0].counts.map((_, i) => bars.reduce((all, b) => all + b.counts[i], 0));
    const step = niceStep(Math.max(1, ...seconds), 4);
    const most = step * Math.ceil(Math.max(1, ...seconds) / step); // the axis ends with a line of the grid
    const plotWidth = width - left - right, plotHeight = height - top - bottom, first = end - n;
    const x = t => left + (t - first) / n * plotWidth;
    const y = v => top + plotHeight * (1 - v / most);

    // The grid has whole numbers, and whole times of the clock.
    g.fillStyle = css("--muted");
    g.strokeStyle = css("--line");
    g.lineWidth = 1;
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (let v = 0; v <= most; v += step) {
      const at = Math.round(y(v)) + .5;
      g.beginPath(); g.moveTo(left, at); g.lineTo(width - right, at); g.stroke();
      g.fillText(compact(v), left - 7, at);
    }
    g.textAlign = "center";
    g.textBaseline = "alphabetic";
    const exact = n <= 120, room = plotWidth / (exact ? 80 : 56);
    const every = (exact ? [10, 20, 30, 60] : [60, 120]).find(s => n / s <= room) || 300;
    for (let t = Math.ceil(first / every) * every; t <= end; t += every) {
      const at = x(t), half = exact ? 23 : 15;
      if (at - half < left - 10 || at + half > width) continue;
      g.fillText(clock(t, exact), at, height - 4);
      g.beginPath(); g.moveTo(Math.round(at) + .5, top + plotHeight); g.lineTo(Math.round(at) + .5, top + plotHeight + 4); g.stroke();
    }

    // Bars begin and end at whole device pixels, so that neighbours neither overlap nor leave gaps.
    const snap = v => Math.round(v * scale) / scale;
    const begin = end - seconds.length, base = seconds.map(() => 0);
    for (const { counts, color } of bars) {
      g.fillStyle = color;
      counts.forEach((count, i) => {
        if (count === 0) return;
        const x0 = snap(x(begin + i)), x1 = Math.max(snap(x(begin + i + 1)), x0 + 1 / scale);
        const y0 = snap(y(base[i] + count)), y1 = snap(y(base[i]));
        g.fillRect(x0, Math.min(y0, y1 - 1 / scale), x1 - x0, Math.max(y1 - y0, 1 / scale));
        base[i] += count;
      });
    }
    if (at !== null) {
      const line = Math.round(x(at + .5)) + .5;
      g.strokeStyle = css("--ink");
      g.setLineDash([3, 3]);
      g.beginPath(); g.moveTo(line, top); g.lineTo(line, top + plotHeight); g.stroke();
      g.setLineDash([]);
    }
  };

  return { draw, timeAt };
})();
