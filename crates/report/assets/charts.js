// Draws every <div class="chart"> from the JSON beside it with ECharts, and adds what ECharts lacks: a legend of real
// buttons, arrow keys from point to point, and spoken values. Names from bundles enter as text, never as markup.
"use strict";
(function () {
  const root = document.documentElement;
  const SYMBOLS = ["circle", "rect", "diamond", "triangle", "triangle", "circle"];
  const live = [];

  function palette(forPrint) {
    if (forPrint) {
      return {
        ink: "#000000", muted: "#444444", line: "#dddddd", surface: "#ffffff",
        series: ["#1d5c86", "#b3641a", "#3d7d5c", "#84508f", "#9c3f48", "#5a6570"],
      };
    }
    const style = getComputedStyle(root);
    const read = (name) => style.getPropertyValue(name).trim();
    return {
      ink: read("--ink"), muted: read("--muted"), line: read("--line"), surface: read("--surface"),
      series: [1, 2, 3, 4, 5, 6].map((n) => read(`--series-${n}`)),
    };
  }

  function numberFormat(decimals) {
    return new Intl.NumberFormat(root.lang, { minimumFractionDigits: 0, maximumFractionDigits: decimals });
  }

  function withUnit(text, unit) {
    if (!unit) return text;
    return unit === "%" && root.lang === "en" ? `${text}%` : `${text}\u00a0${unit}`;
  }

  function axisTitle(axis) {
    return axis.unit ? `${axis.label} (${axis.unit})` : axis.label;
  }

  // A tick of a logarithmic axis may be 0.05 and 10000 at once: decimals by magnitude.
  function tick(value) {
    const magnitude = value === 0 ? 0 : Math.floor(Math.log10(Math.abs(value)));
    return numberFormat(Math.min(6, Math.max(0, 2 - magnitude))).format(value);
  }

  function axisOption(axis, colors, vertical) {
    const base = {
      name: axisTitle(axis),
      nameLocation: "middle",
      nameGap: vertical ? 14 : 30,
      nameTextStyle: { color: colors.muted, fontSize: 12.5 },
      axisLabel: { color: colors.muted, fontSize: 12, hideOverlap: true },
      axisLine: { show: !vertical, lineStyle: { color: colors.muted } },
      axisTick: { show: !vertical, lineStyle: { color: colors.muted } },
      splitLine: { show: vertical, lineStyle: { color: colors.line } },
      minorSplitLine: { show: false },
    };
    if (axis.scale === "category") {
      return { ...base, type: "category", data: axis.names.length > 0 ? axis.names : axis.categories.map((value) => tick(value)) };
    }
    base.axisLabel.formatter = tick;
    if (axis.scale === "log") return { ...base, type: "log", logBase: 10 };
    return { ...base, type: "value", min: axis.from_zero ? 0 : undefined, scale: !axis.from_zero };
  }

  function position(spec, x) {
    return spec.x.scale === "category" ? spec.x.categories.indexOf(x) : x;
  }

  // An interval: a line with a short one across each end.
  function bar(api, color) {
    const low = api.coord([api.value(0), api.value(1)]);
    const high = api.coord([api.value(0), api.value(2)]);
    const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: color, lineWidth: 1.5 } });
    return {
      type: "group",
      children: [
        line(low[0], low[1], high[0], high[1]),
        line(low[0] - 4, low[1], low[0] + 4, low[1]),
        line(high[0] - 4, high[1], high[0] + 4, high[1]),
      ],
    };
  }

  // Lines to compare with and intervals are no points to stop at: what they say stands at the points.
  function stops(series) {
    return series.style !== "guide" && series.style !== "range";
  }

  function seriesOption(spec, series, index, colors, hidden) {
    const color = colors.series[series.color % colors.series.length];
    const option = {
      name: series.name,
      data: hidden ? [] : series.points.map((point) => [position(spec, point[0]), point[1]]),
      itemStyle: { color },
      z: 3 + index,
    };
    const symbol = SYMBOLS[series.color % SYMBOLS.length];
    if (series.style === "line") {
      return {
        ...option, type: "line", symbol, symbolSize: 8, showSymbol: true,
        lineStyle: { color, width: 2.25, type: series.dash ? [6, 4] : "solid" },
        emphasis: { scale: 1.5, focus: "none" },
      };
    }
    if (series.style === "guide") {
      return {
        ...option, type: "line", symbol: "none", silent: true, z: 1,
        lineStyle: { color: colors.muted, width: 1.25, type: [3, 4] }, itemStyle: { color: colors.muted },
      };
    }
    if (series.style === "range") {
      const pairs = [];
      for (let i = 0; i + 1 < series.points.length; i += 2) {
        const [low, high] = [series.points[i], series.points[i + 1]];
        pairs.push([position(spec, low[0]), low[1], high[1]]);
      }
      return { ...option, type: "custom", silent: true, z: 2, data: hidden ? [] : pairs, renderItem: (_, api) => bar(api, color) };
    }
    const dense = series.points.length > 150;
    return {
      ...option, type: "scatter", symbol: dense ? "circle" : symbol, symbolSize: dense ? 5 : 8,
      itemStyle: dense ? { color, opacity: 0.55 } : { color: "transparent", borderColor: color, borderWidth: 1.5 },
      emphasis: { itemStyle: { color, opacity: 1 } },
    };
  }

  function markOption(spec, colors) {
    if (spec.marks.length === 0) return undefined;
    return {
      silent: true, symbol: "none", animation: false,
      lineStyle: { color: colors.ink, width: 1, type: [2, 3] },
      label: { color: colors.ink, fontSize: 12, fontFamily: getComputedStyle(document.body).fontFamily },
      data: spec.marks.map((mark) => ({
        [mark.axis === "x" ? "xAxis" : "yAxis"]: mark.axis === "x" ? position(spec, mark.at) : mark.at,
        label: { formatter: () => mark.label, position: "end" },
      })),
    };
  }

  function pointText(spec, series, point) {
    return {
      head: spec.x.names[point[0]] ?? withUnit(numberFormat(4).format(point[0]), spec.x.unit),
      value: withUnit(numberFormat(spec.y.decimals).format(point[1]), spec.y.unit),
      label: point[2] || "",
    };
  }

  // The hover box lists every series at the x of the point, so that a median and its raw values are read together.
  function tipContent(spec, hidden, seriesIndex, dataIndex) {
    const box = document.createElement("div");
    box.className = "tip";
    const point = spec.series[seriesIndex]?.points[dataIndex];
    if (!point) return box;
    const head = document.createElement("b");
    head.textContent = `${spec.x.label} ${pointText(spec, spec.series[seriesIndex], point).head}`;
    const table = document.createElement("table");
    const dense = spec.series[seriesIndex].points.length > 150;
    spec.series.forEach((series, index) => {
      if (hidden.has(index) || !stops(series)) return;
      if (dense && index !== seriesIndex) return;
      const points = dense ? [point] : series.points.filter((other) => other[0] === point[0]);
      for (const other of points) {
        const row = table.insertRow();
        const text = pointText(spec, series, other);
        row.insertCell().textContent = text.label ? `${series.name}, ${text.label}` : series.name;
        row.insertCell().textContent = text.value;
      }
    });
    box.append(head, table);
    return box;
  }

  function chartOption(spec, colors, hidden) {
    const series = spec.series.map((entry, index) => seriesOption(spec, entry, index, colors, hidden.has(index)));
    if (series.length > 0) series[0].markLine = markOption(spec, colors);
    return {
      animation: false,
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily },
      grid: { left: 8, right: 20, top: 22, bottom: 8, outerBoundsMode: "same", outerBoundsContain: "all" },
      xAxis: axisOption(spec.x, colors, false),
      yAxis: axisOption(spec.y, colors, true),
      tooltip: {
        trigger: "item",
        confine: true,
        transitionDuration: 0,
        backgroundColor: colors.surface,
        borderColor: colors.line,
        padding: [7, 11],
        extraCssText: "box-shadow: 0 4px 16px rgb(0 0 0 / 14%); border-radius: 7px;",
        formatter: (hit) => tipContent(spec, hidden, hit.seriesIndex, hit.dataIndex),
      },
      series,
    };
  }

  function swatch(series, colors) {
    const color = series.style === "guide" ? colors.muted : colors.series[series.color % colors.series.length];
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("width", "22");
    svg.setAttribute("height", "12");
    svg.setAttribute("aria-hidden", "true");
    const draw = (name, attributes) => {
      const node = document.createElementNS(svg.namespaceURI, name);
      for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
      svg.append(node);
    };
    if (series.style === "range") {
      for (const [x1, y1, x2, y2] of [[11, 1, 11, 11], [8, 1, 14, 1], [8, 11, 14, 11]]) {
        draw("line", { x1, y1, x2, y2, stroke: color, "stroke-width": 1.5 });
      }
      return svg;
    }
    if (series.style !== "dots") {
      const dash = series.style === "guide" ? "3 3" : series.dash ? "6 3" : "none";
      draw("line", { x1: 0, y1: 6, x2: 22, y2: 6, stroke: color, "stroke-width": 2, "stroke-dasharray": dash });
    }
    if (series.style !== "guide") {
      const mark = series.style === "dots"
        ? { fill: "none", stroke: color, "stroke-width": 1.5 }
        : { fill: color };
      const symbol = series.points.length > 150 ? "circle" : SYMBOLS[series.color % SYMBOLS.length];
      if (symbol === "rect") draw("rect", { x: 7.5, y: 2.5, width: 7, height: 7, ...mark });
      else if (symbol === "triangle") draw("polygon", { points: "11,2 15,10 7,10", ...mark });
      else if (symbol === "diamond") draw("polygon", { points: "11,1 15.5,6 11,11 6.5,6", ...mark });
      else draw("circle", { cx: 11, cy: 6, r: 3.75, ...mark });
    }
    return svg;
  }

  function setUp(element) {
    const spec = JSON.parse(document.getElementById(element.dataset.spec).textContent);
    const hidden = new Set();
    const legend = document.createElement("ul");
    legend.className = "legend";
    element.before(legend);
    const spoken = element.parentElement.querySelector("[aria-live]");
    let chart = echarts.init(element, null, { renderer: "svg" });
    let colors = palette(false);
    let at = null;

    const draw = () => {
      chart.setOption(chartOption(spec, colors, hidden), { notMerge: true });
      legend.replaceChildren(
        ...spec.series.map((series, index) => {
          const item = document.createElement("li");
          const button = document.createElement("button");
          button.type = "button";
          button.setAttribute("aria-pressed", String(!hidden.has(index)));
          button.append(swatch(series, colors), series.name);
          button.addEventListener("click", () => {
            if (!hidden.delete(index)) hidden.add(index);
            at = null;
            draw();
            legend.querySelectorAll("button")[index].focus();
          });
          item.append(button);
          return item;
        }),
      );
    };

    const show = () => {
      chart.dispatchAction({ type: "downplay" });
      chart.dispatchAction({ type: "highlight", seriesIndex: at.series, dataIndex: at.point });
      chart.dispatchAction({ type: "showTip", seriesIndex: at.series, dataIndex: at.point });
      const series = spec.series[at.series];
      const point = series.points[at.point];
      const text = pointText(spec, series, point);
      spoken.textContent = `${series.name}, ${spec.x.label} ${text.head}: ${text.value} ${text.label}`.trim();
    };
    const leave = () => {
      at = null;
      chart.dispatchAction({ type: "downplay" });
      chart.dispatchAction({ type: "hideTip" });
    };
    element.addEventListener("keydown", (event) => {
      const open = spec.series
        .map((series, index) => ({ series, index }))
        .filter(({ series, index }) => stops(series) && series.points.length > 0 && !hidden.has(index))
        .map(({ index }) => index);
      if (open.length === 0) return;
      const length = (index) => spec.series[index].points.length;
      const row = at ? open.indexOf(at.series) : 0;
      if (event.key === "Escape") leave();
      else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
        const step = event.key === "ArrowRight" ? 1 : -1;
        const series = open[row];
        const from = at ? at.point + step : step > 0 ? 0 : length(series) - 1;
        at = { series, point: Math.min(length(series) - 1, Math.max(0, from)) };
        show();
      } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
        const step = event.key === "ArrowDown" ? 1 : open.length - 1;
        const series = at ? open[(row + step) % open.length] : open[0];
        // Stay at the same x: repeats hold more points than their median line.
        const x = at ? spec.series[at.series].points[at.point][0] : null;
        const same = spec.series[series].points.findIndex((point) => point[0] === x);
        at = { series, point: same >= 0 ? same : 0 };
        show();
      } else if (event.key === "Home" || event.key === "End") {
        const series = open[row];
        at = { series, point: event.key === "Home" ? 0 : length(series) - 1 };
        show();
      } else return;
      event.preventDefault();
    });
    element.addEventListener("blur", leave);

    draw();
    new ResizeObserver(() => {
      if (!matchMedia("print").matches) chart.resize();
    }).observe(element);
    live.push({
      recolor() {
        colors = palette(false);
        draw();
      },
      // The size is that of `.chart` in the print rules: the layout of the page comes too late to measure it.
      toPaper() {
        colors = palette(true);
        chart.resize({ width: 680, height: 290 });
        draw();
      },
      toScreen() {
        colors = palette(false);
        chart.resize({ width: "auto", height: "auto" });
        draw();
      },
    });
  }

  // The font decides the width of labels: wait for it, then measure.
  const ready = document.fonts ? document.fonts.ready : Promise.resolve();
  ready.then(() => {
    for (const element of document.querySelectorAll(".chart")) setUp(element);
    root.dataset.charts = "drawn";
  });
  document.addEventListener("deltamux:theme", () => live.forEach((chart) => chart.recolor()));
  addEventListener("beforeprint", () => live.forEach((chart) => chart.toPaper()));
  addEventListener("afterprint", () => live.forEach((chart) => chart.toScreen()));
})();
