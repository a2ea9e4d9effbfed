/* How the first suggestions of a prefix move from one accept to the next: a line for each text, the newest step on the
   right, beside the texts themselves. The size of a dot is the probability of the text. */
"use strict";

const picture = (() => {
  const ROWS = 5; // suggestions shown
  const ROW = 38; // pixels, the height of .picture li
  const [FOOT, GAP, PAD] = [24, 56, 14];
  const MOST = 12; // steps shown
  const SVG = "http://www.w3.org/2000/svg";

  /** Draw `steps` (oldest first), each {label, results}, into a figure. */
  function draw(figure, steps) {
    figure.replaceChildren();
    if (!steps.length) return;
    const shown = steps.slice(-MOST);
    const last = shown.at(-1).results.slice(0, ROWS);
    const drawing = svg("svg", { height: ROWS * ROW + FOOT, "aria-hidden": "true" });
    const list = factorcell.element("ol", {}, ...last.map(row));
    figure.append(drawing, list);
    const width = drawing.getBoundingClientRect().width;
    const gap = Math.min(GAP, (width - 2 * PAD) / Math.max(1, shown.length - 1));
    const x = (step) => width - PAD - (shown.length - 1 - step) * gap;
    const texts = new Set(shown.flatMap((step) => step.results.slice(0, ROWS).map((one) => one.text)));
    const paths = [...texts].map((text) => path(text, shown)).sort((a, b) => a.own - b.own);
    for (const one of paths) line(drawing, one, x);
    shown.forEach((step, at) => {
      if (gap < 16 && at < shown.length - 1) return;
      drawing.append(svg("text", { class: "tick", x: x(at), y: ROWS * ROW + 18 }, step.label));
    });
  }

  /** A text at each step: its place from 0 on (ROWS: below the list), and its share. */
  function path(text, steps) {
    const points = steps.map(({ results }) => {
      const place = results.findIndex((one) => one.text === text);
      const seen = place >= 0 && place < ROWS;
      return { place: seen ? place : ROWS, share: seen ? Math.exp(results[place].score) : 0 };
    });
    const own = steps.some(({ results }) => results.some((one) => one.text === text && isOwn(one)));
    return { points, own };
  }

  function line(drawing, { points, own }, x) {
    const kind = own ? "own " : "";
    const y = (place) => (Math.min(place, ROWS - 0.35) + 0.5) * ROW;
    let way = "";
    points.forEach(({ place }, at) => {
      const before = points[at - 1];
      if (!before || place === ROWS || (before.place === ROWS && !own)) return; // what is one's own is seen to come
      const middle = (x(at - 1) + x(at)) / 2;
      way += `M${x(at - 1)} ${y(before.place)}C${middle} ${y(before.place)} ${middle} ${y(place)} ${x(at)} ${y(place)}`;
    });
    if (way) drawing.append(svg("path", { class: `${kind}line`, d: way }));
    points.forEach(({ place, share }, at) => {
      if (place === ROWS) return;
      drawing.append(svg("circle", { class: `${kind}dot`, cx: x(at), cy: y(place), r: 2.5 + 7 * Math.sqrt(share) }));
    });
  }

  function row(one) {
    const share = Math.exp(one.score);
    const told = share < 0.005 ? "<1 %" : `${Math.round(100 * share)} %`;
    return factorcell.element("li", isOwn(one) ? { class: "own" } : {},
      factorcell.element("span", { dir: "auto" }, factorcell.visible(one.text)), factorcell.element("small", {}, told));
  }

  function isOwn(one) {
    return one.source.split("+").includes("history");
  }

  function svg(name, attributes, ...children) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  /** The steps of one person, by prefix. */
  class Moves {
    #seen = new Map(); // prefix -> suggestions since the last change
    #steps = new Map(); // prefix -> steps
    #count = 0; // of accepts
    #chosen = false; // the prefix, by the person
    prefix = "";

    /** Remember suggestions: they are those of before the next accept. */
    see(prefix, results) {
      this.#seen.set(prefix, results);
    }

    /** Those of the prefix, the oldest first. */
    get steps() {
      return this.#steps.get(this.prefix) ?? [];
    }

    /** Look at another prefix from now on. */
    choose(prefix) {
      this.#chosen = Boolean(prefix);
      this.prefix = prefix;
    }

    /** A text was accepted: look at a beginning of it, unless another was chosen. Gives the label of the step. */
    accepted(text) {
      if (!this.#chosen && !(this.prefix && text.startsWith(this.prefix))) this.prefix = this.#beginning(text);
      if (!this.steps.length && this.#seen.has(this.prefix)) this.add(this.#seen.get(this.prefix), "0");
      return String(++this.#count);
    }

    /** One that was looked at before; or the shortest of two characters or more that was typed. */
    #beginning(text) {
      const fits = (prefix) => prefix && text.startsWith(prefix);
      const typed = [...this.#seen.keys()].filter(fits).sort((a, b) => a.length - b.length);
      const long = typed.find((prefix) => [...prefix].length > 1) ?? typed.at(-1);
      return [...this.#steps.keys()].find(fits) ?? long ?? [...text].slice(0, 2).join("");
    }

    /** One more step: what the prefix suggests now. */
    add(results, label) {
      this.#steps.set(this.prefix, [...this.steps, { label, results }]);
      this.#seen.clear();
    }
  }

  return { draw, Moves, ROWS };
})();
