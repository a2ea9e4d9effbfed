/* A search box that completes while one types, and learns what is chosen: put on any <input> of a site.

     const box = factorcell.attach(document.querySelector("#search"), {
       url: "https://complete.example.org/", key: "…", user: "ann", onAccept: (text) => search(text),
     });
     box.set({ user: "bob" });
     box.detach();

   The input becomes an ARIA 1.2 combobox with a list of suggestions in the top layer. No build step, nothing else is
   loaded; all text is set as text, and styles come by a style sheet that a strict content security policy allows.
   Its rules weigh nothing, so that any rule of the site for .fc-pop, .fc-option, .fc-typed, .fc-rest, .fc-source,
   .fc-note wins. */
"use strict";

(() => {
  const HERE = document.currentScript?.src ? new URL(".", document.currentScript.src).href : `${location.origin}/`;
  const PATIENCE = 10_000; // milliseconds until a request counts as lost
  const TRIES = 6; // to send an accept
  const PAUSE = 0.5; // seconds before the second try, doubled at each
  const LONGEST_PAUSE = 30; // seconds
  const MOST_KEPT = 10_000; // characters of a text that is still sent while its page is left: browsers limit the bytes
  const SAYING = 600; // milliseconds without a key before a screen reader is told how many suggestions there are
  const LEAST_ROOM = 200; // pixels below the input, or the list opens above it where there is more room
  const UNSEEN = /[\0-\x08\v-\x1F\x7F-\x9F\u202A-\u202E\u2066-\u2069]/g; // all controls but tabs and ends of lines
  const PASSING = new Set([0, 408, 429, 500, 502, 503, 504]); // statuses after which the same request may succeed

  /** All that is said; `attach(input, {words})` replaces any of it. */
  const WORDS = {
    list: "Suggestions",
    count: (number) => (number === 0 ? "No suggestions" : number === 1 ? "1 suggestion" : `${number} suggestions`),
    from: "from",
    sources: { model: "model", popularity: "popular", history: "own" },
    typos: (number) => (number === 1 ? "1 typing error forgiven" : `${number} typing errors forgiven`),
    degraded: {
      time: "Time was up: there may be better ones.",
      store: "Without what was learned of you, which is out of reach for a moment.",
    },
    offline: "You are offline. What you typed stays here.",
    unreachable: "The service cannot be reached; trying again.",
    busy: "The service is busy; trying again in a moment.",
    many: "That was too fast; going on in a moment.",
    key: "The service asks for a valid key.",
    failed: "No suggestions can be had for this.",
  };

  const STYLE = `
    :where(.fc-pop) {
      position: fixed; inset: auto; margin: 0; padding: 6px; box-sizing: border-box; overflow: auto;
      overscroll-behavior: contain; z-index: 2147483647; font: var(--fc-font); text-align: start;
      background: var(--fc-paper, Canvas); color: var(--fc-ink, CanvasText); border-radius: var(--fc-radius, 10px);
      border: 1px solid var(--fc-rule, color-mix(in srgb, CanvasText 18%, Canvas));
      box-shadow: 0 12px 32px -12px rgb(0 0 0 / .35);
    }
    :where(.fc-pop[hidden]) { display: none; }
    :where(.fc-option) {
      display: flex; align-items: baseline; gap: 6px 16px; padding: 7px 10px; border-radius: 7px; cursor: pointer;
      -webkit-tap-highlight-color: transparent;
    }
    :where(.fc-option:hover) { background: var(--fc-hover, color-mix(in srgb, CanvasText 5%, Canvas)); }
    :where(.fc-option[aria-selected="true"]) {
      background: var(--fc-active, color-mix(in srgb, CanvasText 11%, Canvas));
    }
    :where(.fc-text) {
      flex: 1; min-width: 0; white-space: pre-wrap; overflow-wrap: anywhere; overflow: hidden;
      display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 3;
    }
    :where(.fc-typed) { color: var(--fc-muted, color-mix(in srgb, CanvasText 64%, Canvas)); }
    :where(.fc-rest) { font-weight: 600; }
    :where(.fc-from) { display: flex; gap: 10px; font-size: max(12px, .72em); white-space: nowrap; }
    :where(.fc-from, .fc-note) { color: var(--fc-muted, color-mix(in srgb, CanvasText 64%, Canvas)); }
    :where(.fc-source) { display: inline-flex; align-items: center; gap: 5px; }
    :where(.fc-source)::before {
      content: ""; width: 8px; height: 8px; box-sizing: border-box; border-radius: 50%; border: 1.5px solid;
    }
    :where(.fc-source[data-source="history"])::before {
      background: var(--fc-accent, Highlight); border-color: var(--fc-accent, Highlight);
    }
    :where(.fc-source[data-source="popularity"])::before { background: currentColor; }
    :where(.fc-note) { padding: 6px 10px; font-size: max(13px, .8em); }
    :where(.fc-note:empty) { display: none; }
    :where(.fc-hidden) {
      position: absolute; width: 1px; height: 1px; margin: -1px; overflow: hidden; clip-path: inset(50%);
      white-space: pre;
    }
    @media (pointer: coarse) { :where(.fc-option) { padding-block: 11px; } }
    @media (forced-colors: active) {
      :where(.fc-option[aria-selected="true"]) { forced-color-adjust: none; background: Highlight; }
      :where(.fc-option[aria-selected="true"], .fc-option[aria-selected="true"] *) { color: HighlightText; }
    }`;

  /** Why a request was not answered: its HTTP `status` (0: none came), and seconds to wait (`retry`) if it is told. */
  class Problem extends Error {
    constructor(status, message, retry = null) {
      super(message);
      this.name = "Problem";
      this.status = status;
      this.retry = retry;
    }

    /** Whether the same request may succeed later. */
    get passing() {
      return PASSING.has(this.status);
    }
  }

  /** What asks a service at `url`, with a key where it wants one. */
  class Client {
    constructor({ url = HERE, key = null } = {}) {
      this.url = new URL(url, location.href).href.replace(/\/?$/, "/");
      this.key = key;
    }

    /** The answer to `body` (JSON) at a path such as "v1/accept", null where it is empty. Throws a `Problem`, or the
        `AbortError` of the signal. */
    async ask(method, path, body, { signal = null, keepalive = false } = {}) {
      const headers = { Accept: "application/json" };
      if (body !== undefined) headers["Content-Type"] = "application/json";
      if (this.key) headers.Authorization = `Bearer ${this.key}`;
      const patience = AbortSignal.timeout(PATIENCE);
      try {
        const answer = await fetch(this.url + path, {
          method, headers, body: JSON.stringify(body), keepalive, credentials: "omit", cache: "no-store",
          referrerPolicy: "no-referrer", signal: signal ? AbortSignal.any([signal, patience]) : patience,
        });
        const text = await answer.text();
        if (!answer.ok) throw problem(answer, text);
        return text ? JSON.parse(text) : null;
      } catch (error) {
        if (error instanceof Problem || signal?.aborted) throw error;
        throw new Problem(0, navigator.onLine ? "no answer came" : "offline");
      }
    }
  }

  /** The problem that an answer tells of (RFC 9457). */
  function problem(answer, text) {
    const after = answer.headers.get("Retry-After");
    let detail = answer.statusText;
    try {
      detail = JSON.parse(text).detail ?? detail;
    } catch {
      // whatever is between us and the service answered in its own words
    }
    return new Problem(answer.status, detail, /^\d+$/.test(after ?? "") ? Number(after) : null);
  }

  /** Sends accepts, one after the other, each until it is answered; the service counts it once by its key. */
  class Accepts {
    #last = Promise.resolve();

    /** The answer to an accept. Throws the `Problem` of the last try. */
    send(client, accept) {
      const body = { ...accept, idempotency_key: newKey() };
      const sent = this.#last.then(() => this.#until(client, body));
      this.#last = sent.catch(() => null);
      return sent;
    }

    async #until(client, body) {
      for (let tried = 1; ; tried++) {
        try {
          return await client.ask("POST", "v1/accept", body, { keepalive: body.text.length < MOST_KEPT });
        } catch (error) {
          if (!error.passing || tried === TRIES) throw error;
          await sleep(Math.min(LONGEST_PAUSE, error.retry ?? PAUSE * 2 ** (tried - 1)));
        }
      }
    }
  }

  /** An input with suggestions; `attach` describes the options. */
  class Box {
    #input; #options; #client; #pop; #list; #note; #status;
    #accepts = new Accepts();
    #life = new AbortController(); // ends the listeners
    #before = new Map(); // attributes of the input as they were
    #seq = 0; // of the newest request; an answer to any other is not shown
    #request = null;
    #results = [];
    #shown = ""; // what stood before the cursor when the results were asked for
    #active = -1;
    #until = 0; // when the service may be asked again
    #failures = 0;
    #timer = 0;
    #saying = 0;
    #composing = false;
    #writing = false; // by ourselves

    constructor(input, options) {
      this.#input = input;
      this.#options = { limit: 8, least: 1, learn: true, context: {}, ...options };
      this.#options.words = { ...WORDS, ...options.words };
      this.#client = new Client(this.#options);
      this.#build();
      this.#listen();
    }

    /** Change options, such as the user: what is shown and on its way is dropped. */
    set(options = {}) {
      Object.assign(this.#options, options, { words: { ...this.#options.words, ...options.words } });
      this.#client = new Client(this.#options);
      this.#until = this.#failures = 0;
      this.close();
    }

    /** Ask for suggestions of what is in the input now. */
    refresh() {
      return this.#ask(0);
    }

    /** Close the list; no answer that is on its way opens it. */
    close() {
      this.#stop();
      this.#results = [];
      this.#render("");
    }

    /** Make the input what it was. */
    detach() {
      this.close();
      this.#life.abort();
      clearTimeout(this.#saying);
      for (const [name, value] of this.#before) {
        if (value === null) this.#input.removeAttribute(name);
        else this.#input.setAttribute(name, value);
      }
      this.#pop.remove();
      this.#status.remove();
      BOXES.delete(this.#input);
    }

    #build() {
      const words = this.#options.words;
      const id = `fc-${newKey().slice(0, 8)}`;
      adopt(this.#input.getRootNode());
      this.#list = element("div", { role: "listbox", id, "aria-label": words.list });
      this.#note = element("div", { class: "fc-note", "aria-hidden": "true" });
      this.#pop = element("div", { class: "fc-pop", hidden: "" }, this.#list, this.#note);
      if (this.#pop.showPopover) this.#pop.popover = "manual";
      this.#status = element("div", { class: "fc-hidden", role: "status", "aria-live": "polite" });
      this.#input.after(this.#pop, this.#status);
      const attributes = {
        role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": id,
        "aria-haspopup": "listbox", autocomplete: "off", autocapitalize: "none", autocorrect: "off",
        spellcheck: "false",
      };
      for (const name of [...Object.keys(attributes), "aria-activedescendant"]) {
        this.#before.set(name, this.#input.getAttribute(name));
      }
      for (const [name, value] of Object.entries(attributes)) this.#input.setAttribute(name, value);
    }

    #listen() {
      const on = (target, name, act, options = {}) =>
        target?.addEventListener(name, act, { ...options, signal: this.#life.signal });
      on(this.#input, "input", () => this.#typed());
      on(this.#input, "compositionstart", () => { this.#composing = true; this.#stop(); });
      on(this.#input, "compositionend", () => { this.#composing = false; this.#typed(); });
      on(this.#input, "keydown", (event) => this.#key(event));
      on(this.#input, "blur", () => this.close());
      on(this.#input.form, "submit", () => this.#accept(this.#input.value, null));
      on(document, "selectionchange", () => this.#moved());
      on(this.#pop, "mousedown", (event) => event.preventDefault()); // the input keeps the focus
      on(this.#list, "click", (event) => this.#choose(this.#place(event.target)));
      on(window, "online", () => { this.#until = 0; if (this.#failures && this.#focused) this.#ask(); });
      for (const name of ["resize", "scroll"]) {
        on(window, name, () => this.#settle(), { capture: true, passive: true });
        on(window.visualViewport, name, () => this.#settle(), { passive: true });
      }
    }

    get #open() {
      return !this.#pop.hidden;
    }

    get #focused() {
      return this.#input.getRootNode().activeElement === this.#input;
    }

    /** What stands before the cursor, and the cursor itself in code points; all of it where an input tells none. */
    get #prefix() {
      const value = wellFormed(this.#input.value);
      return value.slice(0, this.#input.selectionStart ?? value.length);
    }

    #typed() {
      if (this.#composing || this.#writing) return;
      const prefix = this.#prefix; // until the answer comes, those that still fit remain
      const typed = canonical(prefix);
      this.#results = this.#results.filter((one) => one.text.startsWith(typed) && one.text !== typed);
      this.#shown = prefix;
      this.#render(this.#failures ? this.#note.textContent : "");
      this.#ask();
    }

    #moved() {
      if (this.#open && !this.#composing && this.#focused && this.#prefix !== this.#shown) this.#ask();
    }

    #stop() {
      clearTimeout(this.#timer);
      this.#request?.abort();
      this.#request = null;
      this.#seq++;
    }

    async #ask(least = this.#options.least) {
      this.#stop();
      const seq = this.#seq;
      const prefix = this.#prefix;
      const query = wellFormed(this.#input.value);
      if ([...query].length < least) return this.close();
      const wait = this.#until - performance.now();
      if (wait > 0) return void (this.#timer = setTimeout(() => this.#ask(least), wait));
      const { user, context, limit, deadline, learn } = this.#options;
      const asked = { query, cursor: [...prefix].length, context, limit };
      if (user) asked.user = user;
      if (deadline) asked.deadline_ms = deadline;
      if (!learn) asked.learn = false;
      this.#request = new AbortController();
      try {
        const answer = await this.#client.ask("POST", "v1/complete", asked, { signal: this.#request.signal });
        if (seq !== this.#seq) return;
        this.#failures = 0;
        this.#show(answer, prefix);
      } catch (error) {
        if (seq === this.#seq) this.#fail(error, least);
      }
    }

    #show(answer, prefix) {
      this.#results = answer.results;
      this.#shown = prefix;
      this.#render(this.#options.words.degraded[answer.degraded] ?? "");
      this.#say(this.#options.words.count(answer.results.length));
      this.#options.onSuggestions?.(answer, prefix);
    }

    #fail(error, least) {
      if (!(error instanceof Problem)) throw error;
      const words = this.#options.words;
      let told = words.failed;
      if (error.passing) {
        const seconds = error.retry ?? Math.min(LONGEST_PAUSE, PAUSE * 2 ** this.#failures);
        this.#failures++;
        this.#until = performance.now() + 1000 * seconds;
        this.#timer = setTimeout(() => this.#ask(least), 1000 * seconds);
        const lost = navigator.onLine ? words.unreachable : words.offline;
        told = error.status === 0 ? lost : error.status === 429 ? words.many : words.busy;
      } else if (error.status === 401 || error.status === 403) told = words.key;
      this.#render(told);
      this.#say(told);
      this.#options.onError?.(error);
    }

    /** Draw the results and a note, or close the list if there is neither. */
    #render(note) {
      const id = this.#list.id;
      this.#list.replaceChildren(...this.#results.map((one, place) => this.#option(one, `${id}-${place}`)));
      this.#list.hidden = !this.#results.length;
      this.#note.textContent = note;
      this.#activate(-1);
      const open = Boolean(this.#results.length || note) && this.#focused;
      this.#input.setAttribute("aria-expanded", String(open && !this.#list.hidden));
      if (open === this.#open) return this.#settle();
      this.#pop.hidden = !open;
      if (this.#pop.popover) this.#pop.togglePopover(open);
      this.#settle();
      if (!open) this.#say("");
    }

    #option(one, id) {
      const words = this.#options.words;
      const [typed, rest] = split(one.text, this.#shown);
      const sources = one.source.split("+").map((name) =>
        element("span", { class: "fc-source", "data-source": name }, words.sources[name] ?? name));
      if (one.typos) sources.push(element("span", { class: "fc-typos" }, words.typos(one.typos)));
      return element("div", { class: "fc-option", role: "option", id, "aria-selected": "false" },
        element("span", { class: "fc-text", dir: "auto" },
          element("span", { class: "fc-typed" }, visible(typed)), element("span", { class: "fc-rest" }, visible(rest))),
        element("span", { class: "fc-from" }, element("span", { class: "fc-hidden" }, ` ${words.from} `), ...sources));
    }

    /** Put the list below the input, or above it where there is more room. */
    #settle() {
      if (!this.#open) return;
      const at = this.#input.getBoundingClientRect();
      const view = window.visualViewport;
      const height = view ? view.height + view.offsetTop : window.innerHeight;
      const [below, above] = [height - at.bottom - 16, at.top - 16];
      const up = below < LEAST_ROOM && above > below;
      const style = this.#pop.style;
      style.setProperty("--fc-font", getComputedStyle(this.#input).font);
      style.left = `${at.left}px`;
      style.width = `${at.width}px`;
      style.top = up ? "auto" : `${at.bottom + 6}px`;
      style.bottom = up ? `${window.innerHeight - at.top + 6}px` : "auto";
      style.maxHeight = `${Math.max(80, up ? above : below)}px`;
    }

    #say(text) {
      clearTimeout(this.#saying);
      this.#status.textContent = "";
      if (text) this.#saying = setTimeout(() => { this.#status.textContent = text; }, SAYING);
    }

    #place(target) {
      return [...this.#list.children].indexOf(target.closest('[role="option"]'));
    }

    #activate(place) {
      this.#list.children[this.#active]?.setAttribute("aria-selected", "false");
      this.#active = place;
      const option = this.#list.children[place];
      if (!option) return this.#input.removeAttribute("aria-activedescendant");
      option.setAttribute("aria-selected", "true");
      option.scrollIntoView({ block: "nearest" });
      this.#input.setAttribute("aria-activedescendant", option.id);
    }

    #key(event) {
      if (event.isComposing || event.keyCode === 229 || event.ctrlKey || event.metaKey) return;
      const act = this.#acts[event.key];
      if (act && act(event)) event.preventDefault();
    }

    /** What keys do; true if the browser is to do nothing more. */
    #acts = {
      ArrowDown: (event) => this.#step(1, event),
      ArrowUp: (event) => this.#step(-1, event),
      Home: () => this.#activate(-1),
      End: () => this.#activate(-1),
      ArrowLeft: () => this.#activate(-1),
      ArrowRight: () => this.#activate(-1),
      Escape: () => {
        if (!this.#open) return false;
        this.close();
        return true;
      },
      Tab: (event) => {
        if (event.shiftKey || this.#active < 0) return false;
        this.#write(this.#results[this.#active].text);
        this.#typed();
        return true;
      },
      Enter: () => {
        if (this.#active >= 0) return this.#choose(this.#active);
        if (!this.#input.form) this.#accept(this.#input.value, null);
        return false;
      },
    };

    /** To the next option or the one before; between the last and the first is the input itself. */
    #step(by, event) {
      const count = this.#list.children.length;
      if (!count || !this.#open) {
        if (by > 0) this.refresh();
        return by > 0;
      }
      if (event.altKey) return by < 0 && this.#acts.Escape();
      this.#activate(((this.#active + 1 + by + count + 1) % (count + 1)) - 1);
      return true;
    }

    /** Have a text in the input, and tell others as if it had been typed. */
    #write(text) {
      this.#writing = true;
      const value = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
      value.set.call(this.#input, text); // not the setter that a framework may have put before it
      this.#input.setSelectionRange?.(text.length, text.length);
      this.#input.dispatchEvent(new Event("input", { bubbles: true }));
      this.#writing = false;
    }

    #choose(place) {
      const one = this.#results[place];
      if (!one) return false;
      this.#write(one.text);
      if (this.#options.onAccept || !this.#input.form) this.#accept(one.text, one);
      else this.#input.form.requestSubmit();
      return true;
    }

    #accept(text, suggestion) {
      this.close();
      if (!text.trim()) return;
      this.#learn(wellFormed(text));
      this.#options.onAccept?.(text, suggestion);
    }

    #learn(text) {
      const { user, context, learn, onLearned, onError } = this.#options;
      if (!user || !learn) return;
      this.#accepts.send(this.#client, { user, text, context }).then(
        (answer) => onLearned?.(answer, text, user),
        (error) => onError?.(error, text));
    }
  }

  const BOXES = new WeakMap();

  /** Turn an input into the box. Options, all optional:

      url       where the service is; where this script is from unless given
      key       a key of the service that allows to complete and to learn
      user      who types; without it nobody is learned
      context   {column: value} of the model
      learn     false: a private session, as if nobody typed
      limit     suggestions at most (8); least: characters typed before it asks (1); deadline: milliseconds of a search
      words     what is said, to be replaced in other languages: see WORDS
      onAccept(text, suggestion)      a text was chosen (or entered: null); without it, the input's form is submitted
      onSuggestions(answer, prefix)   suggestions are shown
      onLearned(answer, text, user)   an accept is on disk, or was not kept: see answer.outcome
      onError(problem, text)          a request failed; of an accept with its text, after the last try

      Its `set(options)`, `refresh()`, `close()` and `detach()` are the box's to call. */
  function attach(input, options = {}) {
    if (!(input instanceof HTMLInputElement)) throw new TypeError("factorcell.attach wants an <input> element");
    BOXES.get(input)?.detach();
    const box = new Box(input, options);
    BOXES.set(input, box);
    return box;
  }

  /** A text without halves of characters, which no service could read. */
  function wellFormed(text) {
    return text.replace(/\p{Surrogate}/gu, "\uFFFD");
  }

  /** A text in which no character can hide, or change the order of those around it: such stand there by number. */
  function visible(text) {
    return text.replace(UNSEEN, (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);
  }

  /** A prefix in the form in which the service compares it: NFC, a run of white space one space, none before it. */
  function canonical(prefix) {
    return prefix.normalize("NFC").replace(/[\s\x1C-\x1F\x85]+/g, " ").replace(/^ /, "");
  }

  /** What of a suggestion is typed already, and the rest. */
  function split(text, typed) {
    const [all, start] = [[...text], [...canonical(typed)]];
    let at = 0;
    while (at < start.length && all[at] === start[at]) at++;
    return [all.slice(0, at).join(""), all.slice(at).join("")];
  }

  /** 32 random hexadecimal digits; randomUUID is not there on plain HTTP. */
  function newKey() {
    return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  function sleep(seconds) {
    return new Promise((done) => setTimeout(done, 1000 * seconds));
  }

  /** A new element with attributes and children; strings become text. */
  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  let sheet = null;

  /** Have our styles in a document or a shadow tree. */
  function adopt(root) {
    if (!sheet) {
      sheet = new CSSStyleSheet();
      sheet.replaceSync(STYLE);
    }
    if (!root.adoptedStyleSheets.includes(sheet)) root.adoptedStyleSheets = [...root.adoptedStyleSheets, sheet];
  }

  globalThis.factorcell = Object.freeze({ attach, Client, Problem, element, visible });
})();
