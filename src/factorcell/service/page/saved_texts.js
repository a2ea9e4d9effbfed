/* The panel with the saved texts of a user: it deletes one text or all, exports and imports, and pauses learning. */
"use strict";

const savedTexts = (() => {
  const MAX_ROWS = 8; // texts shown before "Show all"
  const POLL_INTERVALS = [200, 400, 800, 1600, 3200]; // milliseconds between checks whether all texts are learned
  const MAX_QUOTE = 60; // characters of a text quoted in a sentence
  const { element, escapeInvisible, Problem } = factorcell;
  const $ = (id) => document.getElementById(id);

  /** The panel. It passes notices to `notify(content)` and failures to `onError(error)`, and calls `onChange()` when
      suggestions may have changed, or `onDelete()` when all data of the user was deleted. */
  class Panel {
    #client = null;
    #user = null;
    #refreshNumber = 0; // number of the newest refresh; results of older ones are dropped
    #showsAll = false;
    #profile; // null: the service has no record; undefined: not loaded yet
    #callbacks;
    isStale = false; // whether the last refresh failed

    constructor(callbacks) {
      this.#callbacks = callbacks;
      $("undo").onclick = () => this.#runAction(() => this.undo());
      $("pause").onclick = () => this.#runAction(() => this.#pause());
      $("export").onclick = () => this.#runAction(() => this.#export());
      $("import").onclick = () => $("import-file").click();
      $("import-file").onchange = () => this.#runAction(() => this.#import());
      $("delete").onclick = () => {
        $("confirm-delete").returnValue = ""; // Escape keeps the value of the last time
        $("confirm-delete").showModal();
      };
      $("confirm-delete").onclose = () => {
        if ($("confirm-delete").returnValue === "delete") this.#runAction(() => this.#delete());
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
      const number = ++this.#refreshNumber;
      if (this.#user === null) return true;
      for (const pause of [...POLL_INTERVALS, null]) { // null: no further check
        let profile = null;
        try {
          profile = await this.#load();
        } catch (error) {
          if (number !== this.#refreshNumber) return false;
          if (error.status !== 404) { // 404: the service has no record of the user
            this.isStale = true;
            this.#draw();
            this.#callbacks.onError(error);
            return false;
          }
        }
        if (number !== this.#refreshNumber) return false;
        this.#profile = profile;
        this.isStale = false;
        this.#draw();
        if (pause === null || !profile || profile.learned) break;
        await new Promise((resolve) => setTimeout(resolve, pause));
        if (number !== this.#refreshNumber) return false;
      }
      return true;
    }

    /** The number of saved texts. */
    get count() {
      return this.#profile?.texts.length ?? 0;
    }

    /** Load the user's record; return null if there is none. */
    async #load() {
      if (!this.#profile && !await this.#client.hasRecord(this.#user)) return null;
      return this.#client.show(this.#user);
    }

    /** Delete the newest text of the user. */
    async undo() {
      const { removed } = await this.#client.undo(this.#user);
      await this.#afterRemoval(removed ? "The last text was forgotten." : "There is nothing to undo.");
    }

    async #forget(text) {
      const index = [...$("texts").querySelectorAll("button")].indexOf(document.activeElement);
      await this.#client.forget(this.#user, text);
      await this.#afterRemoval(["“", element("bdi", {}, shorten(text)), "” was forgotten."]);
      const buttons = $("texts").querySelectorAll("button");
      (buttons[Math.min(index, buttons.length - 1)] ?? $("saved-title")).focus();
    }

    async #afterRemoval(notice) {
      this.#callbacks.notify(notice);
      if (await this.refresh()) this.#callbacks.onChange();
    }

    async #pause() {
      const { paused } = await this.#client.pause(this.#user, !this.#profile?.paused);
      this.#callbacks.notify(paused
        ? "Learning is paused: no text is learned or saved until you resume." : "Learning has resumed.");
      await this.refresh();
    }

    async #delete() {
      await this.#client.delete(this.#user);
      this.#profile = null;
      this.#callbacks.onDelete();
      this.#callbacks.notify(["All data of ", element("bdi", {}, this.#user), " was deleted."]);
      await this.refresh();
      $("saved-title").focus();
    }

    async #export() {
      const values = await this.#client.show(this.#user);
      const content = new Blob([`${JSON.stringify(values)}\n`], { type: "application/json" });
      const url = URL.createObjectURL(content);
      const fileName = `${this.#user.replace(/[^\p{L}\p{N}_-]+/gu, "_")}.json`;
      element("a", { href: url, download: fileName }).click();
      setTimeout(() => URL.revokeObjectURL(url), 1000);
    }

    /** Replace the texts of a device by those of a file that `#export` of a device or a service wrote. */
    async #import() {
      const [file] = $("import-file").files;
      if (!file) return;
      const content = await file.text();
      $("import-file").value = ""; // the same file can be selected again
      let exported;
      try {
        exported = JSON.parse(content);
      } catch {
        throw new Problem(422, `${file.name}: expected JSON`);
      }
      await this.#client.import(exported);
      this.#callbacks.notify([element("bdi", {}, file.name), " was imported."]);
      if (await this.refresh()) this.#callbacks.onChange();
    }

    async #runAction(action) {
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
        ? "The saved texts cannot be loaded now." : summarize(this.#user, profile);
      $("tools").hidden = !profile;
      $("undo").disabled = !rows.length;
      $("import").hidden = !this.#client.import; // the service imports only by the API
      $("pause").textContent = profile?.paused ? "Resume" : "Pause";
      $("pause").setAttribute("aria-pressed", String(Boolean(profile?.paused)));
      const shownRows = this.#showsAll ? rows : rows.slice(0, MAX_ROWS);
      $("texts").replaceChildren(...shownRows.map((row) => this.#rowElement(row)));
      $("more").hidden = rows.length <= MAX_ROWS;
      $("more").textContent = this.#showsAll ? "Show fewer" : `Show all ${rows.length}`;
    }

    #rowElement({ text, count, time }) {
      const forgetButton = element("button", { class: "quiet", "aria-label": `Forget “${shorten(text)}”` }, "Forget");
      forgetButton.type = "button";
      forgetButton.onclick = () => this.#runAction(() => this.#forget(text));
      const acceptedAt = new Date(1000 * time);
      return element("li", {},
        element("span", { class: "text", dir: "auto" }, escapeInvisible(text)),
        element("time", { class: "count", datetime: acceptedAt.toISOString(), title: acceptedAt.toLocaleString() },
          count > 1 ? `${count} times` : ""),
        forgetButton);
    }
  }

  /** Merge equal texts into rows {text, time, count}, newest first; `time` is the time of the newest copy. */
  function groupTexts(texts) {
    const rows = new Map();
    for (const { text, time } of texts.toReversed()) {
      const row = rows.get(text) ?? { text, time, count: 0 };
      row.count++;
      rows.set(text, row);
    }
    return [...rows.values()];
  }

  /** Shorten a text for use in a sentence, and escape its invisible characters. */
  function shorten(text) {
    const characters = [...text];
    if (characters.length <= MAX_QUOTE) return escapeInvisible(text);
    return escapeInvisible(`${characters.slice(0, MAX_QUOTE - 1).join("")}…`);
  }

  function summarize(user, profile) {
    if (user === null) return "No user is selected. Add a user above to save and learn the texts that you accept.";
    if (profile === undefined) return "\u00a0"; // reserves the height of a line
    if (!profile) return "No texts yet. Texts that you accept are saved here, and you can delete any of them.";
    const count = profile.texts.length;
    const sentence = count === 1 ? "1 text is saved." : `${count} texts are saved.`;
    if (profile.paused) return `${sentence} Learning is paused.`;
    return profile.learned ? sentence : `${sentence} The model is still learning…`;
  }

  return { Panel };
})();
