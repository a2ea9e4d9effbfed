/* What a service keeps of a person: shown, forgotten text by text, undone, paused, exported, deleted. */
"use strict";

const learned = (() => {
  const FEW = 8; // texts shown until more are asked for
  const CATCHING_UP = [200, 400, 800, 1600, 3200]; // milliseconds until it is asked again whether all is learned
  const SHORT = 60; // characters of a text within a sentence
  const { element, visible } = factorcell;
  const $ = (id) => document.getElementById(id);

  /** The panel. `said(words)` says something, `failed(error)` that something failed, and `changed()` is called when
      what is suggested has changed. */
  class Panel {
    #client = null;
    #person = null;
    #turn = 0; // of the newest look; what others find is not shown
    #all = false;
    missing = false; // whether the last look failed
    #profile; // null where nothing is kept, undefined until it is known
    #tells;

    constructor(tells) {
      this.#tells = tells;
      $("undo").onclick = () => this.#do(() => this.undo());
      $("pause").onclick = () => this.#do(() => this.#pause());
      $("export").onclick = () => this.#do(() => this.#export());
      $("delete").onclick = () => $("sure").showModal();
      $("sure").onclose = () => $("sure").returnValue === "delete" && this.#do(() => this.#delete());
      $("more").onclick = () => {
        this.#all = !this.#all;
        this.#draw();
      };
    }

    /** Show another person, null for nobody. */
    set(client, person) {
      this.#client = client;
      this.#person = person;
      this.#all = false;
      this.#profile = undefined;
      this.missing = false;
      $("whose").textContent = $("who").textContent = person ?? "nobody";
      this.#draw();
      return this.refresh();
    }

    /** Show what is kept now. Returns once the model has learned all of it, or after some seconds: whether it is still
        this person that is shown. */
    async refresh() {
      const turn = ++this.#turn;
      if (this.#person === null) return true;
      for (const wait of [...CATCHING_UP, null]) {
        let profile = null;
        try {
          profile = await this.#ask("GET", "");
        } catch (error) {
          if (turn !== this.#turn) return false;
          if (error.status !== 404) {
            this.missing = true;
            this.#draw();
            this.#tells.failed(error);
            return false;
          }
        }
        if (turn !== this.#turn) return false;
        this.#profile = profile;
        this.missing = false;
        this.#draw();
        if (wait === null || !profile || profile.learned) break;
        await new Promise((done) => setTimeout(done, wait));
        if (turn !== this.#turn) return false;
      }
      return true;
    }

    /** Forget the newest text. */
    async undo() {
      const { removed } = await this.#ask("POST", "/undo");
      await this.#removed(removed ? "The last text is forgotten." : "There is nothing to undo.");
    }

    async #forget(text) {
      const places = [...$("texts").querySelectorAll("button")];
      const place = places.indexOf(document.activeElement);
      await this.#ask("POST", "/forget", { text });
      await this.#removed(["“", element("bdi", {}, brief(text)), "” is forgotten."]);
      const buttons = $("texts").querySelectorAll("button");
      (buttons[Math.min(place, buttons.length - 1)] ?? $("learned-title")).focus();
    }

    async #removed(words) {
      this.#tells.said(words);
      if (await this.refresh()) this.#tells.changed();
    }

    async #pause() {
      const { paused } = await this.#ask("POST", this.#profile?.paused ? "/resume" : "/pause");
      this.#tells.said(paused ? "Paused: nothing is learned or kept until you resume." : "Learning goes on.");
      await this.refresh();
    }

    async #delete() {
      await this.#ask("DELETE", "");
      await this.#removed(["All of ", element("bdi", {}, this.#person), " is deleted."]);
      $("learned-title").focus();
    }

    async #export() {
      const values = await this.#ask("GET", "/export");
      const content = new Blob([`${JSON.stringify(values, null, 2)}\n`], { type: "application/json" });
      const address = URL.createObjectURL(content);
      element("a", { href: address, download: `${this.#person.replace(/[^\p{L}\p{N}_-]+/gu, "_")}.json` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 1000);
    }

    #ask(method, what, body) {
      return this.#client.ask(method, `v1/users/${encodeURIComponent(this.#person)}${what}`, body);
    }

    async #do(act) {
      try {
        await act();
      } catch (error) {
        this.#tells.failed(error);
      }
    }

    #draw() {
      const profile = this.#profile;
      const rows = grouped(profile?.texts ?? []);
      $("summary").textContent = this.missing && !profile
        ? "What is kept cannot be shown now." : summary(this.#person, profile);
      $("tools").hidden = !profile;
      $("undo").disabled = !rows.length;
      $("pause").textContent = profile?.paused ? "Resume" : "Pause";
      $("pause").setAttribute("aria-pressed", String(Boolean(profile?.paused)));
      $("texts").replaceChildren(...rows.slice(0, this.#all ? rows.length : FEW).map((one) => this.#row(one)));
      $("more").hidden = rows.length <= FEW;
      $("more").textContent = this.#all ? "Show fewer" : `Show all ${rows.length}`;
    }

    #row({ text, count, time }) {
      const forget = element("button", { class: "quiet", "aria-label": `Forget “${brief(text)}”` }, "Forget");
      forget.type = "button";
      forget.onclick = () => this.#do(() => this.#forget(text));
      const when = new Date(1000 * time);
      return element("li", {},
        element("span", { class: "what", dir: "auto" }, visible(text)),
        element("time", { class: "often", datetime: when.toISOString(), title: when.toLocaleString() },
          count > 1 ? `${count} times` : ""),
        forget);
    }
  }

  /** The texts, each once, the newest first, with how often they were accepted. */
  function grouped(texts) {
    const found = new Map();
    for (const { text, time } of texts.toReversed()) {
      const one = found.get(text) ?? { text, time, count: 0 };
      one.count++;
      found.set(text, one);
    }
    return [...found.values()];
  }

  /** A text as it stands within a sentence. */
  function brief(text) {
    const all = [...text];
    return visible(all.length > SHORT ? `${all.slice(0, SHORT - 1).join("")}…` : text);
  }

  function summary(person, profile) {
    if (person === null) return "Nobody is learned: suggestions are those for everybody.";
    if (profile === undefined) return "\u00a0"; // a line's height, so that nothing jumps
    if (!profile) return "Nothing yet. What you accept is kept here, and you can take any of it back.";
    const count = profile.texts.length;
    const kept = count === 1 ? "One text is kept." : `${count} texts are kept.`;
    if (profile.paused) return `${kept} Learning is paused.`;
    return profile.learned ? kept : `${kept} The model is catching up…`;
  }

  return { Panel };
})();
