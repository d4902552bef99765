// Draws the charts of a report as SVG, from the data in the page, and follows a run that goes on.
"use strict";
(() => {
  let data = JSON.parse(document.getElementById("data").textContent);
  const color = (i) => `var(--c${(i % 6) + 1})`;
  const short = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
  const range = (n) => Array.from({ length: n }, (_, i) => i);
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
  const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
  const whole = (n) => Math.round(n).toLocaleString("en");
  const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
  const plain = (n) => `${+n.toPrecision(6)}`;
  const rows = (n) => {
    if (n < 1e4) return n < 10 ? plain(+n.toPrecision(2)) : whole(n);
    const i = Math.floor(Math.log10(n) / 3);
    return `${+(n / 1000 ** i).toPrecision(3)} ${["", "k", "M", "G", "T"][i]}`;
  };
  const bytes = (n) => {
    const i = n > 0 ? Math.min(4, Math.floor(Math.log2(n) / 10)) : 0;
    return `${+(n / 1024 ** i).toPrecision(3)} ${["B", "KiB", "MiB", "GiB", "TiB"][i]}`;
  };
  const time = (s) => {
    if (s < 59.995) return `${+s.toFixed(s < 1 ? 3 : 2)} s`;
    const two = (n) => String(n).padStart(2, "0");
    const [hours, minutes] = [Math.floor(Math.round(s) / 3600), Math.floor(Math.round(s) / 60)];
    return `${hours ? `${hours}:${two(minutes % 60)}` : minutes}:${two(Math.round(s) % 60)}`;
  };

  // ---------------------------------------------------------------- scales, axes, marks

  const make = (name, given, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(given).forEach(([key, value]) => value != null && made.setAttribute(key, value));
    made.append(...children);
    return made;
  };
  const titled = (mark, words) => {
    if (words) mark.append(make("title", {}, words));
    return mark;
  };
  const TIMES = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
  const every = (low, high, step) => range(Math.floor((high - low) / step + 1e-9) + 1).map((i) => low + i * step);
  const ticks = (low, high, number) => {
    const raw = (high - low) / Math.max(1, number) || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw - 1e-12);
    return every(Math.ceil(low / step - 1e-9) * step, high, step).map((each) => +each.toPrecision(12));
  };
  const timeAxis = (end, width) => {
    const number = Math.max(2, Math.floor(width / 90));
    return { domain: [0, end], ticks: every(0, end, TIMES.find((each) => end / each <= number) ?? end / number), format: time };
  };
  const linear = ([low, high], [from, to]) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

  // A chart with axes. `x` and `y` have a domain, ticks and a format; `at` says where a value is.
  const frame = (width, { height = 220, left = 56, right = 12, top = 12, bottom = 26, x, y, xLabel, yLabel, log = false }) => {
    const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
    const spread = linear(x.domain, [left, width - right]);
    const rise = linear(log ? y.domain.map(Math.log10) : y.domain, [height - bottom, top]);
    const at = { x: spread, y: log ? (value) => rise(Math.log10(value)) : rise, left, right: width - right, top, bottom: height - bottom };
    const text = (given, words) => svg.append(make("text", { fill: "currentColor", ...given }, words));
    for (const tick of x.ticks ?? ticks(...x.domain, width / 90)) {
      text({ x: at.x(tick), y: at.bottom + 17, "text-anchor": "middle" }, (x.format ?? plain)(tick));
    }
    for (const tick of y.ticks ?? ticks(...y.domain, 4)) {
      svg.append(make("line", { x1: left, x2: at.right, y1: at.y(tick), y2: at.y(tick), stroke: "currentColor", "stroke-opacity": 0.13 }));
      if (left > 20) text({ x: left - 8, y: at.y(tick), dy: "0.32em", "text-anchor": "end" }, (y.format ?? plain)(tick));
    }
    if (xLabel) text({ x: at.right, y: height - 3, "text-anchor": "end" }, `${xLabel} →`);
    if (yLabel) text({ x: 2, y: 10 }, `↑ ${yLabel}`);
    const put = (name, given, words) => svg.append(titled(make(name, given), words));
    return {
      svg, at, text,
      rect: (x1, x2, y1, y2, given, words) => put("rect", { x: x1, y: Math.min(y1, y2), width: Math.max(0.5, x2 - x1), height: Math.max(0, Math.abs(y2 - y1)), ...given }, words),
      line: (points, given) => put("path", { d: `M${points.map((each) => each.map((v) => v.toFixed(1)).join(",")).join("L")}`, fill: "none", stroke: color(0), "stroke-width": 2, ...given }),
      rule: (x1, y1, x2, y2, given) => put("line", { x1, y1, x2, y2, stroke: "currentColor", ...given }),
      dot: (cx, cy, given, words) => put("circle", { cx, cy, r: 4, fill: color(0), ...given }, words),
    };
  };
  const legend = (names) => {
    const list = document.createElement("ul");
    list.className = "legend";
    names.forEach(([name, swatch, kind]) => {
      const [item, square] = [document.createElement("li"), document.createElement("i")];
      square.style.setProperty("--swatch", swatch);
      if (kind) square.className = kind;
      item.append(square, name);
      list.append(item);
    });
    return list;
  };
  // Bars begin at zero; where all values lie close together, dots show what differs.
  const fitted = (values) => {
    const [low, high] = values.length ? [least(values), most(values)] : [0, 1];
    if (low > 0 && high > low && high - low < 0.3 * high) return [low - 0.15 * (high - low), high + 0.1 * (high - low)];
    return [Math.min(0, low), Math.max(0, high) || (low < 0 ? 0 : 1)];
  };
  const square = (width, given) => {
    const size = Math.min(width, 420);
    return frame(size, { height: size * 0.85, bottom: 42, top: 26, x: { domain: [0, 1], ticks: ticks(0, 1, 5) }, y: { domain: [0, 1], ticks: ticks(0, 1, 5) }, ...given });
  };
  const DASHED = { stroke: "currentColor", "stroke-dasharray": "4 3", "stroke-width": 1 };

  const charts = {
    throughput: (d, width) => {
      const top = most(d.points.map((p) => p[2] + p[3]));
      const end = d.points[d.points.length - 1][1];
      const f = frame(width, { x: timeAxis(end, width), y: { domain: [0, 1.02 * top], ticks: ticks(0, top, 5), format: rows } });
      const gap = width / d.points.length > 6 ? 1 : 0;
      d.starting.forEach(([from, to]) => f.rect(f.at.x(from), f.at.x(to), f.at.y(0), f.at.y(top), { fill: "var(--idle)", "fill-opacity": 0.22 }));
      d.points.forEach(([from, to, read, again]) => {
        const words = `${time(from)} – ${time(to)}\n${rows(read)} rows/s${again > 0 ? `\n${rows(again)} rows/s read again` : ""}`;
        const [x1, x2] = [f.at.x(from), f.at.x(to) - gap];
        f.rect(x1, x2, f.at.y(0), f.at.y(read), { fill: color(0) }, words);
        if (again > 0) f.rect(x1, x2, f.at.y(read), f.at.y(read + again), { fill: color(1) }, words);
      });
      d.resumed.forEach((x) => f.rule(f.at.x(x), f.at.top, f.at.x(x), f.at.bottom, DASHED));
      f.rule(f.at.left, f.at.bottom, f.at.right, f.at.bottom);
      const shown = [["rows per second", color(0)]];
      if (d.points.some((p) => p[3] > 0)) shown.push(["read again", color(1)]);
      if (d.starting.length) shown.push(["workers start", "color-mix(in srgb, var(--idle) 22%, var(--card))"]);
      return [...(shown.length > 1 ? [legend(shown)] : []), f.svg];
    },

    timeline: (d, width) => {
      const row = new Map(d.workers.map(([stage, name], i) => [`${stage}/${name}`, i]));
      const band = row.size <= 12 ? 20 : row.size <= 40 ? 13 : 6;
      const labels = band > 8;
      const f = frame(width, { height: 28 + band * row.size, top: 2, left: labels ? 44 : 8, x: timeAxis(d.seconds, width), y: { domain: [row.size, 0], ticks: [] } });
      const bar = ([stage, name, from, to], thick, given, words) => {
        const y = f.at.top + band * (row.get(`${stage}/${name}`) + 0.5);
        f.rect(f.at.x(from), f.at.x(to), y - thick / 2, y + thick / 2, given, words);
        return y;
      };
      d.workers.forEach((each) => {
        const y = bar(each, 2, { fill: "var(--idle)" });
        if (labels) f.text({ x: f.at.left - 8, y, dy: "0.32em", "text-anchor": "end" }, each[1]);
      });
      d.starting.forEach((each) => bar(each, band / 3, { fill: "var(--start)" }));
      d.stretches.forEach((each) => {
        const [stage, name, from, to, busy, outcome] = each;
        const words = `worker ${name}, stage ${stage + 1}\n${time(from)} – ${time(to)}\n${percent(busy)} busy`;
        const y = bar(each, band * (labels ? 0.8 : 0.9), { fill: color(stage), "fill-opacity": 0.4 + 0.6 * busy }, words);
        if (outcome !== "done") f.text({ x: f.at.x(to), y, dy: "0.35em", "text-anchor": "middle", fill: "var(--bad)", "font-size": 15, "font-weight": 700 }, "×");
      });
      const shown = d.stages.length > 1 ? d.stages.map((name, i) => [short(`${i + 1}. ${name}`, 60), color(i)]) : [["at work", color(0)]];
      if (d.starting.length) shown.push(["starting", "var(--start)"]);
      shown.push(["idle", "var(--idle)", "thin"]);
      if (d.stretches.some((each) => each[5] !== "done")) shown.push(["× lost or failed", "var(--bad)"]);
      return [legend(shown), f.svg];
    },

    memory: (d, width) => {
      const series = range(d.names.length).filter((i) => d.points.some((p) => p[i + 1] > 0));
      const taken = most(d.points.map((p) => sum(p.slice(1))));
      const near = d.limit > 0 && d.limit < 3 * taken;
      const top = 1.05 * (near ? Math.max(d.limit, taken) : taken);
      const f = frame(width, { left: 64, x: timeAxis(most(d.points.map((p) => p[0])), width), y: { domain: [0, top], ticks: every(0, top, 2 ** Math.ceil(Math.log2(Math.max(1, top) / 5))), format: bytes } });
      let below = d.points.map(() => 0);
      series.forEach((i, shown) => {
        const above = d.points.map((p, at) => below[at] + p[i + 1]);
        const edge = (values) => d.points.map((p, at) => [f.at.x(p[0]), f.at.y(values[at])]);
        f.line([...edge(above), ...edge(below).reverse()], { fill: color(shown), "fill-opacity": 0.75, stroke: "none" });
        below = above;
      });
      if (near) f.rule(f.at.left, f.at.y(d.limit), f.at.right, f.at.y(d.limit), { ...DASHED, stroke: "var(--bad)" });
      f.rule(f.at.left, f.at.bottom, f.at.right, f.at.bottom);
      d.points.forEach((p, at) => {
        const words = [time(p[0]), ...series.map((i) => `${short(d.names[i], 30)}: ${bytes(p[i + 1])}`)].join("\n");
        f.rect(f.at.x(p[0]) - 3, f.at.x((d.points[at + 1] ?? p)[0]) + 3, f.at.top, f.at.bottom, { "fill-opacity": 0 }, words);
      });
      const shown = series.map((i, at) => [short(d.names[i], 60), color(at)]);
      return [legend(near ? [...shown, ["memory_limit", "var(--bad)"]] : shown), f.svg];
    },

    batches: (d, width) => {
      const steps = [...new Set(d.points.map((p) => p[1]))];
      const [low, high] = [least(d.points.map((p) => p[3])), most(d.points.map((p) => p[3]))].map((n) => Math.log10(Math.max(1, n)));
      const domain = [10 ** Math.floor(low), 10 ** Math.max(Math.ceil(high), Math.floor(low) + 1)];
      const f = frame(width, { log: true, x: timeAxis(d.seconds, width), y: { domain, ticks: every(Math.floor(low), Math.log10(domain[1]), 1).map((i) => 10 ** i), format: rows } });
      d.points.forEach(([now, step, what, size]) => {
        const [x, y, stroke] = [f.at.x(now), f.at.y(Math.max(1, size)), color(steps.indexOf(step))];
        const words = `${short(step, 40)}\n${rows(size)} rows, ${what}`;
        f.dot(x, y, { r: 5, fill: "var(--card)", stroke: what === "found best" ? stroke : "none", "stroke-width": 2 }, words);
        if (what !== "found best") f.text({ x, y, dy: "0.35em", "text-anchor": "middle", fill: stroke, "font-size": 17, "font-weight": 700 }, "×");
      });
      return [legend(steps.map((step, i) => [short(step, 60), color(i)])), f.svg];
    },

    runs: (d, width) => {
      const times = d.points.map((p) => p[0]);
      const [from, to] = [least(times), most(times)];
      const day = (at) => new Date(1000 * at).toISOString().slice(...(to - from > 2 * 86400 ? [0, 10] : [11, to - from < 600 && to > from ? 19 : 16]));
      const wide = to > from ? [from, to] : [from - 3600, to + 3600];
      const values = d.points.map((p) => p[1]);
      const f = frame(width, { height: 180, right: 36, x: { domain: wide, ticks: range(Math.max(2, Math.floor(width / 140))).map((i, _, all) => wide[0] + ((wide[1] - wide[0]) * i) / (all.length - 1)), format: day }, y: { domain: fitted(values) } });
      const published = d.points.filter((p) => p[2]);
      if (d.joined && published.length > 1) f.line([...published].sort((a, b) => a[0] - b[0]).map((p) => [f.at.x(p[0]), f.at.y(p[1])]));
      d.points.forEach(([at, value, shown, name]) => f.dot(f.at.x(at), f.at.y(value), { fill: shown ? color(0) : "var(--card)", stroke: shown ? color(0) : "var(--bad)", "stroke-width": 2 }, `${short(name, 40)}\n${plain(value)}${shown ? "" : ", not published"}`));
      return [...(published.length < d.points.length ? [legend([["published", color(0)], ["not published", "var(--bad)"]])] : []), f.svg];
    },

    roc: (d, width) => curve(d, width, "false positive rate", "true positive rate", [[0, 0], [1, 1]]),
    "precision-recall": (d, width) => curve(d, width, "recall", "precision", [[0, d.base], [1, d.base]]),

    calibration: (d, width) => {
      const f = square(width, { xLabel: "mean probability", yLabel: "share of positives" });
      const bins = d.bins.filter((bin) => bin.score !== null && bin.positives !== null);
      const at = (bin) => [f.at.x(bin.score), f.at.y(bin.positives)];
      f.line([[f.at.x(0), f.at.y(0)], [f.at.x(1), f.at.y(1)]], DASHED);
      if (bins.length) f.line(bins.map(at));
      const biggest = most(bins.map((bin) => bin.rows));
      bins.forEach((bin) => f.dot(...at(bin), { r: 2 + 7 * Math.sqrt(bin.rows / biggest), "fill-opacity": 0.6 }, `${rows(bin.rows)} rows from ${bin.low} to ${bin.high}\nsaid ${bin.score.toFixed(3)}, came true ${bin.positives.toFixed(3)}`));
      return [f.svg];
    },

    confusion: (d, width) => {
      const n = d.labels.length;
      const [down, across] = d.axes ?? ["label", "prediction"];
      const size = Math.min(width, 120 + 56 * n);
      const cell = Math.max(1, (size - 96) / n);
      const tall = Math.max(26, Math.min(cell, 44));
      const f = frame(size, { height: 72 + tall * n, left: 84, top: 64, bottom: 8, x: { domain: [0, n], ticks: [] }, y: { domain: [n, 0], ticks: [] } });
      f.text({ x: size - 12, y: 12, "text-anchor": "end" }, `${across} →`);
      f.text({ x: 2, y: 58 }, `↓ ${down}`);
      d.labels.forEach((label, i) => {
        f.text({ x: 78, y: f.at.y(i + 0.5), dy: "0.32em", "text-anchor": "end" }, short(label, 12));
        const x = f.at.x(i + 0.5);
        f.text(cell < 60 ? { transform: `translate(${x},58) rotate(-35)` } : { x, y: 58, "text-anchor": "middle" }, short(label, cell < 60 ? 7 : 12));
        d.labels.forEach((prediction, j) => {
          const [number, share] = [d.matrix[i][j], d.matrix[i][j] / Math.max(1e-12, sum(d.matrix[i]))];
          const words = `${down} ${label}, ${across} ${prediction}\n${whole(number)}, ${percent(share, 1)} of the ${down}`;
          f.rect(f.at.x(j) + 1, f.at.x(j + 1) - 1, f.at.y(i) + 1, f.at.y(i + 1) - 1, { fill: color(i === j ? 0 : 1), "fill-opacity": 0.06 + 0.74 * share }, words);
          if (cell > 36) f.text({ x: f.at.x(j + 0.5), y: f.at.y(i + 0.5), dy: "0.32em", "text-anchor": "middle", fill: "var(--ink)", "pointer-events": "none" }, rows(number));
        });
      });
      return [f.svg];
    },

    histogram: (d, width) => {
      const top = Math.max(1e-12, most([...d.counts, ...(d.other ?? [])]));
      const f = frame(width, { height: 200, bottom: 40, top: 26, xLabel: "value", yLabel: "rows", x: { domain: [d.edges[0], d.edges[d.edges.length - 1]] }, y: { domain: [0, top], format: rows } });
      const gap = width / d.counts.length > 6 ? 0.5 : 0;
      d.counts.forEach((number, i) => {
        const [x1, x2] = [f.at.x(d.edges[i]) + gap, f.at.x(d.edges[i + 1]) - gap];
        const words = `${plain(d.edges[i])} to ${plain(d.edges[i + 1])}\n${whole(number)}${d.other ? ` old, ${whole(d.other[i])} new` : ""}`;
        f.rect(x1, x2, f.at.y(0), f.at.y(number), { fill: color(0) }, words);
        if (d.other) f.rect(x1, x2, f.at.y(0), f.at.y(d.other[i]), { fill: "none", stroke: color(1), "stroke-width": 2 });
      });
      f.rule(f.at.left, f.at.bottom, f.at.right, f.at.bottom);
      return [...(d.other ? [legend([["old", color(0)], ["new", color(1)]])] : []), f.svg];
    },

    bars: (d, width) => {
      const bars = d.labels.map((label, i) => ({ label: short(label, 18), value: d.values[i] })).filter((bar) => bar.value !== null);
      const domain = fitted(bars.map((bar) => bar.value));
      const begins = domain[0] === 0 || bars.some((bar) => bar.value <= 0);
      const f = frame(width, { height: 30 + 26 * bars.length, top: 4, left: Math.min(150, 16 + 7 * most([1, ...bars.map((bar) => bar.label.length)])), right: 60, x: { domain, ticks: ticks(...domain, Math.max(2, width / 130)) }, y: { domain: [bars.length, 0], ticks: [] } });
      bars.forEach(({ label, value }, i) => {
        const y = f.at.y(i + 0.5);
        const [from, to] = [f.at.x(begins ? 0 : domain[0]), f.at.x(value)];
        f.text({ x: f.at.left - 8, y, dy: "0.32em", "text-anchor": "end" }, label);
        if (begins) f.rect(Math.min(from, to), Math.max(from, to), y - 9, y + 9, { fill: color(0) });
        else f.rule(from, y, to, y, { stroke: "var(--line)" }), f.dot(to, y, { r: 5 });
        f.text({ x: Math.max(from, to) + 9, y, dy: "0.32em", fill: "var(--ink)" }, `${+value.toPrecision(3)}`);
      });
      if (begins) f.rule(f.at.x(0), f.at.top, f.at.x(0), f.at.bottom);
      return [f.svg];
    },

    groups: (d, width) => {
      const many = document.createElement("div");
      many.className = "many";
      const columns = Math.max(1, Math.floor((width + 16) / 240));
      d.groups.forEach((group) => {
        const [box, title] = [document.createElement("div"), document.createElement("p")];
        title.textContent = group.label;
        box.append(title, ...(charts[group.chart.kind]?.(group.chart, (width - 16 * (columns - 1)) / columns) ?? []));
        many.append(box);
      });
      return [many];
    },
  };

  const curve = (d, width, xLabel, yLabel, base) => {
    const f = square(width, { xLabel, yLabel });
    const at = ([x, y]) => [f.at.x(x), f.at.y(y)];
    f.line(base.map(at), DASHED);
    f.line(d.x.map((x, i) => at([x, d.y[i]])), { "stroke-width": 2.5 });
    d.x.forEach((x, i) => f.dot(...at([x, d.y[i]]), { r: 6, "fill-opacity": 0 }, `${xLabel} ${x.toFixed(3)}\n${yLabel} ${d.y[i].toFixed(3)}`));
    return [f.svg];
  };

  const offerCopies = () => document.querySelectorAll("button[data-copy]").forEach((button) => {
    button.hidden = !navigator.clipboard; // a page from disk may have none: then there is no button
  });
  addEventListener("click", ({ target }) => {
    const button = target.closest("button[data-copy]");
    if (!button) return;
    navigator.clipboard.writeText(button.dataset.copy).then(() => {
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    }, () => (button.textContent = "Cannot copy"));
  });

  const draw = (place) => {
    const figure = data[place.dataset.chart];
    const width = Math.floor(place.parentElement.clientWidth - parseFloat(getComputedStyle(place.parentElement).paddingLeft) * 2);
    if (!figure || !charts[figure.kind] || width < 50 || place.dataset.width === String(width)) return;
    place.dataset.width = String(width);
    try {
      place.replaceChildren(...charts[figure.kind](figure, width));
    } catch (error) { // its numbers are in the table below
      place.replaceChildren("This cannot be drawn.");
      console.error(error);
    }
    place.querySelectorAll("svg").forEach((svg) => svg.setAttribute("aria-hidden", "true")); // the place has a name
  };
  const drawAll = () => {
    offerCopies();
    document.querySelectorAll("[data-chart]").forEach(draw);
  };
  drawAll();
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });

  // ---------------------------------------------------------------- while the run goes on

  // Makes what is there like what came, and leaves alone what is the same, what was opened, and what is typed into.
  const merge = (here, fresh) => {
    if (here.nodeName !== fresh.nodeName || here.id !== fresh.id || here.nodeType !== 1) {
      if (!here.isEqualNode(fresh)) here.replaceWith(fresh);
      return;
    }
    for (const { name, value } of [...fresh.attributes]) if (here.getAttribute(name) !== value && name !== "hidden") here.setAttribute(name, value);
    for (const { name } of [...here.attributes]) if (!fresh.hasAttribute(name) && !["open", "data-width", "hidden"].includes(name)) here.removeAttribute(name);
    if (here.dataset.chart || (here === document.activeElement && here.matches("input, select"))) return;
    const news = [...fresh.childNodes];
    [...here.childNodes].slice(news.length).forEach((node) => node.remove());
    news.forEach((node, i) => (here.childNodes[i] ? merge(here.childNodes[i], node) : here.append(node)));
  };
  const main = document.getElementById("main");
  const show = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const figures = JSON.parse(fresh.getElementById("data").textContent);
    document.querySelectorAll("[data-chart]").forEach((place) => {
      const name = place.dataset.chart;
      if (JSON.stringify(figures[name]) !== JSON.stringify(data[name])) delete place.dataset.width;
    });
    data = figures;
    document.title = fresh.title;
    merge(main, fresh.getElementById("main"));
    merge(document.querySelector("footer"), fresh.querySelector("footer"));
    drawAll();
  };
  const lost = document.getElementById("lost");
  const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
  const follow = async () => {
    while (main.dataset.live === "under way") {
      if (document.hidden) {
        await pause(1);
        continue;
      }
      try {
        const answer = await fetch("?next", { cache: "no-store" });
        if (!answer.ok) throw new Error(String(answer.status));
        show(await answer.text());
        lost.hidden = true;
      } catch {
        lost.hidden = false;
        await pause(2);
      }
    }
  };
  const ask = async (change) => {
    const told = document.querySelector(".told");
    try {
      const answer = await fetch("ask", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(change) });
      told.textContent = answer.ok ? "Asked. The run has not heard it yet." : (await answer.text()) || "That cannot be asked for.";
    } catch {
      told.textContent = "The run does not answer.";
    }
  };
  addEventListener("click", ({ target }) => {
    const button = target.closest("[data-ask]");
    if (button) ask(JSON.parse(button.dataset.ask));
  });
  addEventListener("submit", (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    ask({ workers: Number(given.get("workers")) || null, on_error: given.get("on_error"), max_errors: Number(given.get("max_errors")) || null });
  });
  if (main.dataset.live) follow();
})();
