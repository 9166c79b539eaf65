// What pages do beyond reading: refresh live parts, keys, no double sends. charts.js draws the charts.
"use strict";
(() => {
  const EVERY_MS = 5000;
  const body = document.body;
  let fresh = Date.now();
  let failed = false;

  // Live parts ask again on "tick", which comes only while somebody can see the page.
  const pause = document.querySelector("[data-pause]");
  const rests = () => document.hidden || pause?.getAttribute("aria-pressed") === "true";
  pause?.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(pause.getAttribute("aria-pressed") !== "true"));
    tick();
  });
  const tick = () => { if (!rests()) body.dispatchEvent(new CustomEvent("tick")); };
  setInterval(tick, EVERY_MS);
  document.addEventListener("visibilitychange", tick);
  const stamp = () => {
    const place = document.querySelector("[data-stamp]");
    if (!place) return;
    const text = failed ? place.dataset.away : place.dataset.stamp;
    place.textContent = text.replace("{n}", Math.max(0, Math.round((Date.now() - fresh) / 1000)));
    place.classList.toggle("bad-ink", failed);
  };
  setInterval(stamp, 1000);
  // What somebody opened, scrolled to or stands on stays so when the live part is replaced; rows that move are
  // known by what they are about.
  const within = (selector) => [...document.querySelectorAll(`#live ${selector}`)];
  const FOCUSED = "a, button, input, summary, [tabindex]";
  let kept = null;
  const isLive = (event) => event.target.id === "live";
  body.addEventListener("htmx:beforeSwap", (event) => {
    if (!isLive(event)) return;
    kept = {
      open: within("details:not([data-keep])").map((one) => one.open),
      rows: new Set(within("details[data-keep][open]").map((one) => one.dataset.keep)),
      row: document.activeElement.closest("details[data-keep]")?.dataset.keep,
      boxes: within("input[type=checkbox]").map((one) => one.checked),
      left: within(".wide").map((one) => [one.scrollLeft, one.scrollTop]),
      focus: within(FOCUSED).indexOf(document.activeElement),
    };
  });
  const restore = () => {
    if (!kept) return;
    within("details:not([data-keep])").forEach((one, n) => { one.open = Boolean(kept.open[n]); });
    within("details[data-keep]").forEach((one) => { one.open = kept.rows.has(one.dataset.keep); });
    within("input[type=checkbox]").forEach((one, n) => { one.checked = kept.boxes[n] ?? one.checked; });
    within(".wide").forEach((one, n) => { if (kept.left[n]) [one.scrollLeft, one.scrollTop] = kept.left[n]; });
    const row = kept.row && within(`details[data-keep="${CSS.escape(kept.row)}"] summary`)[0];
    if (row) row.focus({ preventScroll: true });
    else if (kept.focus >= 0) within(FOCUSED)[kept.focus]?.focus({ preventScroll: true });
    kept = null;
  };
  body.addEventListener("htmx:afterSettle", (event) => { if (isLive(event)) { fresh = Date.now(); failed = false; restore(); stamp(); drawCharts(); relate(); } });
  const fail = () => { failed = true; stamp(); };
  body.addEventListener("htmx:responseError", fail);
  body.addEventListener("htmx:sendError", fail);

  const EXACT = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" });  // 2026-11-24 09:30:00

  // Times say how long ago they were, by the server's clock; the exact one is on hover, in the zone of the browser.
  const ahead = Number(document.getElementById("content")?.dataset.now || Date.now()) - Date.now();
  const lasting = new Intl.RelativeTimeFormat(document.documentElement.lang, { numeric: "always", style: "short" });
  const UNITS = [["second", 60], ["minute", 60], ["hour", 24], ["day", 7]];
  const relative = (at) => {
    let left = Math.round((at - Date.now() - ahead) / 1000);
    for (const [unit, most] of UNITS) {
      if (Math.abs(left) < most) return lasting.format(left, unit);
      left = Math.trunc(left / most);
    }
    return EXACT.format(at).slice(0, 10);
  };
  const relate = () => {
    for (const place of document.querySelectorAll("time[datetime]")) {
      const at = Date.parse(place.dateTime);
      if (!place.title) place.title = `${EXACT.format(at)} (${place.textContent})`;
      const text = relative(at);
      if (place.textContent !== text) place.textContent = text;
    }
  };
  setInterval(relate, 1000);

  // Dates are UTC on the wire; their fields show and take the zone of the browser.
  const local = (at) => EXACT.format(at).replace(" ", "T");
  for (const field of document.querySelectorAll("input[data-utc]")) {
    const [label] = field.labels;
    if (label) label.textContent = `${field.dataset.utc}, ${Intl.DateTimeFormat().resolvedOptions().timeZone}`;
    const sent = Date.parse(field.defaultValue);  // unless the browser has put back what was typed before
    if (sent === Date.parse(field.value)) field.value = local(Date.parse(`${field.value}Z`));
    field.form.addEventListener("formdata", (event) => {
      const at = Date.parse(field.value);
      if (!Number.isNaN(at)) event.formData.set(field.name, new Date(at).toISOString().slice(0, 19));
    });
    const quick = field.parentElement.querySelector(".times");
    if (!quick) continue;
    quick.hidden = false;
    quick.addEventListener("click", (event) => {
      const { ago } = event.target.dataset;
      if (ago) field.value = local(ago === "midnight" ? new Date().setHours(0, 0, 0, 0) : Date.now() + ahead - 1000 * ago);
    });
  }
  // A field that only some choices need is hidden with the others, and a section without a visible field, too.
  for (const field of document.querySelectorAll("[data-only]")) {
    const [, name, not, value] = field.dataset.only.match(/^(\w+)(!?)=(.*)$/);
    const choice = field.form.elements[name];
    const fit = () => {
      field.closest(".field").hidden = (choice.value === value) === (not === "!");
      const section = field.closest("fieldset");
      if (section) section.hidden = !section.querySelector(".field:not([hidden])");
    };
    choice.addEventListener("change", fit);
    window.addEventListener("pageshow", fit);
    fit();
  }

  // A menu closes when somebody goes elsewhere.
  const closeMenus = (but) => {
    for (const one of document.querySelectorAll("details.menu[open]")) if (!one.contains(but)) one.open = false;
  };
  document.addEventListener("click", (event) => closeMenus(event.target));
  document.addEventListener("focusin", (event) => closeMenus(event.target));
  document.addEventListener("keydown", (event) => {
    const open = event.key === "Escape" && document.querySelector("details.menu[open]");
    if (open) { open.open = false; open.querySelector("summary").focus(); }
  });

  // The palette: what is typed is asked of the search page, and its results are walked with the arrows.
  const palette = document.getElementById("palette");
  const asked = palette?.querySelector("input");
  const results = () => [...palette.querySelectorAll("#palette-found a")];
  const openPalette = (event) => { event.preventDefault(); if (!palette.open) palette.showModal(); asked.select(); };
  document.querySelector("[data-palette]")?.addEventListener("click", openPalette);
  document.addEventListener("keydown", (event) => {
    if (palette && (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") openPalette(event);
  });
  palette?.addEventListener("click", (event) => { if (event.target === palette) palette.close(); });
  palette?.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [asked, ...results()];
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus();
  });
  palette?.querySelector("form").addEventListener("submit", (event) => {
    const first = results()[0];
    if (first) { event.preventDefault(); location.assign(first.href); }
  });

  // Keys: "/" searches, "g" and a letter goes somewhere, "?" shows them. Without script the link is a page.
  const help = document.getElementById("help");
  document.querySelector("[data-help]")?.addEventListener("click", (event) => { event.preventDefault(); help.showModal(); });
  let before = "";
  const typing = (target) => target.closest("input, textarea, select, [contenteditable]");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (event.key === "?" && help) {
      if (!help.open) help.showModal();
    } else if (event.key === "/") {
      const field = document.querySelector("[data-search]");
      if (field) { event.preventDefault(); field.focus(); field.select(); }
    } else if (before === "g") {
      const link = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
      if (link) location.assign(link.href);
    }
    before = event.key;
  });

  // What was sent once is not sent twice by a second click.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "1";
    for (const button of form.querySelectorAll("button")) setTimeout(() => { button.disabled = true; });
  });
  window.addEventListener("pageshow", () => {
    for (const form of document.forms) { delete form.dataset.sent; for (const button of form.querySelectorAll("button")) button.disabled = false; }
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  });
  document.addEventListener("click", (event) => {
    const place = event.target.closest("[data-copy]");
    if (place && navigator.clipboard) navigator.clipboard.writeText(document.getElementById(place.dataset.copy).textContent);
  });
  // On a wide screen the navigation is open whatever was clicked.
  const menu = document.querySelector(".side details");
  const wide = matchMedia("(min-width: 861px)");
  const fit = () => { if (menu) menu.open = wide.matches; };
  wide.addEventListener("change", fit);
  fit();
  document.querySelector(".tabbar [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  drawCharts();
  stamp();
  relate();
})();
