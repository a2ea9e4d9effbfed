"use strict";
// The API page shows a form for each operation that /openapi.json describes.

const element = (name, text = "", properties = {}) =>
  Object.assign(document.createElement(name), { textContent: text }, properties);

// Return the schema to which a schema with $ref refers; other schemas are returned unchanged.
function resolve(schema, description) {
  return schema.$ref ? description.components.schemas[schema.$ref.split("/").pop()] : schema;
}

// Return an example value of a schema: objects have only their required fields.
function example(schema, description) {
  const resolved = resolve(schema, description);
  if (resolved.anyOf) return example(resolved.anyOf[0], description);
  if (resolved.enum) return resolved.enum[0];
  if (resolved.type === "array") return [example(resolved.items, description)];
  if (resolved.type !== "object") return { string: "", integer: 1, number: 1, boolean: false }[resolved.type] ?? null;
  const required = Object.entries(resolved.properties ?? {}).filter(([name]) => resolved.required?.includes(name));
  return Object.fromEntries(required.map(([name, field]) => [name, example(field, description)]));
}

function parameterField(parameter) {
  const label = element("label", parameter.name + (parameter.required ? " *" : ""));
  label.append(element("small", parameter.schema.description ?? ""));
  label.append(element("input", "", { name: parameter.name, required: parameter.required }));
  return label;
}

// Return a path such as /v1/users/{user} with the values of the form in place of its parameters.
function fillPath(path, parameters, form) {
  return parameters.reduce(
    (filledPath, { name }) => filledPath.replace(`{${name}}`, encodeURIComponent(form.elements[name].value)), path);
}

// Send a request and return its status, its duration and the body of the response as text.
async function send(method, path, body) {
  const headers = {};
  const key = document.getElementById("key").value;
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const start = performance.now();
  const response = await fetch(path, { method, headers, body });
  const text = await response.text();
  let formatted = text;
  try { formatted = JSON.stringify(JSON.parse(text), null, 1); } catch { /* server-sent events are not JSON */ }
  return `${response.status} after ${Math.round(performance.now() - start)} ms\n\n${formatted}`;
}

function operationForm(path, method, operation, description) {
  const box = element("details");
  const summary = element("summary");
  summary.append(element("b", method.toUpperCase()), element("code", path), element("span", operation.summary));
  const form = element("form");
  const parameters = operation.parameters ?? [];
  parameters.forEach((parameter) => form.append(parameterField(parameter)));
  const content = operation.requestBody?.content["application/json"];
  if (content) {
    const label = element("label", "body");
    const value = JSON.stringify(example(content.schema, description), null, 1);
    label.append(element("textarea", "", { name: "body", rows: 6, value, spellcheck: false }));
    form.append(label);
    for (const [name, field] of Object.entries(resolve(content.schema, description).properties ?? {})) {
      if (field.description) form.append(element("small", `${name}: ${field.description}. `));
    }
  }
  const button = element("button", "Send");
  const output = element("pre", "", { hidden: true, role: "status" });
  const buttonLine = element("p");
  buttonLine.append(button);
  form.append(buttonLine, output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    output.hidden = false;
    output.textContent = "...";
    try {
      const filledPath = fillPath(path, parameters, form);
      output.textContent = await send(method.toUpperCase(), filledPath, form.elements.body?.value);
    } catch (error) {
      output.textContent = String(error);
    }
  });
  box.append(summary, form);
  return box;
}

async function show() {
  const description = await (await fetch("/openapi.json")).json();
  document.getElementById("about").textContent = description.info.description;
  const operations = Object.entries(description.paths).flatMap(([path, methods]) => Object.entries(methods).map(
    ([method, operation]) => operationForm(path, method, operation, description)));
  document.getElementById("operations").replaceChildren(...operations);
  const problems = Object.entries(description["x-problems"]).map(([kind, { status, title }]) => {
    const row = element("tr", "", { id: kind });
    row.append(element("td", `/docs#${kind}`), element("td", status), element("td", title));
    return row;
  });
  document.getElementById("problems").replaceChildren(...problems);
}

show();
