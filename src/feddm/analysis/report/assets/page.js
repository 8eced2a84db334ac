(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const { methods } = data;
  const images = document.getElementById("images");
  const hidden = new Set();
  const chosen = { sent: { unit: "bytes", scale: "log" }, messages: { way: "up" } };

  const SERIES = 8;
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "cross", "triangle-down", "star"];

  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faded = (hex, share) => hex + Math.round(255 * share).toString(16).padStart(2, "0");
  // Plotly interprets tags in all its texts.
  const plain = text => String(text).replace(/[&<>]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
  const extra = method => plain(method.label).replaceAll("%{", "% {");  // nor expand templates in a name
  const short = (text, most = 12) => plain(text.length > most ? text.slice(0, most - 1) + "…" : text);
  const color = number => css(`--series-${number % SERIES}`);
  const dash = number => DASHES[Math.floor(number / SERIES) % DASHES.length];
  const sum = values => values.reduce((a, b) => a + b, 0);
  const scaled = (value, units) => {
    for (const [size, unit] of units) if (value >= size) return `${+(value / size).toPrecision(3)} ${unit}`.trim();
    return `${+value.toPrecision(3)} ${units.at(-1)[1]}`.trim();
  };
  const asBytes = value => scaled(value, [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]);
  const asFloats = value => scaled(value, [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]);
  const asTime = value => scaled(value, [[3600, "h"], [60, "min"], [1, "s"]]);
  const shown = () => methods.map((method, number) => [method, number]).filter(([, number]) => !hidden.has(number));
  const percent = values => values.map(value => value === null ? null : 100 * value);

  // The fewer decades a log axis has, the more labels it gets per decade.
  const ticks = (values, log, text, size = 1) => {
    const known = values.filter(value => value > 0);
    if (!known.length) return {};
    const low = Math.min(...known), high = Math.max(...known), at = [];
    if (log) {
      const reach = high / low;
      const steps = reach > 300 ? [1] : reach > 12 ? [1, 3] : reach > 4 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 6, 8];
      for (let e = Math.floor(Math.log10(low)) - 1; e <= Math.ceil(Math.log10(high)); e++)
        for (const step of steps) at.push(step * 10 ** e);
    } else {
      const rough = high / size / 4, unit = 10 ** Math.floor(Math.log10(rough));
      const step = size * [1, 2, 2.5, 5, 10].map(n => n * unit).find(n => n >= rough);
      for (let n = 0; n * step <= 1.3 * high; n++) at.push(n * step);
    }
    return { tickmode: "array", tickvals: at, ticktext: at.map(text) };
  };
  const timeTicks = most => {
    const [size, unit] = most >= 7200 ? [3600, "h"] : most >= 120 ? [60, "min"] : [1, "s"];
    return ticks([most], false, value => `${+(value / size).toPrecision(3)} ${unit}`, size);
  };
  const wholeRounds = () => {
    const most = Math.max(...methods.map(method => method.rounds.at(-1)));
    return { unifiedhovertitle: { text: "round %{x}" }, tickmode: "linear", tick0: most <= 10 ? 1 : 0, dtick: most <= 10 ? 1 : Math.ceil(most / 50) * 5, range: [Math.min(0.8, 1 - 0.03 * most), 1.03 * most + 0.15] };
  };

  const layout = more => {
    const axis = { gridcolor: css("--line"), linecolor: css("--line"), zeroline: false, automargin: true, fixedrange: true, title: { font: { size: 12.5, color: css("--muted") }, standoff: 10 }, tickfont: { size: 12, color: css("--muted") } };
    const { xaxis = {}, yaxis = {}, ...rest } = more;
    const merge = own => ({ ...axis, ...own, title: { ...axis.title, text: own.title || "" } });
    return {
      paper_bgcolor: css("--surface"), plot_bgcolor: css("--surface"), showlegend: false, dragmode: false,
      font: { family: getComputedStyle(document.body).fontFamily, color: css("--ink"), size: 13 },
      hoverlabel: { bgcolor: css("--surface"), bordercolor: css("--line"), font: { color: css("--ink"), size: 13 }, align: "left" },
      margin: { l: 8, r: 12, t: 8, b: 8 }, xaxis: merge(xaxis), yaxis: merge(yaxis), ...rest,
    };
  };

  // Each method is a line for the mean, and behind it a band over its seeds.
  const lines = (rows, x, y, text) => rows.flatMap(([method, number]) => {
    const xs = x(method), style = { color: color(number), width: 2.25, dash: dash(number) };
    const mean = {
      type: "scatter", mode: xs.length > 40 ? "lines" : "lines+markers", x: xs, y: y(method), name: plain(method.label),
      line: style, marker: { size: 7, symbol: SYMBOLS[number % SYMBOLS.length], color: style.color },
      customdata: text(method), hovertemplate: `%{customdata}<extra>${extra(method)}</extra>`, meta: method.name,
    };
    if (method.seeds < 2) return [mean];
    const band = [...percent(method.lowest), ...percent(method.highest).reverse()];
    return [{ type: "scatter", mode: "lines", x: [...xs, ...[...xs].reverse()], y: band, line: { width: 0 }, showlegend: false, fill: "toself", fillcolor: faded(style.color, 0.16), hoverinfo: "skip" }, mean];
  });
  const simple = (rows, y, text) => rows.map(([method, number]) => ({
    type: "scatter", mode: "lines+markers", x: method.rounds, y: y(method), name: plain(method.label), meta: method.name,
    line: { color: color(number), width: 2.25, dash: dash(number) }, marker: { size: 6, symbol: SYMBOLS[number % SYMBOLS.length] },
    customdata: y(method).map(text), hovertemplate: `%{customdata}<extra>${extra(method)}</extra>`,
  }));
  const accuracyText = method => method.accuracy.map((value, round) => {
    const band = method.seeds > 1 ? ` (${(100 * method.lowest[round]).toFixed(2)} to ${(100 * method.highest[round]).toFixed(2)})` : "";
    return value === null ? "?" : `${(100 * value).toFixed(2)} %${band}`;
  });

  const ownLegend = { showlegend: true, legend: { orientation: "h", traceorder: "normal", x: 0, y: 1.02, yanchor: "bottom", itemclick: false, itemdoubleclick: false } };

  const figures = {
    accuracy: () => [
      lines(shown(), method => method.rounds, method => percent(method.accuracy), accuracyText),
      layout({ hovermode: "x unified", xaxis: { title: "round", ...wholeRounds() }, yaxis: { ticksuffix: " %" } }),
    ],
    sent: () => {
      const { unit, scale } = chosen.sent;
      const text = unit === "bytes" ? asBytes : asFloats;
      const rows = shown().filter(([method]) => method.sent[unit]);
      const all = rows.flatMap(([method]) => method.sent[unit]);
      const coded = document.getElementById("coded");
      if (coded) coded.hidden = unit !== "floats";
      const hover = method => accuracyText(method).map((accuracy, i) =>
        `${accuracy}<br>round ${method.rounds[i]}, ${text(method.sent[unit][i])}${unit === "floats" ? " floats" : ""} sent`);
      return [
        lines(rows, method => method.sent[unit], method => percent(method.accuracy), hover),
        layout({
          hovermode: "closest", yaxis: { ticksuffix: " %" },
          xaxis: { title: `${unit} sent by all clients so far`, type: scale, ...ticks(all, scale === "log", text), ...(scale === "linear" ? { rangemode: "tozero" } : {}) },
        }),
      ];
    },
    partition: () => {
      const { classes, table } = data.partition;
      const numbers = classes.map((_, number) => number), few = classes.length <= 20;
      const hover = table.map((counts, client) => counts.map((count, label) => `client ${client}<br>class ${plain(classes[label])}<br>${count} examples`));
      const texts = few && table.length <= 30 && document.getElementById("partition").clientWidth > 44 * classes.length ? table.map(counts => counts.map(count => count || "")) : undefined;
      return [
        [{
          type: "heatmap", x: numbers, y: table.map((_, client) => client), z: table, customdata: hover, text: texts, texttemplate: texts && "%{text}", textfont: { size: 11 },
          hovertemplate: "%{customdata}<extra></extra>", xgap: 2, ygap: 2, zmin: 0, colorscale: [[0, css("--low")], [1, css("--accent")]],
          colorbar: { thickness: 10, outlinewidth: 0, tickfont: { size: 11, color: css("--muted") }, nticks: 5 },
        }],
        layout({
          xaxis: { title: "class", showgrid: false, ...(few ? { tickmode: "array", tickvals: numbers, ticktext: classes.map(name => short(name)) } : {}) },
          yaxis: { title: "client", showgrid: false, autorange: "reversed", ...(table.length <= 20 ? { dtick: 1 } : {}) },
        }),
      ];
    },
    time: () => {
      const parts = [["clients", "Clients", css("--dark")], ["server", "Server", css("--light")]];
      const legend = { ...ownLegend, barmode: "stack", bargap: 0.35 };
      if (methods.length === 1) {
        const [method] = methods;
        const bars = parts.filter(([key]) => method[key]).map(([key, name, fill]) => ({
          type: "bar", name, x: method.rounds, y: method[key], marker: { color: fill },
          customdata: method[key].map(asTime), hovertemplate: `%{customdata}<extra>${name}</extra>`,
        }));
        const most = Math.max(...method.rounds.map((_, i) => sum(bars.map(bar => bar.y[i]))));
        return [bars, layout({ ...legend, hovermode: "x unified", xaxis: { title: "round", ...wholeRounds(), range: [0.4, method.rounds.at(-1) + 0.6] }, yaxis: { rangemode: "tozero", ...timeTicks(most) } })];
      }
      const rows = shown();
      const bars = parts.map(([key, name, fill]) => {
        const totals = rows.map(([method]) => method[key] ? sum(method[key]) : 0);
        return {
          type: "bar", orientation: "h", name, y: rows.map((_, i) => i), x: totals, marker: { color: fill },
          customdata: rows.map(([method], i) => `${plain(method.name)}: ${method[key] ? asTime(totals[i]) : "not reported"}`), hovertemplate: `%{customdata}<extra>${name}</extra>`,
        };
      });
      const most = Math.max(...rows.map(([method]) => sum([...(method.clients || []), ...method.server])));
      return [bars, layout({
        ...legend, hovermode: "closest", xaxis: { rangemode: "tozero", ...timeTicks(most) },
        yaxis: { autorange: "reversed", showgrid: false, tickmode: "array", tickvals: rows.map((_, i) => i), ticktext: rows.map(([method]) => short(method.name, 14)) },
      })];
    },
    messages: () => {
      const y = values => ({ rangemode: "tozero", ...ticks(values, false, asBytes) });
      if (methods.length === 1) {
        const [method] = methods;
        const bars = [["up", "Up", css("--dark")], ["down", "Down", css("--light")]].map(([key, name, fill]) => ({
          type: "bar", name, x: method.rounds, y: method[key], marker: { color: fill },
          customdata: method[key].map(asBytes), hovertemplate: `%{customdata}<extra>${name}</extra>`,
        }));
        return [bars, layout({ ...ownLegend, barmode: "group", bargap: 0.35, hovermode: "x unified", xaxis: { title: "round", ...wholeRounds(), range: [0.4, method.rounds.at(-1) + 0.6] }, yaxis: y([...method.up, ...method.down]) })];
      }
      const { way } = chosen.messages;
      return [simple(shown(), method => method[way], asBytes), layout({ hovermode: "x unified", xaxis: { title: "round", ...wholeRounds() }, yaxis: y(shown().flatMap(([method]) => method[way])) })];
    },
    privacy: () => {
      const rows = shown().filter(([method]) => method.epsilon.length);
      const budgets = [...new Set(rows.map(([method]) => method.budget).filter(Boolean))];
      return [simple(rows, method => method.epsilon, value => `epsilon ${value.toFixed(3)}`), layout({
        hovermode: "x unified", xaxis: { title: "round", ...wholeRounds() }, yaxis: { title: "epsilon", rangemode: "tozero" },
        shapes: budgets.map(budget => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: budget, y1: budget, line: { color: css("--muted"), width: 1.5, dash: "dot" } })),
      })];
    },
  };

  const draw = name => {
    const place = document.getElementById(name);
    if (!place) return;
    if (name === "partition") {
      // As high as the images next to it, which have the same rows.
      const beside = matchMedia("(min-width: 821px)").matches && images ? images.clientHeight : 0;
      place.style.height = `${Math.min(760, Math.max(240, 26 * data.partition.table.length + 70, beside))}px`;
    }
    const [traces, figure] = figures[name]();
    Plotly.react(place, traces, figure, { displayModeBar: false, responsive: true });
  };
  const drawAll = () => Object.keys(figures).forEach(draw);

  // The legend shows or hides a method in all figures; a double click shows only that method.
  const legend = document.getElementById("legend");
  const mark = number => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 22 10");
    svg.setAttribute("aria-hidden", "true");
    const line = document.createElementNS(svg.namespaceURI, "line");
    const dashes = { solid: "", dash: "6 3", dot: "2 3", dashdot: "6 3 2 3" }[dash(number)];
    Object.entries({ x1: 1, x2: 21, y1: 5, y2: 5, "stroke-width": 3, "stroke-dasharray": dashes, "stroke-linecap": "round" }).forEach(([key, value]) => line.setAttribute(key, value));
    line.style.stroke = `var(--series-${number % SERIES})`;
    svg.append(line);
    return svg;
  };
  const press = () => {
    [...legend.children].forEach((button, number) => button.setAttribute("aria-pressed", !hidden.has(number)));
    drawAll();
  };
  if (legend) methods.forEach((method, number) => {
    const button = element("button");
    button.type = "button";
    button.title = "Click: show or hide. Double click: show only this one, or all.";
    button.append(mark(number), element("span", "", method.label));
    button.addEventListener("click", () => { hidden.has(number) ? hidden.delete(number) : hidden.add(number); press(); });
    button.addEventListener("dblclick", () => {
      const alone = methods.every((_, other) => hidden.has(other) === (other !== number));
      hidden.clear();
      if (!alone) methods.forEach((_, other) => { if (other !== number) hidden.add(other); });
      press();
    });
    button.setAttribute("aria-pressed", "true");
    legend.append(button);
  });
  document.querySelectorAll(".dot").forEach(dot => { dot.dataset.series = dot.dataset.series % SERIES; });

  document.querySelectorAll(".switch").forEach(group => {
    const { figure, key } = group.dataset;
    const buttons = [...group.querySelectorAll("button")];
    const show = () => buttons.forEach(button => button.setAttribute("aria-pressed", button.dataset.value === chosen[figure][key]));
    buttons.forEach(button => button.addEventListener("click", () => { chosen[figure][key] = button.dataset.value; show(); draw(figure); }));
    show();
  });

  // Every figure can be saved as a picture, with a legend of its own.
  const picture = ({ data, layout }) => ({ data, layout: data.some(trace => trace.meta) ? { ...layout, ...ownLegend } : layout });
  document.querySelectorAll("figure .plot").forEach(place => {
    const button = element("button", "save", "PNG");
    button.type = "button";
    button.title = "Save this figure";
    button.addEventListener("click", () => Plotly.downloadImage(picture(place), { format: "png", scale: 2, width: place.clientWidth, height: place.clientHeight, filename: `feddm-${place.id}` }));
    place.parentElement.querySelector("header").append(button);
  });
  const save = (name, text, type) => {
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  document.getElementById("csv").addEventListener("click", () => save("feddm.csv", data.csv, "text/csv"));
  document.querySelectorAll(".copy").forEach(button => button.addEventListener("click", () => {
    const text = button.previousElementSibling;
    const selection = getSelection();
    selection.selectAllChildren(text);
    document.execCommand("copy");  // the newer clipboard API is not available to file:// pages
    selection.removeAllRanges();
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  }));

  // The images: tiles cut out of one sheet.
  if (images) {
    const byMethod = document.getElementById("sheet-method"), byClient = document.getElementById("sheet-client");
    const loaded = new Map();
    const load = uri => {
      if (!loaded.has(uri)) loaded.set(uri, new Promise(done => {
        const image = new Image();
        image.onload = () => done(image);
        image.src = uri;
      }));
      return loaded.get(uri);
    };
    const cut = (uri, sheet, number) => {
      const [height, width] = sheet.shape, canvas = element("canvas");
      canvas.width = width; canvas.height = height;
      const columns = Math.min(sheet.columns, sheet.clients.length);
      load(uri).then(image => canvas.getContext("2d").drawImage(image, width * (number % columns), height * Math.floor(number / columns), width, height, 0, 0, width, height));
      return canvas;
    };
    const whose = (sheet, client) => sheet.by_server ? "server" : `client ${client}`;
    const tile = (sheet, number) => {
      const box = element("span", "tile");
      box.title = `${whose(sheet, sheet.clients[number])}, class ${sheet.classes[sheet.labels[number]]}`;
      box.append(cut(sheet.image, sheet, number));
      if (sheet.neighbours) box.append(cut(sheet.neighbours, sheet, number));
      return box;
    };
    const numbersOf = (sheet, client) => sheet.clients.flatMap((each, number) => each === client ? [number] : []);
    const all = sheet => {
      const clients = [...new Set(sheet.clients)];
      if (sheet.classes.length > 20) return clients.map(client => {
        const band = element("div", "band"), flow = element("div", "flow");
        flow.append(...numbersOf(sheet, client).filter((n, i, ns) => sheet.labels[n] !== sheet.labels[ns[i - 1]]).map(n => tile(sheet, n)));
        band.append(element("span", "name", whose(sheet, client)), flow);
        return band;
      });
      const grid = element("div", "matrix");
      grid.style.gridTemplateColumns = `max-content repeat(${sheet.classes.length}, minmax(0, 64px))`;
      grid.append(element("span", "head", ""), ...sheet.classes.map(name => element("span", "head", name)));
      for (const client of clients) {
        const numbers = numbersOf(sheet, client);
        grid.append(element("span", "side", sheet.by_server ? "" : client));
        sheet.classes.forEach((_, label) => {
          const number = numbers.find(each => sheet.labels[each] === label);
          grid.append(number === undefined ? element("span", "none") : tile(sheet, number));
        });
      }
      return [grid];
    };
    const one = (sheet, client) => {
      const numbers = numbersOf(sheet, client);
      return [...new Set(numbers.map(number => sheet.labels[number]))].map(label => {
        const band = element("div", "band"), flow = element("div", "flow");
        flow.append(...numbers.filter(number => sheet.labels[number] === label).map(number => tile(sheet, number)));
        band.append(element("span", "name", sheet.classes[label]), flow);
        return band;
      });
    };
    const show = () => {
      const number = byMethod ? +byMethod.value : 0, sheet = data.sheets[number];
      document.querySelectorAll("[data-sheet]").forEach(caption => { caption.hidden = +caption.dataset.sheet !== number; });
      images.replaceChildren(...(byClient.value === "all" ? all(sheet) : one(sheet, +byClient.value)));
    };
    const offer = () => {
      const sheet = data.sheets[byMethod ? +byMethod.value : 0], before = byClient.value;
      const options = sheet.by_server ? [["all", "one of each"], [String(sheet.clients[0]), "all images"]]
        : [["all", "all clients"], ...[...new Set(sheet.clients)].map(client => [String(client), `client ${client}`])];
      byClient.replaceChildren(...options.map(([value, text]) => {
        const option = element("option", "", text);
        option.value = value;
        return option;
      }));
      if (options.some(([value]) => value === before)) byClient.value = before;
      show();
    };
    if (byMethod) byMethod.addEventListener("change", offer);
    byClient.addEventListener("change", show);
    offer();
  }

  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    root.dataset.chosen = "yes";
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    drawAll();
  });
  document.addEventListener("themechange", drawAll);
  drawAll();
})();
