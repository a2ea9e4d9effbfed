/* A chart of the top suggestions for a prefix. Each step shows the suggestions after a text was accepted or removed,
   and a line joins the places of one suggestion. The newest step is on the right, next to a list of its suggestions.
   The size of a dot shows the probability of the suggestion. */
"use strict";

const chart = (() => {
  const ROWS = 5; // suggestions shown
  const ROW_HEIGHT = 38; // pixels, the height of .chart li
  const FOOT_HEIGHT = 24; // pixels below the rows
  const MAX_STEP_GAP = 56; // pixels between two steps
  const PADDING = 14; // pixels at the left and at the right
  const MAX_STEPS = 12; // steps shown
  const SVG = "http://www.w3.org/2000/svg";

  /** Draw steps {label, results}, oldest first, into a figure; the label is the number of saved texts. */
  function draw(figure, steps) {
    figure.replaceChildren();
    if (!steps.length) return;
    const shownSteps = steps.slice(-MAX_STEPS);
    const newestResults = shownSteps.at(-1).results.slice(0, ROWS);
    const drawing = svgElement("svg", { height: ROWS * ROW_HEIGHT + FOOT_HEIGHT, "aria-hidden": "true" });
    const list = factorcell.element("ol", {}, ...newestResults.map(listItem));
    figure.append(drawing, list);
    const width = drawing.getBoundingClientRect().width;
    const lastIndex = shownSteps.length - 1;
    const gap = Math.min(MAX_STEP_GAP, (width - 2 * PADDING) / Math.max(1, lastIndex));
    const x = (index) => width - PADDING - (lastIndex - index) * gap; // place of the step with an index
    const texts = new Set(shownSteps.flatMap((step) => step.results.slice(0, ROWS).map((result) => result.text)));
    const paths = [...texts].map((text) => suggestionPath(text, shownSteps));
    paths.sort((a, b) => a.isPersonal - b.isPersonal); // lines of the user's texts are drawn last, above the others
    for (const path of paths) drawPath(drawing, path, x);
    shownSteps.forEach((step, index) => {
      if (gap < 16 && index < lastIndex) return; // without room, only the newest step has a label
      drawing.append(svgElement("text", { class: "tick", x: x(index), y: ROWS * ROW_HEIGHT + 18 }, step.label));
    });
  }

  /** Return the row (0 is the top; ROWS is below the list) and the probability of a text at each step, and whether the
      text is one of the user's own texts. */
  function suggestionPath(text, steps) {
    const points = steps.map(({ results }) => {
      const index = results.findIndex((result) => result.text === text);
      const isShown = index >= 0 && index < ROWS;
      return { row: isShown ? index : ROWS, probability: isShown ? Math.exp(results[index].score) : 0 };
    });
    const isPersonal = steps.some(({ results }) =>
      results.some((result) => result.text === text && isFromHistory(result)));
    return { points, isPersonal };
  }

  /** Draw the line and the dots of a suggestion; `x` maps the index of a step to its place. */
  function drawPath(drawing, { points, isPersonal }, x) {
    const classPrefix = isPersonal ? "personal " : "";
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
    if (curve) drawing.append(svgElement("path", { class: `${classPrefix}line`, d: curve }));
    points.forEach(({ row, probability }, index) => {
      if (row === ROWS) return;
      const radius = 2.5 + 7 * Math.sqrt(probability);
      drawing.append(svgElement("circle", { class: `${classPrefix}dot`, cx: x(index), cy: y(row), r: radius }));
    });
  }

  function listItem(result) {
    const probability = Math.exp(result.score);
    const percent = probability < 0.005 ? "<1 %" : `${Math.round(100 * probability)} %`;
    return factorcell.element("li", isFromHistory(result) ? { class: "personal" } : {},
      factorcell.element("span", { dir: "auto" }, factorcell.escapeInvisible(result.text)),
      factorcell.element("small", {}, percent));
  }

  function isFromHistory(result) {
    return result.source.split("+").includes("history");
  }

  function svgElement(name, attributes, ...children) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  /** The steps of the chart of one user, by prefix; the chart shows the steps of the current `prefix`. */
  class SuggestionHistory {
    #latestResults = new Map(); // prefix -> suggestions that were shown for the prefix since the last step
    #stepsByPrefix = new Map();
    #isPrefixChosen = false; // whether the user chose the prefix
    prefix = "";

    /** Remember the suggestions for a prefix before the user accepts the next text. */
    remember(prefix, results) {
      this.#latestResults.set(prefix, results);
    }

    /** The steps of the current prefix, oldest first. */
    get steps() {
      return this.#stepsByPrefix.get(this.prefix) ?? [];
    }

    /** Show another prefix from now on. */
    choose(prefix) {
      this.#isPrefixChosen = Boolean(prefix);
      this.prefix = prefix;
    }

    /** Show a prefix of an accepted text, unless the user chose a prefix. The first step shows the suggestions before
        the text, when the user had `count` saved texts. */
    accept(text, count) {
      if (!this.#isPrefixChosen && !(this.prefix && text.startsWith(this.prefix))) this.prefix = this.#prefixOf(text);
      const latestResults = this.#latestResults.get(this.prefix);
      if (!this.steps.length && latestResults) this.add(latestResults, String(count));
    }

    /** Return the prefix of a text for the chart: one that the chart has shown before, otherwise the shortest typed one
        of two or more characters, otherwise a shorter typed one, otherwise the first two characters. */
    #prefixOf(text) {
      const fits = (prefix) => prefix && text.startsWith(prefix);
      const shownPrefix = [...this.#stepsByPrefix.keys()].find(fits);
      const typedPrefixes = [...this.#latestResults.keys()].filter(fits).sort((a, b) => a.length - b.length);
      const typedPrefix = typedPrefixes.find((prefix) => [...prefix].length > 1) ?? typedPrefixes.at(-1);
      return shownPrefix ?? typedPrefix ?? [...text].slice(0, 2).join("");
    }

    /** Add a step with the suggestions for the current prefix. */
    add(results, label) {
      this.#stepsByPrefix.set(this.prefix, [...this.steps, { label, results }]);
      this.#latestResults.clear();
    }
  }

  return { draw, SuggestionHistory, ROWS };
})();
