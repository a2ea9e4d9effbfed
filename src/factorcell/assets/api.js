"use strict";
// The page of the API: a form for each operation of /openapi.json.

const element = (name, text = "", more = {}) => Object.assign(document.createElement(name), { textContent: text }, more);

function resolved(schema, all) {
  return schema.$ref ? all.components.schemas[schema.$ref.split("/").pop()] : schema;
}

function example(schema, all) {
  const real = resolved(schema, all);
  if (real.anyOf) return example(real.anyOf[0], all);
  if (real.enum) return real.enum[0];
  if (real.type === "array") return [example(real.items, all)];
  if (real.type !== "object") return { string: "", integer: 1, number: 1, boolean: false }[real.type] ?? null;
  const shown = Object.entries(real.properties ?? {}).filter(([name]) => (real.required ?? []).includes(name));
  return Object.fromEntries(shown.map(([name, field]) => [name, example(field, all)]));
}

function field(parameter) {
  const label = element("label", parameter.name + (parameter.required ? " *" : ""));
  label.append(element("small", parameter.schema.description ?? ""));
  const input = element("input", "", { name: parameter.name, required: parameter.required });
  label.append(input);
  return label;
}

function address(path, parameters, form) {
  for (const one of parameters) path = path.replace(`{${one.name}}`, encodeURIComponent(form.elements[one.name].value));
  return path;
}

async function ask(method, where, body) {
  const headers = {};
  const key = document.getElementById("key").value;
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const began = performance.now();
  const answer = await fetch(where, { method, headers, body });
  const text = await answer.text();
  let shown = text;
  try { shown = JSON.stringify(JSON.parse(text), null, 1); } catch { /* events are shown as they come */ }
  return `${answer.status} after ${Math.round(performance.now() - began)} ms\n\n${shown}`;
}

function operation(path, method, described, all) {
  const box = element("details");
  const summary = element("summary");
  summary.append(element("b", method.toUpperCase()), element("code", path), element("span", described.summary));
  const form = element("form");
  const parameters = described.parameters ?? [];
  parameters.forEach((one) => form.append(field(one)));
  const content = described.requestBody?.content["application/json"];
  if (content) {
    const label = element("label", "body");
    const value = JSON.stringify(example(content.schema, all), null, 1);
    label.append(element("textarea", "", { name: "body", rows: 6, value, spellcheck: false }));
    form.append(label);
    const about = resolved(content.schema, all);
    for (const [name, one] of Object.entries(about.properties ?? {})) {
      if (one.description) form.append(element("small", `${name}: ${one.description}. `));
    }
  }
  const button = element("button", "Ask");
  const answer = element("pre", "", { hidden: true, role: "status" });
  form.append(element("p", "").appendChild(button).parentNode, answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    answer.hidden = false;
    answer.textContent = "...";
    try {
      answer.textContent = await ask(method.toUpperCase(), address(path, parameters, form), form.elements.body?.value);
    } catch (error) {
      answer.textContent = String(error);
    }
  });
  box.append(summary, form);
  return box;
}

async function show() {
  const all = await (await fetch("/openapi.json")).json();
  document.getElementById("about").textContent = all.info.description;
  const operations = Object.entries(all.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, described]) => operation(path, method, described, all)));
  document.getElementById("operations").replaceChildren(...operations);
  document.getElementById("problems").replaceChildren(...Object.entries(all["x-problems"]).map(([kind, one]) => {
    const row = element("tr", "", { id: kind });
    row.append(element("td", `/docs#${kind}`), element("td", one.status), element("td", one.title));
    return row;
  }));
}

show();
