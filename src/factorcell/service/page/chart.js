/* A chart of the top suggestions for a prefix. Each step shows the suggestions after a text was accepted or removed,
   and a line joins the places of one suggestion. The newest step is on the right, next to a list of its suggestions.
   The size of a dot shows the probability of the suggestion. */
"use strict";

const chart = (() => {
  const ROWS = 5; // suggestions shown
  const ROW_HEIGHT = 38; // pixels, the height of .chart li
  const [FOOT, GAP, PAD] = [24, 56, 14]; // pixels: below the rows, between two steps, at both sides
  const MAX_STEPS = 12; // steps shown
  const SVG = "http://www.w3.org/2000/svg";

  /** Draw steps {label, results}, oldest first, into a figure. */
  function draw(figure, steps) {
    figure.replaceChildren();
    if (!steps.length) return;
    const shown = steps.slice(-MAX_STEPS);
    const last = shown.at(-1).results.slice(0, ROWS);
    const drawing = svg("svg", { height: ROWS * ROW_HEIGHT + FOOT, "aria-hidden": "true" });
    const list = factorcell.element("ol", {}, ...last.map(listItem));
    figure.append(drawing, list);
    const width = drawing.getBoundingClientRect().width;
    const gap = Math.min(GAP, (width - 2 * PAD) / Math.max(1, shown.length - 1));
    const x = (step) => width - PAD - (shown.length - 1 - step) * gap;
    const texts = new Set(shown.flatMap((step) => step.results.slice(0, ROWS).map((result) => result.text)));
    const paths = [...texts].map((text) => textPath(text, shown)).sort((a, b) => a.isPersonal - b.isPersonal);
    for (const path of paths) drawPath(drawing, path, x);
    shown.forEach((step, index) => {
      if (gap < 16 && index < shown.length - 1) return; // without room, only the newest step has a label
      drawing.append(svg("text", { class: "tick", x: x(index), y: ROWS * ROW_HEIGHT + 18 }, step.label));
    });
  }

  /** Return the row (0 is the top; ROWS is below the list) and the probability of a text at each step. */
  function textPath(text, steps) {
    const points = steps.map(({ results }) => {
      const index = results.findIndex((result) => result.text === text);
      const isShown = index >= 0 && index < ROWS;
      return { row: isShown ? index : ROWS, probability: isShown ? Math.exp(results[index].score) : 0 };
    });
    const isPersonal = steps.some(({ results }) =>
      results.some((result) => result.text === text && isFromHistory(result)));
    return { points, isPersonal };
  }

  function drawPath(drawing, { points, isPersonal }, x) {
    const kind = isPersonal ? "personal " : "";
    const y = (row) => (Math.min(row, ROWS - 0.35) + 0.5) * ROW_HEIGHT;
    let curve = "";
    points.forEach(({ row }, index) => {
      const previous = points[index - 1];
      // Only the line of a text of the user begins below the list.
      if (!previous || row === ROWS || (previous.row === ROWS && !isPersonal)) return;
      const middle = (x(index - 1) + x(index)) / 2;
      curve += `M${x(index - 1)} ${y(previous.row)}C${middle} ${y(previous.row)} ${middle} ${y(row)} `
        + `${x(index)} ${y(row)}`;
    });
    if (curve) drawing.append(svg("path", { class: `${kind}line`, d: curve }));
    points.forEach(({ row, probability }, index) => {
      if (row === ROWS) return;
      const radius = 2.5 + 7 * Math.sqrt(probability);
      drawing.append(svg("circle", { class: `${kind}dot`, cx: x(index), cy: y(row), r: radius }));
    });
  }

  function listItem(result) {
    const probability = Math.exp(result.score);
    const percent = probability < 0.005 ? "<1 %" : `${Math.round(100 * probability)} %`;
    return factorcell.element("li", isFromHistory(result) ? { class: "personal" } : {},
      factorcell.element("span", { dir: "auto" }, factorcell.visible(result.text)),
      factorcell.element("small", {}, percent));
  }

  function isFromHistory(result) {
    return result.source.split("+").includes("history");
  }

  function svg(name, attributes, ...children) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  /** The steps of the chart of one user, by prefix; the chart shows those of the current `prefix`. */
  class SuggestionHistory {
    #latest = new Map(); // prefix -> suggestions since the last change
    #steps = new Map(); // prefix -> steps
    #accepts = 0; // number of accepted texts
    #isChosen = false; // whether the user chose the prefix
    prefix = "";

    /** Remember the suggestions for a prefix before the user accepts the next text. */
    remember(prefix, results) {
      this.#latest.set(prefix, results);
    }

    /** The steps of the current prefix, oldest first. */
    get steps() {
      return this.#steps.get(this.prefix) ?? [];
    }

    /** Show another prefix from now on. */
    choose(prefix) {
      this.#isChosen = Boolean(prefix);
      this.prefix = prefix;
    }

    /** Show a prefix of an accepted text, unless the user chose a prefix; return the label of the next step. */
    accept(text) {
      if (!this.#isChosen && !(this.prefix && text.startsWith(this.prefix))) this.prefix = this.#prefixOf(text);
      if (!this.steps.length && this.#latest.has(this.prefix)) this.add(this.#latest.get(this.prefix), "0");
      return String(++this.#accepts);
    }

    /** Return the prefix of a text for the chart: one that the chart has shown before, otherwise the shortest typed one
        of two or more characters, otherwise a shorter typed one, otherwise the first two characters. */
    #prefixOf(text) {
      const fits = (prefix) => prefix && text.startsWith(prefix);
      const typed = [...this.#latest.keys()].filter(fits).sort((a, b) => a.length - b.length);
      const long = typed.find((prefix) => [...prefix].length > 1) ?? typed.at(-1);
      return [...this.#steps.keys()].find(fits) ?? long ?? [...text].slice(0, 2).join("");
    }

    /** Add a step with the suggestions for the current prefix. */
    add(results, label) {
      this.#steps.set(this.prefix, [...this.steps, { label, results }]);
      this.#latest.clear();
    }
  }

  return { draw, SuggestionHistory, ROWS };
})();
