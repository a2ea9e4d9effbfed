/* The demo page: the choice of the user, the search box, the saved texts, and the chart of suggestions. */
"use strict";

(() => {
  const NO_USER = "No user";
  const DEVICE_USER = "this page"; // the only user of a completer on the device
  const SLOW_ACCEPT = 2000; // milliseconds after which a notice says that an accepted text is not saved yet
  const { attach, createClient, Problem, element } = factorcell;
  const $ = (id) => document.getElementById(id);
  const OUTCOME_NOTICES = {
    learned: (user) => ["Learned for ", user, "."],
    repeated: (user) => ["Learned for ", user, "."],
    kept: (user) => ["Saved for ", user, "; the model will learn it shortly."],
    paused: () => "Not saved: learning is paused.",
    withheld: (user, privateContent) => `Not saved: the text seems to contain ${privateContent}.`,
  };

  const storage = {
    get: (name) => {
      try {
        return sessionStorage.getItem(`factorcell.${name}`);
      } catch {
        return null; // the browser forbids storage
      }
    },
    set: (name, value) => {
      try {
        sessionStorage.setItem(`factorcell.${name}`, value);
      } catch {
        // the browser forbids storage
      }
    },
  };
  // The address of the page may contain values of context columns: ?context[COLUMN]=VALUE
  const context = Object.fromEntries([...new URLSearchParams(location.search)]
    .map(([name, value]) => [/^context\[(.+)\]$/.exec(name)?.[1], value])
    .filter(([column]) => column));
  $("context").textContent = Object.entries(context).map(([column, value]) => `${column}: ${value}`).join(", ");
  $("context").hidden = !$("context").textContent;
  // The address of an exported model, if the page can complete on the device, and whether a service is the alternative.
  const { model, service } = document.body.dataset;
  const histories = new Map(); // user or completer -> SuggestionHistory
  const users = readUsers(); // names that were entered in this tab
  let completer = null; // of the device, while it is switched on
  let opening = null; // the promise of this completer, which is opened once
  let key = storage.get("key");
  let client = createClient({ key });
  let user = null;
  let slowTimer = 0;
  let hasQueryError = false; // whether the notice explains why there are no suggestions

  const box = attach($("query"), {
    context,
    sources: true,
    deadline: 300, // milliseconds; the demo page has few users, so a long search does no harm
    key,
    onAccept: () => {
      $("query").select();
      clearTimeout(slowTimer);
      if (user === null) notify("Accepted. Not learned, because no user is selected.");
      else slowTimer = setTimeout(() => notify("Not saved yet; retrying…"), SLOW_ACCEPT);
    },
    onSuggestions: (answer, prefix) => {
      if (hasQueryError) notify("");
      currentHistory().remember(prefix, answer.results);
      if (panel.isStale) panel.refresh(); // the service answers again
    },
    onLearned: async (answer, text, acceptedBy) => {
      clearTimeout(slowTimer);
      if (acceptedBy !== user) return;
      const isSaved = ["learned", "kept", "repeated"].includes(answer.outcome);
      notify(OUTCOME_NOTICES[answer.outcome](element("bdi", {}, acceptedBy), answer.why), isSaved);
      if (!isSaved) return;
      currentHistory().accept(text, panel.count);
      if (await panel.refresh()) await addStep();
    },
    onError: (error, text) => {
      if (text !== undefined) clearTimeout(slowTimer);
      if (askForKey(error)) return;
      if (text !== undefined) notify(`Not learned: ${describeError(error)}`);
      else if (error.status === 422) {
        showError(error); // for example, a context column that the model does not know
        hasQueryError = true;
      }
    },
  });

  const panel = new savedTexts.Panel({ notify, onError: showError, onChange: addStep, onDelete: forgetUser });

  function readUsers() {
    try {
      return JSON.parse(storage.get("users") ?? "[]");
    } catch {
      return []; // another script wrote the entry
    }
  }

  /** Remove everything that the page still shows of the user whose data was deleted. */
  function forgetUser() {
    histories.delete(completer ?? user);
    $("query").value = "";
    $("prefix").value = "";
    box.close();
    drawChart();
  }

  function currentHistory() {
    const owner = completer ?? user;
    if (!histories.has(owner)) histories.set(owner, new chart.SuggestionHistory());
    return histories.get(owner);
  }

  /** Show a notice (text, or an array of texts and elements) below the box, with an undo button if `canUndo`. */
  function notify(content, canUndo = false) {
    hasQueryError = false;
    $("notice").replaceChildren(...[content].flat());
    $("undo-accept").hidden = !canUndo;
  }

  function describeError(error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 0) return navigator.onLine ? "the service cannot be reached." : "you are offline.";
    return `${error.message || "the service cannot do this now"}.`;
  }

  /** Show the form for a key if the service requires a key or refused it; return whether the form is shown. */
  function askForKey(error) {
    if (error.status !== 401 && error.status !== 403) return false;
    $("key-form").hidden = false;
    notify(error.status === 401 ? "This service requires a key." : "This key does not allow this request.");
    return true;
  }

  function showError(error) {
    if (askForKey(error)) return;
    const text = describeError(error);
    notify(text[0].toUpperCase() + text.slice(1));
  }

  function selectUser(name) {
    storage.set("user", name);
    return showUser(name === NO_USER ? null : name);
  }

  function showUser(name) {
    user = name;
    client = createClient({ completer, key });
    box.set({ user, completer, key });
    notify("");
    drawChart();
    return panel.set(client, user);
  }

  /** Complete on the device of the user, or by the service. */
  async function switchDevice(isOn) {
    $("on-device").disabled = $("query").readOnly = true; // no typed text is sent while the model is loaded
    let failure = "";
    completer = null;
    if (isOn) notify("Loading the model…");
    try {
      if (isOn) completer = await (opening ??= openCompleter());
    } catch (error) {
      opening = null;
      failure = `This device cannot complete: ${error.message}.`;
    }
    $("on-device").disabled = false;
    $("query").readOnly = completer === null && service === undefined;
    $("on-device").checked = $("users").hidden = completer !== null;
    $("device-note").hidden = completer === null;
    storage.set("device", completer ? "on" : "off");
    const refreshed = completer ? showUser(DEVICE_USER) : selectUser(storage.get("user") ?? NO_USER);
    if (failure) notify(failure);
    await refreshed;
  }

  async function openCompleter() {
    const url = new URL(model, document.baseURI);
    const { open } = await import(new URL("runtime/index.js", url));
    return open(url);
  }

  function drawUsers(selectedName) {
    if (selectedName !== NO_USER && !users.includes(selectedName)) users.push(selectedName);
    storage.set("users", JSON.stringify(users));
    $("names").replaceChildren(...[NO_USER, ...users].map((name) => {
      const input = element("input", { type: "radio", name: "user", value: name });
      input.checked = name === selectedName;
      input.onchange = () => selectUser(name);
      return element("label", {}, input, element("span", { dir: "auto" }, name));
    }));
  }

  /** Add a step to the chart: the suggestions that the service has now for the prefix of the chart. */
  async function addStep() {
    const label = String(panel.count);
    const history = currentHistory();
    const { prefix } = history;
    if (!prefix) return;
    const request = { query: prefix, limit: chart.ROWS, context, deadline_ms: 1000 };
    if (user !== null) request.user = user;
    try {
      const answer = await client.complete(request);
      if (history.prefix === prefix) history.add(answer.results, label);
    } catch (error) {
      if (!(error instanceof Problem)) throw error; // the chart omits this step
    }
    drawChart();
  }

  function drawChart() {
    const history = currentHistory();
    if (document.activeElement !== $("prefix")) $("prefix").value = history.prefix;
    $("caption").textContent = history.steps.length
      ? "Top suggestions by number of saved texts. Your texts are highlighted; larger dots are more probable."
      : "Accept a text several times to see it rise among the suggestions.";
    chart.draw($("chart"), history.steps);
  }

  $("search").addEventListener("submit", (event) => event.preventDefault());
  $("users").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = $("other").value.trim();
    if (!name || /^\.{1,2}$/.test(name)) return; // browsers resolve . and .. in a path
    $("other").value = "";
    drawUsers(name);
    selectUser(name);
    $("query").focus();
  });
  $("undo-accept").onclick = async () => {
    notify("");
    $("query").focus();
    try {
      await panel.undo();
    } catch (error) {
      showError(error);
    }
  };
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    key = $("key").value;
    storage.set("key", key);
    $("key").value = "";
    $("key-form").hidden = true;
    selectUser(user ?? NO_USER);
  });
  $("prefix").addEventListener("change", () => {
    currentHistory().choose($("prefix").value);
    drawChart();
    if (!currentHistory().steps.length) addStep();
  });
  new ResizeObserver(() => chart.draw($("chart"), currentHistory().steps)).observe($("chart"));

  $("on-device").onchange = () => switchDevice($("on-device").checked);
  const firstUser = storage.get("user") ?? NO_USER;
  drawUsers(firstUser);
  if (service === undefined || (model && storage.get("device") === "on")) switchDevice(true);
  else selectUser(firstUser);
})();
