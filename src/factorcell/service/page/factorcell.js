/* A search box for any <input> of a site: it completes text while the user types, and learns the accepted texts.

     const box = factorcell.attach(document.querySelector("#search"), {
       url: "https://complete.example.org/", key: "…", user: "ann", onAccept: (text) => search(text),
     });
     box.set({ user: "bob" });
     box.detach();

   A completer of the npm package computes suggestions on the device of the user, and sends nothing:

     import { open } from "./runtime/index.js";
     factorcell.attach(document.querySelector("#search"), { completer: await open("./") });

   The input becomes an ARIA 1.2 combobox with a list of suggestions in the top layer. The script needs no build step
   and loads nothing else. It inserts all text as text nodes and its styles as a constructed style sheet; a strict
   content security policy allows both. The rules use :where() and have no specificity; therefore any rule of the site
   for .fc-pop, .fc-option, .fc-typed, .fc-rest, .fc-source or .fc-note overrides them. */
"use strict";

(() => {
  const script = document.currentScript;
  const SCRIPT_URL = script?.src ? new URL(".", script.src).href : `${location.origin}/`;
  const REQUEST_TIMEOUT = 10_000; // milliseconds
  const FIRST_PAUSE = 0.5; // seconds before the second attempt to send an accepted text; each pause is twice the last
  const MAX_ERRORS = 6; // unexpected errors of the service after which the attempts end
  const MAX_PAUSE = 30; // seconds
  const MAX_KEEPALIVE = 10_000; // characters of the longest text sent with `keepalive`, whose bytes browsers limit
  const ANNOUNCE_DELAY = 600; // milliseconds without a keystroke before a screen reader announces the number of results
  const MIN_WIDTH = 280; // pixels of the list below a narrow input
  const MIN_ROOM = 200; // pixels; with less room below the input, the list opens above it if there is more room above
  // Characters that show nothing; the service removes most of them.
  const IGNORABLE = /[\p{Default_Ignorable_Code_Point}\0-\x08\x0E-\x1B\x7F-\x84\x86-\x9F\uFFF9-\uFFFB]/gu;
  // Control characters except tabs and line ends, and characters that change the direction of text.
  const INVISIBLE = /[\0-\x08\v-\x1F\x7F-\x9F\u202A-\u202E\u2066-\u2069]/g;
  const TEMPORARY = new Set([0, 408, 429, 500, 502, 503, 504]); // statuses after which the same request may succeed

  /** All messages; the option `messages` of `attach` replaces those that it contains. */
  const MESSAGES = {
    list: "Suggestions",
    count: (number) => (number === 0 ? "No suggestions" : number === 1 ? "1 suggestion" : `${number} suggestions`),
    from: "from",
    sources: { model: "model", popularity: "popular", history: "your texts" },
    typos: (number) => (number === 1 ? "1 typing error corrected" : `${number} typing errors corrected`),
    degraded: {
      time: "The time limit was reached; better suggestions may exist.",
      store: "Your saved texts are unavailable for now; these suggestions are not personalized.",
    },
    offline: "You are offline. Your text stays in the box.",
    unreachable: "The service cannot be reached; retrying.",
    busy: "The service is busy; retrying shortly.",
    tooMany: "Too many requests; retrying shortly.",
    key: "The service requires a valid key.",
    failed: "No suggestions are available for this text.",
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

  /** A failed request, with its HTTP `status` (0: no response) and the seconds before a retry (`retry`, or null). */
  class Problem extends Error {
    constructor(status, message, retry = null) {
      super(message);
      this.name = "Problem";
      this.status = status;
      this.retry = retry;
    }

    /** Whether the same request may succeed later. */
    get isTemporary() {
      return TEMPORARY.has(this.status);
    }
  }

  /** Sends requests to the service at `url`, with the key if there is one. All methods throw a `Problem` if the request
      fails, or an `AbortError` if `signal` aborts it. */
  class Client {
    constructor({ url = SCRIPT_URL, key = null } = {}) {
      this.url = new URL(url, location.href).href.replace(/\/?$/, "/");
      this.key = key;
    }

    complete(request, signal = null) {
      return this.#ask("POST", "v1/complete", request, { signal });
    }

    accept(request) {
      return this.#ask("POST", "v1/accept", request, { keepalive: request.text.length < MAX_KEEPALIVE });
    }

    /** Return whether the service may have a record of the user. A request for a record that does not exist would be an
        error in the console of the browser; the response with suggestions names the version of the record. */
    async hasRecord(user) {
      const answer = await this.complete({ query: "", user, limit: 1 });
      return (answer.user_version ?? null) !== null || answer.degraded === "store";
    }

    show(user) {
      return this.#askAbout(user, "GET");
    }

    forget(user, text) {
      return this.#askAbout(user, "POST", "/forget", { text });
    }

    undo(user) {
      return this.#askAbout(user, "POST", "/undo");
    }

    pause(user, isPaused) {
      return this.#askAbout(user, "POST", isPaused ? "/pause" : "/resume");
    }

    delete(user) {
      return this.#askAbout(user, "DELETE");
    }

    #askAbout(user, method, path = "", body = undefined) {
      return this.#ask(method, `v1/users/${encodeURIComponent(user)}${path}`, body);
    }

    /** Send `body` as JSON to a path such as "v1/accept"; return the parsed response, or null if it is empty. */
    async #ask(method, path, body, { signal = null, keepalive = false } = {}) {
      const headers = { Accept: "application/json" };
      if (body !== undefined) headers["Content-Type"] = "application/json";
      if (this.key) headers.Authorization = `Bearer ${encodeURIComponent(this.key)}`;
      const timeoutSignal = AbortSignal.timeout(REQUEST_TIMEOUT);
      try {
        const answer = await fetch(this.url + path, {
          method, headers, body: JSON.stringify(body), keepalive, credentials: "same-origin", cache: "no-store",
          referrerPolicy: "no-referrer", signal: signal ? AbortSignal.any([signal, timeoutSignal]) : timeoutSignal,
        });
        const text = await answer.text();
        if (!answer.ok) throw readProblem(answer, text);
        return text ? JSON.parse(text) : null;
      } catch (error) {
        if (error instanceof Problem || signal?.aborted) throw error;
        throw new Problem(0, navigator.onLine ? "no response" : "offline");
      }
    }
  }

  /** Answers the requests of `Client` with a completer of the npm package, which has one user and sends nothing. All
      methods throw a `Problem` if the completer fails. */
  class DeviceClient {
    #completer;

    constructor(completer) {
      this.#completer = completer;
    }

    async complete({ query, limit, deadline_ms: deadline }) {
      const suggestions = await this.#call("complete", query, { count: limit, deadline });
      return {
        results: suggestions.map(({ text, logProbability, sources }) =>
          ({ text, source: sources.join("+"), score: logProbability, typos: 0 })),
      };
    }

    accept({ text }) {
      return this.#call("accept", text);
    }

    hasRecord() {
      return true;
    }

    async show() {
      return { ...await this.#call("export"), learned: true };
    }

    async forget(user, text) {
      return { removed: await this.#call("forget", text) };
    }

    async undo() {
      return { removed: await this.#call("undo") };
    }

    async pause(user, isPaused) {
      await this.#call("pause", isPaused);
      return { paused: isPaused };
    }

    delete() {
      return this.#call("delete");
    }

    import(exported) {
      return this.#call("import", exported);
    }

    async #call(method, ...values) {
      try {
        return await this.#completer[method](...values);
      } catch (error) {
        throw new Problem(422, error.message);
      }
    }
  }

  /** Return the client of a completer on the device or, without one, of the service. */
  function createClient({ completer = null, ...options }) {
    return completer ? new DeviceClient(completer) : new Client(options);
  }

  /** Return the problem that a response describes (RFC 9457). */
  function readProblem(answer, text) {
    const retryAfter = answer.headers.get("Retry-After");
    let detail = answer.statusText;
    try {
      detail = JSON.parse(text).detail ?? detail;
    } catch {
      // A proxy answered in place of the service.
    }
    const retrySeconds = /^\d+$/.test(retryAfter ?? "") ? Number(retryAfter) : null; // null also for a date
    return new Problem(answer.status, detail, retrySeconds);
  }

  /** Sends accepted texts one at a time until the service answers; idempotency keys make each text count once. */
  class AcceptQueue {
    #lastResponse = Promise.resolve(); // fulfilled when the text queued last has been sent or has failed

    /** Send an accepted text ({user, text, context}) and return the response. Throws the last attempt's `Problem`. */
    send(client, acceptedText) {
      const body = { ...acceptedText, idempotency_key: randomHexDigits() };
      const response = this.#lastResponse.then(() => this.#sendWithRetries(client, body));
      this.#lastResponse = response.catch(() => null);
      return response;
    }

    async #sendWithRetries(client, body) {
      for (let attempt = 1, errors = 0; ; attempt++) {
        try {
          return await client.accept(body);
        } catch (error) {
          if (!error.isTemporary || (error.status === 500 && ++errors === MAX_ERRORS)) throw error;
          await sleep(Math.min(MAX_PAUSE, Math.max(error.retry ?? 0, FIRST_PAUSE * 2 ** (attempt - 1))));
        }
      }
    }
  }

  /** An input with suggestions; `attach` describes the options. */
  class Box {
    #input; #options; #client; #popup; #list; #note; #status;
    #acceptQueue = new AcceptQueue();
    #listeners = new AbortController(); // removes the event listeners
    #originalAttributes = new Map(); // attributes of the input before the box changed them
    #sequence = 0; // number of the newest request; other responses are dropped
    #requestController = null;
    #results = [];
    #shownPrefix = ""; // the text before the cursor that the results belong to
    #activeIndex = -1; // index of the highlighted result, or -1
    #retryAt = 0; // `performance.now()` from which the next request is allowed
    #failureCount = 0; // failed requests since the last response
    #requestTimer = 0;
    #announcementTimer = 0;
    #isComposing = false;
    #isWriting = false; // whether the box itself changes the input

    constructor(input, options) {
      this.#input = input;
      this.#options = { limit: 8, minLength: 1, learn: true, context: {}, ...options };
      this.#options.messages = { ...MESSAGES, ...options.messages };
      this.#client = createClient(this.#options);
      this.#build();
      this.#listen();
    }

    /** Change options, such as the user; drop shown results and running requests. */
    set(options = {}) {
      Object.assign(this.#options, options, { messages: { ...this.#options.messages, ...options.messages } });
      this.#client = createClient(this.#options);
      this.#retryAt = this.#failureCount = 0;
      this.close();
    }

    /** Request suggestions for the current text of the input. */
    refresh() {
      return this.#requestSuggestions(0);
    }

    /** Close the list and drop running requests. */
    close() {
      this.#cancel();
      this.#results = [];
      this.#render("");
    }

    /** Remove the list and the listeners, and restore the attributes of the input. */
    detach() {
      this.close();
      this.#listeners.abort();
      clearTimeout(this.#announcementTimer);
      for (const [name, value] of this.#originalAttributes) {
        if (value === null) this.#input.removeAttribute(name);
        else this.#input.setAttribute(name, value);
      }
      this.#popup.remove();
      this.#status.remove();
      BOXES.delete(this.#input);
    }

    #build() {
      const { messages } = this.#options;
      const id = `fc-${randomHexDigits().slice(0, 8)}`;
      adoptStyles(this.#input.getRootNode());
      this.#list = element("div", { role: "listbox", id, "aria-label": messages.list });
      this.#note = element("div", { class: "fc-note", "aria-hidden": "true" });
      this.#popup = element("div", { class: "fc-pop", hidden: "" }, this.#list, this.#note);
      if (this.#popup.showPopover) this.#popup.popover = "manual";
      this.#status = element("div", { class: "fc-hidden", role: "status", "aria-live": "polite" });
      this.#input.after(this.#popup, this.#status);
      const attributes = {
        role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": id,
        "aria-haspopup": "listbox", autocomplete: "off", autocapitalize: "none", autocorrect: "off",
        spellcheck: "false",
      };
      for (const name of [...Object.keys(attributes), "aria-activedescendant"]) {
        this.#originalAttributes.set(name, this.#input.getAttribute(name));
      }
      for (const [name, value] of Object.entries(attributes)) this.#input.setAttribute(name, value);
    }

    #listen() {
      const on = (target, eventName, listener, options = {}) =>
        target?.addEventListener(eventName, listener, { ...options, signal: this.#listeners.signal });
      on(this.#input, "input", () => this.#onInput());
      on(this.#input, "compositionstart", () => { this.#isComposing = true; this.#cancel(); });
      on(this.#input, "compositionend", () => { this.#isComposing = false; this.#onInput(); });
      on(this.#input, "keydown", (event) => this.#onKey(event));
      on(this.#input, "blur", () => this.close());
      on(this.#input.form, "submit", () => this.#accept(this.#input.value, null));
      on(document, "selectionchange", () => this.#onCursorMove());
      on(this.#popup, "mousedown", (event) => event.preventDefault()); // the input keeps the focus
      on(this.#list, "click", (event) => this.#choose(this.#indexOf(event.target)));
      on(window, "online", () => this.#onOnline());
      for (const eventName of ["resize", "scroll"]) {
        on(window, eventName, () => this.#position(), { capture: true, passive: true });
        on(window.visualViewport, eventName, () => this.#position(), { passive: true });
      }
    }

    get #isOpen() {
      return !this.#popup.hidden;
    }

    get #hasFocus() {
      return this.#input.getRootNode().activeElement === this.#input;
    }

    /** The text before the cursor, or the whole text if the type of the input has no cursor. */
    get #prefix() {
      const value = toWellFormed(this.#input.value);
      return value.slice(0, this.#input.selectionStart ?? value.length);
    }

    #onInput() {
      if (this.#isComposing || this.#isWriting) return;
      const prefix = this.#prefix;
      const typedText = canonicalize(prefix);
      // Results that still fit stay visible until the response arrives.
      this.#results = this.#results.filter(({ text }) => {
        const shownText = canonicalize(text);
        return shownText.startsWith(typedText) && shownText !== typedText;
      });
      this.#shownPrefix = prefix;
      this.#render(this.#failureCount ? this.#note.textContent : "");
      this.#requestSuggestions();
    }

    #onCursorMove() {
      if (!this.#isOpen || this.#isComposing || !this.#hasFocus) return;
      if (this.#prefix !== this.#shownPrefix) this.#requestSuggestions();
    }

    #onOnline() {
      this.#retryAt = 0;
      if (this.#failureCount && this.#hasFocus) this.#requestSuggestions();
    }

    #cancel() {
      clearTimeout(this.#requestTimer);
      this.#requestController?.abort();
      this.#requestController = null;
      this.#sequence++;
    }

    async #requestSuggestions(minLength = this.#options.minLength) {
      this.#cancel();
      const sequence = this.#sequence;
      const prefix = this.#prefix;
      if ([...toWellFormed(this.#input.value)].length < minLength) return this.close();
      const wait = this.#retryAt - performance.now(); // milliseconds
      if (wait > 0) {
        this.#requestTimer = setTimeout(() => this.#requestSuggestions(minLength), wait);
        return;
      }
      const { user, context, limit, deadline, learn } = this.#options;
      const body = { query: prefix, context, limit };
      if (user) body.user = user;
      if (deadline) body.deadline_ms = deadline;
      if (!learn) body.learn = false;
      this.#requestController = new AbortController();
      try {
        const answer = await this.#client.complete(body, this.#requestController.signal);
        if (sequence !== this.#sequence) return;
        this.#failureCount = 0;
        this.#show(answer, prefix);
      } catch (error) {
        if (sequence === this.#sequence) this.#handleFailure(error, minLength);
      }
    }

    #show(answer, prefix) {
      this.#results = answer.results;
      this.#shownPrefix = prefix;
      this.#render(this.#options.messages.degraded[answer.degraded] ?? "");
      this.#announce(this.#options.messages.count(answer.results.length));
      this.#options.onSuggestions?.(answer, prefix);
    }

    #handleFailure(error, minLength) {
      if (!(error instanceof Problem)) throw error;
      const { messages } = this.#options;
      let note = messages.failed;
      if (error.isTemporary) {
        const seconds = error.retry ?? Math.min(MAX_PAUSE, FIRST_PAUSE * 2 ** this.#failureCount);
        this.#failureCount++;
        this.#retryAt = performance.now() + 1000 * seconds;
        this.#requestTimer = setTimeout(() => this.#requestSuggestions(minLength), 1000 * seconds);
        if (error.status === 0) note = navigator.onLine ? messages.unreachable : messages.offline;
        else note = error.status === 429 ? messages.tooMany : messages.busy;
      } else if (error.status === 401 || error.status === 403) note = messages.key;
      this.#render(note);
      this.#announce(note);
      this.#options.onError?.(error);
    }

    /** Draw the results and a note, or close the list if there is neither. */
    #render(note) {
      const id = this.#list.id;
      this.#list.replaceChildren(...this.#results.map((result, index) => this.#option(result, `${id}-${index}`)));
      this.#list.hidden = !this.#results.length;
      this.#note.textContent = note;
      this.#activate(-1);
      const mustBeOpen = Boolean(this.#results.length || note) && this.#hasFocus;
      this.#input.setAttribute("aria-expanded", String(mustBeOpen && !this.#list.hidden));
      if (mustBeOpen === this.#isOpen) return this.#position();
      this.#popup.hidden = !mustBeOpen;
      if (this.#popup.popover) this.#popup.togglePopover(mustBeOpen);
      this.#position();
      if (!mustBeOpen) this.#announce("");
    }

    #option(result, id) {
      const { messages } = this.#options;
      const [typed, rest] = splitAtPrefix(result.text, this.#shownPrefix);
      const shownSources = this.#options.sources ? result.source.split("+") : [];
      const labels = shownSources.map((source) =>
        element("span", { class: "fc-source", "data-source": source }, messages.sources[source] ?? source));
      if (result.typos) labels.push(element("span", { class: "fc-typos" }, messages.typos(result.typos)));
      return element("div", { class: "fc-option", role: "option", id, "aria-selected": "false" },
        element("span", { class: "fc-text", dir: "auto" },
          element("span", { class: "fc-typed" }, escapeInvisible(typed)),
          element("span", { class: "fc-rest" }, escapeInvisible(rest))),
        ...(labels.length ? [element("span", { class: "fc-from" },
          element("span", { class: "fc-hidden" }, ` ${messages.from} `), ...labels)] : []));
    }

    /** Place the list below the input, or above the input if there is more room. */
    #position() {
      if (!this.#isOpen) return;
      const bounds = this.#input.getBoundingClientRect();
      const viewport = window.visualViewport;
      const viewportBottom = viewport ? viewport.height + viewport.offsetTop : window.innerHeight;
      const roomBelow = viewportBottom - bounds.bottom - 16;
      const roomAbove = bounds.top - 16;
      const opensAbove = roomBelow < MIN_ROOM && roomAbove > roomBelow;
      const style = this.#popup.style;
      style.setProperty("--fc-font", getComputedStyle(this.#input).font);
      const width = Math.max(bounds.width, Math.min(MIN_WIDTH, window.innerWidth - 16));
      style.left = `${Math.max(0, Math.min(bounds.left, window.innerWidth - width - 8))}px`;
      style.width = `${width}px`;
      style.top = opensAbove ? "auto" : `${bounds.bottom + 6}px`;
      style.bottom = opensAbove ? `${window.innerHeight - bounds.top + 6}px` : "auto";
      style.maxHeight = `${Math.max(80, opensAbove ? roomAbove : roomBelow)}px`;
    }

    /** Let screen readers announce a text. */
    #announce(text) {
      clearTimeout(this.#announcementTimer);
      this.#status.textContent = "";
      if (text) this.#announcementTimer = setTimeout(() => { this.#status.textContent = text; }, ANNOUNCE_DELAY);
    }

    #indexOf(target) {
      return [...this.#list.children].indexOf(target.closest('[role="option"]'));
    }

    #activate(index) {
      this.#list.children[this.#activeIndex]?.setAttribute("aria-selected", "false");
      this.#activeIndex = index;
      const option = this.#list.children[index];
      if (!option) return this.#input.removeAttribute("aria-activedescendant");
      option.setAttribute("aria-selected", "true");
      option.scrollIntoView({ block: "nearest" });
      this.#input.setAttribute("aria-activedescendant", option.id);
    }

    #onKey(event) {
      const isComposing = event.isComposing || event.keyCode === 229; // 229: an input method handles the key
      if (isComposing || event.ctrlKey || event.metaKey) return;
      const action = this.#keyActions[event.key];
      if (action && action(event)) event.preventDefault();
    }

    /** Actions by key; an action returns true to prevent the default action of the browser. */
    #keyActions = {
      ArrowDown: (event) => this.#step(1, event),
      ArrowUp: (event) => this.#step(-1, event),
      Home: () => this.#activate(-1),
      End: () => this.#activate(-1),
      ArrowLeft: () => this.#activate(-1),
      ArrowRight: () => this.#activate(-1),
      Escape: () => {
        const wasOpen = this.#isOpen;
        this.close(); // also drops a running request, whose response would open the list
        return wasOpen;
      },
      Tab: (event) => {
        if (event.shiftKey || this.#activeIndex < 0) return false;
        this.#write(this.#results[this.#activeIndex].text);
        this.#onInput();
        return true;
      },
      Enter: () => {
        if (this.#activeIndex >= 0) return this.#choose(this.#activeIndex);
        if (!this.#input.form) this.#accept(this.#input.value, null);
        return false;
      },
    };

    /** Move by 1 or -1 in the cycle of the options and the input, which comes between the last and the first option. */
    #step(offset, event) {
      const count = this.#list.children.length;
      if (!count || !this.#isOpen) {
        if (offset > 0) this.refresh();
        return offset > 0;
      }
      if (event.altKey) return offset < 0 && this.#keyActions.Escape();
      const places = count + 1; // place 0 is the input, with the index -1; place 1 is the option with the index 0
      const place = (this.#activeIndex + 1 + offset + places) % places;
      this.#activate(place - 1);
      return true;
    }

    /** Set the text of the input and dispatch an `input` event as if the user had typed it. */
    #write(text) {
      this.#isWriting = true;
      const valueProperty = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
      valueProperty.set.call(this.#input, text); // bypasses the setter that a framework may have installed
      this.#input.setSelectionRange?.(text.length, text.length);
      this.#input.dispatchEvent(new Event("input", { bubbles: true }));
      this.#isWriting = false;
    }

    #choose(index) {
      const result = this.#results[index];
      if (!result) return false;
      this.#write(result.text);
      if (this.#options.onAccept || !this.#input.form) this.#accept(result.text, result);
      else this.#input.form.requestSubmit();
      return true;
    }

    #accept(text, suggestion) {
      this.close();
      if (!text.trim()) return;
      this.#learn(toWellFormed(text));
      this.#options.onAccept?.(text, suggestion);
    }

    #learn(text) {
      const { user, completer, context, learn, onLearned, onError } = this.#options;
      if (!(user || completer) || !learn) return;
      this.#acceptQueue.send(this.#client, { user, text, context }).then(
        (answer) => onLearned?.(answer, text, user),
        (error) => onError?.(error, text));
    }
  }

  const BOXES = new WeakMap();

  /** Attach the box to an input. All options are optional:

      completer  a completer of the npm package, which takes the place of the service; the next three are ignored
      url        address of the service; by default the folder of this script
      key        a key with the scopes `complete` and `learn`
      user       id of the user; without it nothing is learned
      context    {column: value}, the context values of the model
      learn      false for a private session: the user gets suggestions as an unknown user, and nothing is learned
                 (a completer still suggests what it has learned)
      limit      maximum number of suggestions (8)
      minLength  typed characters before the first request (1)
      deadline   milliseconds for a completion; by default the deadline of the server
      messages   replacements for MESSAGES, for example in another language
      onAccept(text, suggestion)      the user chose a suggestion, or entered a text (`suggestion` is null); without
                                      this option, choosing a suggestion submits the form of the input
      onSuggestions(answer, prefix)   suggestions are shown
      onLearned(answer, text, user)   the service answered an accepted text; `answer.outcome` says whether it is saved
      onError(problem, text)          a request failed; `text` is the accepted text if the service refused it

      Returns the box, with the methods `set(options)`, `refresh()`, `close()` and `detach()`. */
  function attach(input, options = {}) {
    if (!(input instanceof HTMLInputElement)) {
      throw new TypeError("factorcell.attach: expected an <input> element");
    }
    BOXES.get(input)?.detach();
    const box = new Box(input, options);
    BOXES.set(input, box);
    return box;
  }

  /** Replace lone surrogates, which are not valid Unicode. */
  function toWellFormed(text) {
    return text.replace(/\p{Surrogate}/gu, "\uFFFD");
  }

  /** Replace invisible characters, and characters that change the direction of text, with escape sequences. */
  function escapeInvisible(text) {
    return text.replace(INVISIBLE, (match) => `\\u${match.codePointAt(0).toString(16).padStart(4, "0")}`);
  }

  /** Return the form in which prefixes and suggestions are compared: NFC, lower case (most models suggest texts in
      lower case), no ignorable characters, single spaces. */
  function canonicalize(text) {
    return text.normalize("NFC").toLowerCase().replace(IGNORABLE, "").normalize("NFC")
      .replace(/[\s\x1C-\x1F\x85]+/g, " ").replace(/^ /, "");
  }

  /** Split a suggestion into its longest common prefix with the typed prefix, and the rest. */
  function splitAtPrefix(text, prefix) {
    const prefixCharacters = [...canonicalize(prefix)];
    let matchedCount = 0;
    let length = 0;
    for (const character of text) {
      if (character.replace(IGNORABLE, "") && character.toLowerCase() !== prefixCharacters[matchedCount++]) break;
      length += character.length;
    }
    return [text.slice(0, length), text.slice(length)];
  }

  /** Return 32 random hexadecimal digits (`randomUUID` does not exist on plain HTTP). */
  function randomHexDigits() {
    return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  function sleep(seconds) {
    return new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  }

  /** Create an element with attributes and children; strings become text nodes. */
  function element(name, attributes, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  let styleSheet = null;

  /** Add the styles to a document or a shadow tree. */
  function adoptStyles(root) {
    if (!styleSheet) {
      styleSheet = new CSSStyleSheet();
      styleSheet.replaceSync(STYLE);
    }
    const styleSheets = root.adoptedStyleSheets;
    if (!styleSheets.includes(styleSheet)) root.adoptedStyleSheets = [...styleSheets, styleSheet];
  }

  globalThis.factorcell = Object.freeze({ attach, createClient, Problem, element, escapeInvisible });
})();
