// Draws each chart of a page with uPlot from the table below it, so that screen readers and browsers without
// scripts have the same figures. portal.js calls drawCharts() again after a live part was replaced.
"use strict";
const drawCharts = (() => {
  const HEIGHT = 210;
  const MIN_WIDTH = 240;
  const LABEL_ROW = 15;  // px of a row of labels of events, above the lines
  const LABEL_ROWS = 2;
  const LABEL_GAP = 8;  // px between two labels of a row
  // A pointer over a step without a value shows one of at most so many seconds before: lag is counted every minute.
  const LOOK_BACK_S = 120;
  // Steps of an axis of messages: 1, 2, 5, 10 and so on, never half a message.
  const WHOLE_STEPS = [...Array(13).keys()].flatMap((zeros) => [1, 2, 5].map((digit) => digit * 10 ** zeros));
  const DASHES = { alarm: [], resolved: [4, 3], reset: [], undo: [4, 3], rebalance: [1, 3] };
  const TONES = ["bad", "warn", "ok", ""];  // worst first

  const zoned = (parts) => new Intl.DateTimeFormat("sv", parts);  // 2026-11-24 09:30, in the zone of the browser
  const DAY = zoned({ month: "2-digit", day: "2-digit" });
  const MINUTE = zoned({ hour: "2-digit", minute: "2-digit" });
  const SECOND = zoned({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const EXACT = zoned({ dateStyle: "short", timeStyle: "medium" });
  // A young installation has a chart of a minute or two: marks within one minute need seconds.
  const formatTick = (at, all) => {
    const step = all.length > 1 ? all[1] - all[0] : 60;
    return (step >= 86400 ? DAY : step >= 60 ? MINUTE : SECOND).format(at * 1000);
  };
  const compact = (value) => Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 }).format(value);

  // A canvas knows no custom properties, and light-dark() is resolved only in a colour that an element uses.
  const probe = document.createElement("i");
  probe.hidden = true;
  document.body.append(probe);
  const colour = (name, opacity = 1) => {
    probe.style.color = `var(--${name})`;
    const rgb = getComputedStyle(probe).color;
    return opacity === 1 ? rgb : rgb.replace("rgb(", "rgba(").replace(")", `, ${opacity})`);
  };

  const valueCells = (row) => [...row.cells].filter((cell) => !cell.classList.contains("events"));
  const readNumber = (text) => (text === "" ? null : Number(text));
  // Return the times and the values of each line, as uPlot takes them.
  function readColumns(table) {
    const columns = valueCells(table.tHead.rows[0]).map(() => []);
    for (const row of table.tBodies[0].rows) {
      valueCells(row).forEach((cell, n) => columns[n].push(readNumber(cell.dataset.value)));
    }
    return columns;
  }
  const hasValues = (values) => values.some((value) => value !== null);

  // No line leads to a value between two gaps, so it is a point.
  const lonePoints = (plot, n) => plot.data[n].flatMap((value, at, all) => (
    value !== null && (all[at - 1] ?? null) === null && (all[at + 1] ?? null) === null ? [at] : []));

  const visibleEvents = (plot, table) => [...table.querySelectorAll("[data-at]")]
    .map((element) => ({ element, at: Number(element.dataset.at) / 1000 }))
    .filter(({ at }) => at >= plot.scales.x.min && at <= plot.scales.x.max)
    .sort((one, other) => one.at - other.at);

  // Draws a thin line for each event, before the series: the events of a busy hour hide no line.
  function drawEvents(plot, table, kindLabels) {
    const { ctx, bbox } = plot;
    const events = visibleEvents(plot, table);
    if (!events.length) return;
    const right = bbox.left + bbox.width;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    ctx.font = `${12 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
    ctx.textAlign = "left";
    ctx.textBaseline = "bottom";
    // The last label of each row. Events for which no row has room are counted in the label that is in the way.
    const rows = Array(LABEL_ROWS).fill(null);
    const labels = [];
    for (const { element, at } of events) {
      const x = Math.round(plot.valToPos(at, "x", true)) + 0.5;
      const { kind } = element.dataset;
      ctx.globalAlpha = 0.6;
      ctx.strokeStyle = colour(element.className || "soft");
      ctx.setLineDash((DASHES[kind] ?? []).map((length) => length * devicePixelRatio));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top - 4 * devicePixelRatio);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      // A label stands to the right of its line, or to the left if it would leave the chart.
      const width = ctx.measureText(kindLabels[kind] ?? kind).width + LABEL_GAP * devicePixelRatio;
      const start = x + width > right ? x - width : x;
      const row = rows.findIndex((label) => !label || start >= label.end);
      const label = row < 0 ? rows[0] : { row, start, events: [] };
      if (row >= 0) labels.push(rows[row] = label);
      label.events.push(element);
      label.end = label.start + ctx.measureText(labelText(label.events, kindLabels)).width + LABEL_GAP * devicePixelRatio;
    }
    ctx.globalAlpha = 1;
    for (const { row, start, events: labelled } of labels) {
      ctx.fillStyle = colour(worstOf(labelled).className || "soft");
      ctx.fillText(labelText(labelled, kindLabels), start, bbox.top - (4 + row * LABEL_ROW) * devicePixelRatio);
    }
    ctx.restore();
  }
  const worstOf = (elements) => TONES.map((tone) => elements.find((one) => one.className === tone)).find(Boolean);
  function labelText(elements, kindLabels) {
    const { kind } = worstOf(elements).dataset;
    const same = elements.filter((one) => one.dataset.kind === kind).length;
    const others = elements.length - same;
    return `${kindLabels[kind] ?? kind}${same > 1 ? ` ×${same}` : ""}${others ? ` +${others}` : ""}`;
  }
  // A transparent strip over each line has the text of its event: the line is too thin for a pointer.
  function placeStrips(plot, table) {
    for (const old of plot.over.querySelectorAll(".happened")) old.remove();
    for (const { element, at } of visibleEvents(plot, table)) {
      const strip = document.createElement("i");
      strip.className = "happened";
      strip.style.left = `${plot.valToPos(at, "x")}px`;
      strip.title = `${EXACT.format(at * 1000)} ${element.textContent}`;
      plot.over.append(strip);
    }
  }

  // While nobody points, the legend shows the last value of each line. A line without any value has no entry,
  // nor has the time if no line has a value.
  const lastKnown = (values) => values.findLastIndex((value) => value !== null);
  function restLegend(plot) {
    if (plot.cursor.idx != null) return;
    const last = plot.data.slice(1).map(lastKnown);
    plot.setLegend({ idxs: [Math.max(...last, 0), ...last.map((at) => (at < 0 ? null : at))] });
  }
  function hideEmptyEntries(plot) {
    const hasLine = plot.data.slice(1).some(hasValues);
    plot.root.querySelectorAll(".u-legend .u-series").forEach((entry, n) => {
      entry.hidden = n === 0 ? !hasLine : !hasValues(plot.data[n]);
    });
  }
  function stepWithValue(plot, line, at) {
    if (line === 0) return at;
    const times = plot.data[0];
    for (let step = at; step >= 0 && times[at] - times[step] <= LOOK_BACK_S; step -= 1) {
      if (plot.data[line][step] !== null) return step;
    }
    return at;
  }

  function drawChart(figure) {
    const table = figure.querySelector("table");
    const names = valueCells(table.tHead.rows[0]).map((cell) => cell.dataset.label ?? cell.textContent.trim());
    const data = readColumns(table);
    const lines = data.slice(1);
    const kinds = figure.querySelector(".event-kinds");
    const kindLabels = Object.fromEntries([...kinds?.querySelectorAll("i") ?? []]
      .map((mark) => [mark.classList[0], mark.parentElement.textContent.trim()]));
    const grid = { stroke: colour("line"), width: 1 };
    const axis = { stroke: colour("soft"), grid, ticks: { ...grid, size: 4 } };
    const isWhole = lines.flat().every((value) => value === null || Number.isInteger(value));
    const series = names.map((label, n) => (n === 0
      ? { label, value: (_, at) => (at == null ? "–" : EXACT.format(at * 1000).slice(5, 16)) }
      : {
        label, width: 2, stroke: colour(`series-${n}`),
        // The grounds of several lines would mix to a colour that means nothing.
        fill: lines.length === 1 ? colour(`series-${n}`, 0.12) : undefined,
        points: { show: false, filter: lonePoints },
        value: (_, value) => (value == null ? "–" : compact(value)),
      }));
    const width = () => Math.max(MIN_WIDTH, figure.clientWidth);
    const plot = new uPlot({
      width: width(), height: HEIGHT, series, padding: [kinds ? LABEL_ROWS * LABEL_ROW + 4 : 8, 20, 0, 0],
      cursor: { y: false, sync: { key: "page" }, dataIdx: stepWithValue },
      hooks: {
        ready: [restLegend, hideEmptyEntries], setCursor: [restLegend],
        drawAxes: [(one) => drawEvents(one, table, kindLabels)], draw: [(one) => placeStrips(one, table)],
      },
      axes: [
        { ...axis, space: 70, values: (_, all) => all.map((at) => formatTick(at, all)) },
        { ...axis, size: 48, values: (_, all) => all.map(compact), ...(isWhole ? { incrs: WHOLE_STEPS } : {}) },
      ],
      scales: {
        // A single step has no length of its own, so it gets half an hour on both sides.
        x: { range: (one, low, high) => (one.data[0].length === 1 ? [low - 1800, low + 1800] : [low, high]) },
        y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.08] },
      },
    }, data, figure.querySelector(".plot"));
    if (kinds) kinds.hidden = false;
    new ResizeObserver(() => {
      if (plot.root.isConnected) plot.setSize({ width: width(), height: HEIGHT });
    }).observe(figure);
  }

  return () => {
    if (typeof uPlot === "undefined") return;
    for (const figure of document.querySelectorAll(".chart")) {
      // A part that was not replaced has its chart.
      if (!figure.querySelector(".plot").firstChild) drawChart(figure);
    }
  };
})();
