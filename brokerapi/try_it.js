// Forms of the docs page. The key is read from its field for each request, and kept nowhere else.
"use strict";

const MOST_CHARS = 100000; // of an answer that is shown
const CHANGES = new Set(["POST", "PATCH", "DELETE"]);

function url(form) {
  const asked = new URLSearchParams();
  let path = form.dataset.path;
  for (const input of form.querySelectorAll("input[data-in]")) {
    if (input.dataset.in === "path") path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
    else if (input.value !== "") asked.append(input.name, input.value);
  }
  return asked.size ? `${path}?${asked}` : path;
}

function request(form) {
  const made = { method: form.dataset.method, headers: {}, credentials: "omit", cache: "no-store" };
  const key = document.querySelector("#key input").value.trim();
  if (form.dataset.key && !key) throw new Error("Give an API key at the top of the page.");
  if (key) made.headers.Authorization = `Bearer ${key}`;
  const body = form.querySelector("textarea");
  if (body) {
    try {
      JSON.parse(body.value);
    } catch {
      throw new Error("The body is not JSON. Correct it.");
    }
    made.headers["Content-Type"] = "application/json";
    made.body = body.value;
  }
  return made;
}

function shown(text) {
  let pretty = text;
  try {
    pretty = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Metrics and empty answers are no JSON.
  }
  return pretty.length > MOST_CHARS ? `${pretty.slice(0, MOST_CHARS)}\n… (shortened)` : pretty;
}

async function send(form) {
  const [told, body, button] = ["output", "pre", "button"].map((name) => form.querySelector(name));
  told.textContent = "";
  body.hidden = true;
  try {
    const [where, what] = [url(form), request(form)];
    const asks = `${what.method} ${where} may change data of this broker. Send it?`;
    if (CHANGES.has(what.method) && !window.confirm(asks)) return;
    button.disabled = true;
    told.textContent = "waiting …";
    const begun = performance.now();
    // Relative to /api/v1/docs, because a proxy may show the page under a path prefix.
    const answer = await fetch(`../..${where}`, what);
    const text = await answer.text();
    told.textContent = `${answer.status} ${answer.statusText}, ${Math.round(performance.now() - begun)} ms`;
    body.textContent = shown(text);
    body.hidden = text === "";
  } catch (error) {
    const lost = error instanceof TypeError;
    told.textContent = lost ? "No answer: is the broker running, and is the key right?" : error.message;
  } finally {
    button.disabled = false;
  }
}

document.documentElement.classList.add("scripted"); // without scripts there is nothing to try
document.addEventListener("submit", (event) => {
  event.preventDefault();
  if (event.target.dataset.path) send(event.target);
});
