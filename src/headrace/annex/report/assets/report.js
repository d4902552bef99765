// Draws the charts of a report with Observable Plot, from the data in the page. Asks nobody for anything.
"use strict";
(() => {
  let data = JSON.parse(document.getElementById("data").textContent);
  const color = (i) => `var(--c${(i % 6) + 1})`;
  const short = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

  const time = (s) => {
    if (s < 59.995) return `${+s.toFixed(s < 1 ? 3 : 2)} s`;
    const whole = Math.round(s);
    const two = (n) => String(n).padStart(2, "0");
    const hours = Math.floor(whole / 3600);
    const rest = `${hours ? two(Math.floor(whole / 60) % 60) : Math.floor(whole / 60)}:${two(whole % 60)}`;
    return hours ? `${hours}:${rest}` : rest;
  };
  const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
  const timeAxis = (whole, width) => {
    const most = Math.max(2, Math.floor(width / 90));
    const step = STEPS.find((each) => whole / each <= most) ?? whole / most;
    return { domain: [0, whole], ticks: d3.range(0, whole + step / 1e3, step), tickFormat: time, label: null };
  };
  const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
  const rows = (n) => (n >= 1e4 ? d3.format("~s")(Number(n.toPrecision(3))).replace("G", " G").replace("M", " M").replace("k", " k") : d3.format(",")(Math.round(n)));
  const bytes = (n) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    const i = n > 0 ? Math.min(4, Math.floor(Math.log2(n) / 10)) : 0;
    return `${+(n / 1024 ** i).toPrecision(3)} ${units[i]}`;
  };
  const binary = (most) => {
    const step = 2 ** Math.ceil(Math.log2(Math.max(1, most) / 5));
    return d3.range(0, most + step, step);
  };
  const legend = (names) => {
    const list = document.createElement("ul");
    list.className = "legend";
    names.forEach(([name, swatch, kind]) => {
      const item = document.createElement("li");
      const square = document.createElement("i");
      square.style.setProperty("--swatch", swatch);
      if (kind) square.className = kind;
      item.append(square, name);
      list.append(item);
    });
    return list;
  };
  const plot = (width, options) => Plot.plot({ width, marginLeft: 56, marginRight: 12, ...options });

  const charts = {
    throughput: (d, width) => {
      const whole = d.points[d.points.length - 1][1];
      const top = d3.max(d.points, (p) => p[2] + p[3]);
      const gap = width / d.points.length > 6 ? 1 : 0;
      const shown = [["rows per second", color(0)]];
      if (d.points.some((p) => p[3] > 0)) shown.push(["read again", color(1)]);
      if (d.starting.length) shown.push(["workers start", "color-mix(in srgb, var(--idle) 22%, var(--card))"]);
      return [...(shown.length > 1 ? [legend(shown)] : []), plot(width, {
        height: 220,
        x: timeAxis(whole, width),
        y: { grid: true, label: null, tickFormat: rows, ticks: 5 },
        marks: [
          Plot.rect(d.starting, { x1: "0", x2: "1", y1: 0, y2: top, fill: "var(--idle)", fillOpacity: 0.22 }),
          Plot.rect(d.points, { x1: "0", x2: "1", y1: 0, y2: "2", fill: color(0), insetRight: gap }),
          Plot.rect(d.points.filter((p) => p[3] > 0), { x1: "0", x2: "1", y1: "2", y2: (p) => p[2] + p[3], fill: color(1), insetRight: gap }),
          Plot.ruleX(d.resumed, { stroke: "currentColor", strokeDasharray: "4 3" }),
          Plot.ruleY([0], { stroke: "currentColor" }),
          Plot.tip(d.points, Plot.pointerX({ x: (p) => (p[0] + p[1]) / 2, y: (p) => p[2] + p[3], title: (p) => `${time(p[0])} – ${time(p[1])}\n${rows(p[2])} rows/s${p[3] > 0 ? `\n${rows(p[3])} rows/s read again` : ""}` })),
        ],
      })];
    },

    timeline: (d, width) => {
      const key = (stage, name) => `${stage + 1}/${name}`;
      const keys = d.workers.map(([stage, name]) => key(stage, name));
      const band = keys.length <= 12 ? 20 : keys.length <= 40 ? 13 : 6;
      const labels = band > 8;
      const thin = band * (labels ? 0.8 : 0.9) / 2 - 1;
      const several = d.stages.length > 1;
      const shown = several ? d.stages.map((name, i) => [short(`${i + 1}. ${name}`, 60), color(i)]) : [["at work", color(0)]];
      if (d.starting.length) shown.push(["starting", "var(--start)"]);
      shown.push(["idle", "var(--idle)", "thin"]);
      const lost = d.stretches.filter((s) => s[5] !== "done");
      if (lost.length) shown.push(["× lost or failed", "var(--bad)"]);
      return [
        legend(shown),
        plot(width, {
          height: 30 + band * keys.length, marginTop: 2, marginLeft: labels ? 44 : 8,
          x: timeAxis(d.seconds, width),
          y: { domain: keys, label: null, axis: labels ? "left" : null, tickSize: 0, tickFormat: (k) => k.split("/")[1], padding: band > 8 ? 0.2 : 0.1 },
          marks: [
            Plot.barX(d.workers, { x1: "2", x2: "3", y: (s) => key(s[0], s[1]), fill: "var(--idle)", insetTop: thin, insetBottom: thin }),
            Plot.barX(d.starting, { x1: "2", x2: "3", y: (s) => key(s[0], s[1]), fill: "var(--start)", insetTop: band / 4, insetBottom: band / 4 }),
            Plot.barX(d.stretches, { x1: "2", x2: "3", y: (s) => key(s[0], s[1]), fill: (s) => color(s[0]), fillOpacity: (s) => 0.4 + 0.6 * s[4] }),
            Plot.text(lost, { x: "3", y: (s) => key(s[0], s[1]), text: () => "×", fill: "var(--bad)", fontSize: 15, fontWeight: 700 }),
            Plot.tip(d.stretches, Plot.pointer({ x: (s) => (s[2] + s[3]) / 2, y: (s) => key(s[0], s[1]), title: (s) => `worker ${s[1]}, stage ${s[0] + 1}\n${time(s[2])} – ${time(s[3])}\n${percent(s[4], 0)} busy` })),
          ],
        }),
      ];
    },

    memory: (d, width) => {
      const series = d.names.map((name, i) => [name, i]).filter(([, i]) => d.points.some((p) => p[i + 1] > 0));
      const parts = series.flatMap(([name, i]) => d.points.map((p) => ({ name, at: p[0], taken: p[i + 1] })));
      const most = d3.max(d.points, (p) => d3.sum(p.slice(1)));
      const near = d.limit > 0 && d.limit < 3 * most;
      const top = near ? Math.max(d.limit, most) : most;
      const shown = series.map(([name], i) => [short(name, 60), color(i)]);
      if (near) shown.push(["memory_limit", "var(--bad)"]);
      return [
        legend(shown),
        plot(width, {
          height: 220, marginLeft: 64,
          x: timeAxis(d3.max(d.points, (p) => p[0]), width),
          y: { domain: [0, 1.05 * top], ticks: binary(top).filter((each) => each <= 1.05 * top), tickFormat: bytes, grid: true, label: null },
          color: { domain: series.map((s) => s[0]), range: series.map((_, i) => color(i)) },
          marks: [
            Plot.areaY(parts, { x: "at", y: "taken", fill: "name", fillOpacity: 0.75, order: series.map((s) => s[0]) }),
            Plot.ruleY(near ? [d.limit] : [], { stroke: "var(--bad)", strokeDasharray: "4 3" }),
            Plot.ruleY([0], { stroke: "currentColor" }),
            Plot.tip(d.points, Plot.pointerX({ x: "0", y: (p) => d3.sum(p.slice(1)), title: (p) => [time(p[0]), ...series.map(([name, i]) => `${short(name, 30)}: ${bytes(p[i + 1])}`)].join("\n") })),
          ],
        }),
      ];
    },

    batches: (d, width) => {
      const steps = [...new Set(d.points.map((p) => p[1]))];
      return [
        legend(steps.map((step, i) => [short(step, 60), color(i)])),
        plot(width, {
          height: 220,
          x: timeAxis(d.seconds, width),
          y: { type: "log", grid: true, label: null, tickFormat: rows, ticks: 4, nice: true },
          color: { domain: steps, range: steps.map((_, i) => color(i)) },
          marks: [
            Plot.dot(d.points, { x: "0", y: "3", stroke: (p) => p[1], symbol: (p) => (p[2] === "found best" ? "circle" : "times"), r: 5, strokeWidth: 2 }),
            Plot.tip(d.points, Plot.pointer({ x: "0", y: "3", title: (p) => `${short(p[1], 40)}\n${rows(p[3])} rows, ${p[2]}` })),
          ],
          symbol: { type: "identity" },
        }),
      ];
    },

    runs: (d, width) => {
      const points = d.points.map(([at, value, published, name]) => ({ at: new Date(1000 * at), value, published, name }));
      const hidden = points.some((p) => !p.published);
      return [...(hidden ? [legend([["published", color(0)], ["not published", "var(--bad)"]])] : []), plot(width, {
        height: 180,
        x: { type: "utc", label: null, ticks: Math.max(2, Math.floor(width / 120)) },
        y: { grid: true, label: null, ticks: 4, domain: fitted(points.map((p) => p.value)) },
        marks: [
          Plot.line(d.joined ? points.filter((p) => p.published) : [], { x: "at", y: "value", stroke: color(0), strokeWidth: 2 }),
          Plot.dot(points, { x: "at", y: "value", fill: (p) => (p.published ? color(0) : "var(--card)"), stroke: (p) => (p.published ? color(0) : "var(--bad)"), strokeWidth: 2, r: 4 }),
          Plot.tip(points, Plot.pointer({ x: "at", y: "value", title: (p) => `${short(p.name, 40)}\n${+p.value.toPrecision(6)}${p.published ? "" : ", not published"}` })),
        ],
      })];
    },

    roc: (d, width) => curve(d, width, "false positive rate", "true positive rate", [[0, 0], [1, 1]]),
    "precision-recall": (d, width) => curve(d, width, "recall", "precision", [[0, d.base], [1, d.base]]),

    calibration: (d, width) => {
      const bins = d.bins.filter((bin) => bin.score !== null && bin.positives !== null);
      return [square(width, {
        x: { domain: [0, 1], grid: true, label: "mean probability" },
        y: { domain: [0, 1], grid: true, label: "share of positives" },
        r: { range: [2, 9] },
        marks: [
          Plot.line([[0, 0], [1, 1]], { stroke: "currentColor", strokeDasharray: "4 3" }),
          Plot.line(bins, { x: "score", y: "positives", stroke: color(0), strokeWidth: 2 }),
          Plot.dot(bins, { x: "score", y: "positives", r: "rows", fill: color(0), fillOpacity: 0.6 }),
          Plot.tip(bins, Plot.pointer({ x: "score", y: "positives", title: (b) => `${rows(b.rows)} rows from ${b.low} to ${b.high}\nsaid ${b.score.toFixed(3)}, came true ${b.positives.toFixed(3)}` })),
        ],
      })];
    },

    confusion: (d, width) => {
      const cells = d.labels.flatMap((label, i) => d.labels.map((prediction, j) => ({ i, j, n: d.matrix[i][j], share: d.matrix[i][j] / Math.max(1e-12, d3.sum(d.matrix[i])) })));
      const size = Math.min(width, 120 + 56 * d.labels.length);
      const cell = (size - 100) / d.labels.length;
      const name = (i) => short(d.labels[i], 12);
      return [plot(size, {
        height: 70 + Math.max(26, Math.min(cell, 44)) * d.labels.length, marginLeft: 84, marginTop: 46,
        x: { domain: d3.range(d.labels.length), tickFormat: name, label: (d.axes ?? ["", "prediction"])[1], axis: "top", tickSize: 0, tickRotate: cell < 60 ? -35 : 0 },
        y: { domain: d3.range(d.labels.length), tickFormat: name, label: (d.axes ?? ["label"])[0], tickSize: 0 },
        marks: [
          Plot.cell(cells, { x: "j", y: "i", fill: (c) => (c.i === c.j ? color(0) : color(1)), fillOpacity: (c) => 0.06 + 0.74 * c.share, inset: 1 }),
          Plot.text(cell > 36 ? cells : [], { x: "j", y: "i", text: (c) => rows(c.n), fill: "var(--ink)" }),
          Plot.tip(cells, Plot.pointer({ x: "j", y: "i", title: (c) => `${(d.axes ?? ["label"])[0]} ${d.labels[c.i]}, ${(d.axes ?? ["", "prediction"])[1]} ${d.labels[c.j]}\n${d3.format(",")(c.n)}, ${percent(c.share, 1)} of the label` })),
        ],
      })];
    },

    histogram: (d, width) => {
      const bins = d.counts.map((n, i) => [d.edges[i], d.edges[i + 1], n, d.other?.[i]]);
      return [...(d.other ? [legend([["old", color(0)], ["new", color(1)]])] : []), plot(width, {
        height: 200, marginBottom: 38, marginTop: 26,
        x: { label: "value", labelAnchor: "right" },
        y: { grid: true, label: "rows", tickFormat: rows, ticks: 4 },
        marks: [
          Plot.rectY(bins, { x1: "0", x2: "1", y: "2", fill: color(0), inset: width / bins.length > 6 ? 0.5 : 0 }),
          ...(d.other ? [Plot.rectY(bins, { x1: "0", x2: "1", y: "3", stroke: color(1), strokeWidth: 2, fill: "none" })] : []),
          Plot.ruleY([0], { stroke: "currentColor" }),
          Plot.tip(bins, Plot.pointerX({ x: (b) => (b[0] + b[1]) / 2, y: "2", title: (b) => `${+b[0].toPrecision(6)} to ${+b[1].toPrecision(6)}\n${d3.format(",")(b[2])}${d.other ? ` old, ${d3.format(",")(b[3])} new` : ""}` })),
        ],
      })];
    },

    bars: (d, width) => {
      const bars = d.labels.map((label, i) => ({ i, label, value: d.values[i] })).filter((b) => b.value !== null);
      return [plot(width, {
        height: 34 + 26 * bars.length, marginTop: 4, marginLeft: Math.min(150, 16 + 7 * Math.max(...d.labels.map((l) => short(l, 18).length))), marginRight: 60,
        x: { grid: true, label: null, ticks: Math.max(2, width / 130), domain: fitted(bars.map((b) => b.value)) },
        y: { domain: bars.map((b) => b.i), tickFormat: (i) => short(d.labels[i], 18), label: null, tickSize: 0, padding: 0.25 },
        marks: [
          ...(fitted(bars.map((b) => b.value))[0] === 0 || bars.some((b) => b.value <= 0)
            ? [Plot.barX(bars, { x: "value", y: "i", fill: color(0) }), Plot.ruleX([0], { stroke: "currentColor" })]
            : [Plot.ruleY(bars, { x1: fitted(bars.map((b) => b.value))[0], x2: "value", y: "i", stroke: "var(--line)" }), Plot.dot(bars, { x: "value", y: "i", fill: color(0), r: 5 })]),
          Plot.text(bars, { x: (b) => Math.max(fitted(bars.map((c) => c.value))[0], b.value), y: "i", text: (b) => `${+b.value.toPrecision(3)}`, textAnchor: "start", dx: 9, fill: "var(--ink)" }),
        ],
      })];
    },

    groups: (d, width) => {
      const many = document.createElement("div");
      many.className = "many";
      const columns = Math.max(1, Math.floor((width + 16) / 240));
      d.groups.forEach((group) => {
        const box = document.createElement("div");
        const title = document.createElement("p");
        title.textContent = group.label;
        box.append(title, ...(charts[group.chart.kind]?.(group.chart, (width - 16 * (columns - 1)) / columns) ?? []));
        many.append(box);
      });
      return [many];
    },
  };

  // Bars begin at zero; where all values lie close together, dots show what differs.
  const fitted = (values) => {
    const [low, high] = [d3.min(values) ?? 0, d3.max(values) ?? 1];
    if (low > 0 && high > low && high - low < 0.3 * high) return [low - 0.15 * (high - low), high + 0.1 * (high - low)];
    return [Math.min(0, low), Math.max(0, high) || (low < 0 ? 0 : 1)];
  };
  const square = (width, options) => {
    const size = Math.min(width, 420);
    return plot(size, { height: size * 0.85, marginBottom: 40, marginTop: 26, ...options });
  };
  const curve = (d, width, x, y, base) => {
    const points = d.x.map((each, i) => [each, d.y[i]]);
    return [square(width, {
      x: { domain: [0, 1], grid: true, label: x },
      y: { domain: [0, 1], grid: true, label: y },
      marks: [
        Plot.line(base, { stroke: "currentColor", strokeDasharray: "4 3" }),
        Plot.line(points, { stroke: color(0), strokeWidth: 2.5 }),
        Plot.tip(points, Plot.pointer({ x: "0", y: "1", title: (p) => `${x} ${p[0].toFixed(3)}\n${y} ${p[1].toFixed(3)}` })),
      ],
    })];
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
    place.querySelectorAll("g[aria-label]").forEach((mark) => mark.removeAttribute("aria-label"));
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
