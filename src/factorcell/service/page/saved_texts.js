/* The panel with the saved texts of a user: it deletes one text or all, exports them, and pauses learning. */
"use strict";

const savedTexts = (() => {
  const MAX_ROWS = 8; // texts shown before "Show all"
  const POLL_INTERVALS = [200, 400, 800, 1600, 3200]; // milliseconds between checks whether all texts are learned
  const MAX_QUOTE = 60; // characters of a text quoted in a sentence
  const { element, visible } = factorcell;
  const $ = (id) => document.getElementById(id);

  /** The panel. It passes notices to `notify(content)` and failures to `onError(error)`, and calls `onChange()` when
      suggestions may have changed. */
  class Panel {
    #client = null;
    #user = null;
    #request = 0; // number of the newest refresh; results of older ones are dropped
    #showsAll = false;
    #profile; // null: the service has no record; undefined: not loaded yet
    #callbacks;
    isStale = false; // whether the last refresh failed

    constructor(callbacks) {
      this.#callbacks = callbacks;
      $("undo").onclick = () => this.#run(() => this.undo());
      $("pause").onclick = () => this.#run(() => this.#pause());
      $("export").onclick = () => this.#run(() => this.#export());
      $("delete").onclick = () => $("confirm-delete").showModal();
      $("confirm-delete").onclose = () => {
        if ($("confirm-delete").returnValue === "delete") this.#run(() => this.#delete());
      };
      $("more").onclick = () => {
        this.#showsAll = !this.#showsAll;
        this.#draw();
      };
    }

    /** Show the saved texts of another user, or of no user if `user` is null. */
    set(client, user) {
      this.#client = client;
      this.#user = user;
      this.#showsAll = false;
      this.#profile = undefined;
      this.isStale = false;
      $("panel-user").textContent = $("delete-user").textContent = user ?? "no user";
      this.#draw();
      return this.refresh();
    }

    /** Load and show the saved texts, and wait some seconds for the model to learn them. Return false if loading failed
        or another refresh began meanwhile. */
    async refresh() {
      const request = ++this.#request;
      if (this.#user === null) return true;
      for (const wait of [...POLL_INTERVALS, null]) {
        let profile = null;
        try {
          profile = await this.#ask("GET", "");
        } catch (error) {
          if (request !== this.#request) return false;
          if (error.status !== 404) {
            this.isStale = true;
            this.#draw();
            this.#callbacks.onError(error);
            return false;
          }
        }
        if (request !== this.#request) return false;
        this.#profile = profile;
        this.isStale = false;
        this.#draw();
        if (wait === null || !profile || profile.learned) break;
        await new Promise((resolve) => setTimeout(resolve, wait));
        if (request !== this.#request) return false;
      }
      return true;
    }

    /** Delete the newest text of the user. */
    async undo() {
      const { removed } = await this.#ask("POST", "/undo");
      await this.#afterRemoval(removed ? "The last text was forgotten." : "There is nothing to undo.");
    }

    async #forget(text) {
      const index = [...$("texts").querySelectorAll("button")].indexOf(document.activeElement);
      await this.#ask("POST", "/forget", { text });
      await this.#afterRemoval(["“", element("bdi", {}, quote(text)), "” was forgotten."]);
      const buttons = $("texts").querySelectorAll("button");
      (buttons[Math.min(index, buttons.length - 1)] ?? $("saved-title")).focus();
    }

    async #afterRemoval(notice) {
      this.#callbacks.notify(notice);
      if (await this.refresh()) this.#callbacks.onChange();
    }

    async #pause() {
      const { paused } = await this.#ask("POST", this.#profile?.paused ? "/resume" : "/pause");
      this.#callbacks.notify(paused
        ? "Learning is paused: no text is learned or saved until you resume." : "Learning has resumed.");
      await this.refresh();
    }

    async #delete() {
      await this.#ask("DELETE", "");
      await this.#afterRemoval(["All data of ", element("bdi", {}, this.#user), " was deleted."]);
      $("saved-title").focus();
    }

    async #export() {
      const values = await this.#ask("GET", "/export");
      const content = new Blob([`${JSON.stringify(values, null, 2)}\n`], { type: "application/json" });
      const address = URL.createObjectURL(content);
      element("a", { href: address, download: `${this.#user.replace(/[^\p{L}\p{N}_-]+/gu, "_")}.json` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 1000);
    }

    #ask(method, path, body) {
      return this.#client.ask(method, `v1/users/${encodeURIComponent(this.#user)}${path}`, body);
    }

    async #run(action) {
      try {
        await action();
      } catch (error) {
        this.#callbacks.onError(error);
      }
    }

    #draw() {
      const profile = this.#profile;
      const rows = groupTexts(profile?.texts ?? []);
      $("summary").textContent = this.isStale && !profile
        ? "The saved texts cannot be loaded now." : summary(this.#user, profile);
      $("tools").hidden = !profile;
      $("undo").disabled = !rows.length;
      $("pause").textContent = profile?.paused ? "Resume" : "Pause";
      $("pause").setAttribute("aria-pressed", String(Boolean(profile?.paused)));
      const shown = this.#showsAll ? rows : rows.slice(0, MAX_ROWS);
      $("texts").replaceChildren(...shown.map((row) => this.#row(row)));
      $("more").hidden = rows.length <= MAX_ROWS;
      $("more").textContent = this.#showsAll ? "Show fewer" : `Show all ${rows.length}`;
    }

    #row({ text, count, time }) {
      const forget = element("button", { class: "quiet", "aria-label": `Forget “${quote(text)}”` }, "Forget");
      forget.type = "button";
      forget.onclick = () => this.#run(() => this.#forget(text));
      const when = new Date(1000 * time);
      return element("li", {},
        element("span", { class: "text", dir: "auto" }, visible(text)),
        element("time", { class: "count", datetime: when.toISOString(), title: when.toLocaleString() },
          count > 1 ? `${count} times` : ""),
        forget);
    }
  }

  /** Merge equal texts, newest first, and count how often each was accepted. */
  function groupTexts(texts) {
    const rows = new Map();
    for (const { text, time } of texts.toReversed()) {
      const row = rows.get(text) ?? { text, time, count: 0 };
      row.count++;
      rows.set(text, row);
    }
    return [...rows.values()];
  }

  /** Shorten a text for use in a sentence. */
  function quote(text) {
    const characters = [...text];
    return visible(characters.length > MAX_QUOTE ? `${characters.slice(0, MAX_QUOTE - 1).join("")}…` : text);
  }

  function summary(user, profile) {
    if (user === null) return "No user is selected: suggestions are the same for everyone.";
    if (profile === undefined) return "\u00a0"; // reserves the height of a line
    if (!profile) return "No texts yet. Texts that you accept are saved here, and you can delete any of them.";
    const count = profile.texts.length;
    const saved = count === 1 ? "1 text is saved." : `${count} texts are saved.`;
    if (profile.paused) return `${saved} Learning is paused.`;
    return profile.learned ? saved : `${saved} The model is still learning…`;
  }

  return { Panel };
})();
