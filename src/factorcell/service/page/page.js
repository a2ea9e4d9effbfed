/* The page: who types, the box, what was learned, and the picture. */
"use strict";

(() => {
  const NAMES = ["Ada", "Ben", "Chloe"];
  const NOBODY = "Nobody";
  const LONG = 2000; // milliseconds after which an accept is said to take its time
  const { attach, Client, Problem, element } = factorcell;
  const $ = (id) => document.getElementById(id);
  const OUTCOMES = {
    learned: (user) => ["Learned for ", user, "."],
    repeated: (user) => ["Learned for ", user, "."],
    kept: (user) => ["Kept for ", user, ", to be learned in a moment."],
    paused: () => "Not kept: learning is paused.",
    private: () => "Not kept: this session is private.",
    withheld: (user, why) => `Not kept: it looks like ${why}.`,
  };

  const kept = {
    get: (name) => {
      try {
        return sessionStorage.getItem(`factorcell.${name}`);
      } catch {
        return null; // a browser that keeps nothing
      }
    },
    set: (name, value) => {
      try {
        sessionStorage.setItem(`factorcell.${name}`, value);
      } catch {
        // the same
      }
    },
  };
  const context = Object.fromEntries([...new URLSearchParams(location.search)]
    .map(([name, value]) => [/^context\[(.+)\]$/.exec(name)?.[1], value]).filter(([name]) => name));
  $("context").textContent = Object.entries(context).map(([name, value]) => `${name}: ${value}`).join(", ");
  $("context").hidden = !$("context").textContent;
  const moves = new Map(); // person -> Moves
  let client = new Client({ key: kept.get("key") });
  let person = null;
  let waiting = 0;
  let refused = false; // whether what is said is why there are no suggestions

  const box = attach($("query"), {
    context,
    deadline: 300, // one who types alone rather waits than is refused
    key: client.key,
    onAccept: () => {
      $("query").select();
      clearTimeout(waiting);
      if (person === null) say("Accepted; nobody learns it.");
      else waiting = setTimeout(() => say("Not kept yet; trying again…"), LONG);
    },
    onSuggestions: (answer, prefix) => {
      if (refused) say("");
      moving().see(prefix, answer.results);
      if (panel.missing) panel.refresh(); // the service is there again
    },
    onLearned: async (answer, text, user) => {
      clearTimeout(waiting);
      if (user !== person) return;
      const took = ["learned", "kept", "repeated"].includes(answer.outcome);
      say(OUTCOMES[answer.outcome](element("bdi", {}, user), answer.why), took);
      if (!took) return;
      const label = moving().accepted(text);
      if (await panel.refresh()) await step(label);
    },
    onError: (error, text) => {
      if (text !== undefined) clearTimeout(waiting);
      if (needsKey(error)) return;
      if (text !== undefined) say(`Not learned: ${reason(error)}`);
      else if (error.status === 422) {
        failed(error); // such as a context that the model does not know
        refused = true;
      }
    },
  });

  const panel = new learned.Panel({ said: say, failed, changed: () => step("−") });

  function moving() {
    if (!moves.has(person)) moves.set(person, new picture.Moves());
    return moves.get(person);
  }

  /** Say a line under the box, text or parts of it, with a button to undo if there is something to undo. */
  function say(words, undo = false) {
    refused = false;
    $("words").replaceChildren(...[words].flat());
    $("take-back").hidden = !undo;
  }

  function reason(error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 0) return navigator.onLine ? "the service cannot be reached." : "you are offline.";
    return `${error.message || "the service cannot do this now"}.`;
  }

  /** Ask for a key if that is what is wrong. */
  function needsKey(error) {
    if (error.status !== 401 && error.status !== 403) return false;
    $("asks").hidden = false;
    say(error.status === 401 ? "This service wants a key." : "This key does not allow that.");
    return true;
  }

  function failed(error) {
    if (needsKey(error)) return;
    const words = reason(error);
    say(words[0].toUpperCase() + words.slice(1));
  }

  function be(name) {
    person = name === NOBODY ? null : name;
    kept.set("person", name);
    box.set({ user: person, key: client.key });
    say("");
    draw();
    return panel.set(client, person);
  }

  function people(chosen) {
    const names = [...NAMES];
    if (chosen !== NOBODY && !names.includes(chosen)) names.push(chosen);
    $("names").replaceChildren(...[...names, NOBODY].map((name) => {
      const input = element("input", { type: "radio", name: "person", value: name });
      input.checked = name === chosen;
      input.onchange = () => be(name);
      return element("label", {}, input, element("span", { dir: "auto" }, name));
    }));
  }

  /** See what the prefix of the picture suggests now. */
  async function step(label) {
    const now = moving();
    const { prefix } = now;
    if (!prefix) return;
    const asked = { query: prefix, limit: picture.ROWS, context, deadline_ms: 1000 };
    if (person !== null) asked.user = person;
    try {
      const answer = await client.ask("POST", "v1/complete", asked);
      if (now.prefix === prefix) now.add(answer.results, label);
    } catch (error) {
      if (!(error instanceof Problem)) throw error; // the picture waits for the next step
    }
    draw();
  }

  function draw() {
    const now = moving();
    if (document.activeElement !== $("prefix")) $("prefix").value = now.prefix;
    $("caption").textContent = now.steps.length
      ? "these are suggested first, step by step. Yours are in colour, and dots grow with the probability."
      : "you will see here how a text rises with each time that you accept it.";
    picture.draw($("picture"), now.steps);
  }

  $("search").addEventListener("submit", (event) => event.preventDefault());
  $("people").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = $("other").value.trim();
    if (!name || /^\.{1,2}$/.test(name)) return; // which no address can name
    $("other").value = "";
    people(name);
    be(name);
    $("query").focus();
  });
  $("take-back").onclick = async () => {
    say("");
    $("query").focus();
    try {
      await panel.undo();
    } catch (error) {
      failed(error);
    }
  };
  $("asks").addEventListener("submit", (event) => {
    event.preventDefault();
    client = new Client({ key: $("key").value });
    kept.set("key", client.key);
    $("key").value = "";
    $("asks").hidden = true;
    be(person ?? NOBODY);
  });
  $("prefix").addEventListener("change", () => {
    moving().choose($("prefix").value);
    draw();
    if (!moving().steps.length) step("now");
  });
  new ResizeObserver(() => picture.draw($("picture"), moving().steps)).observe($("picture"));

  const first = kept.get("person") ?? NAMES[0];
  people(first);
  be(first);
})();
