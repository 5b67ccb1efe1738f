// What a person can do with a message: copy, rate, undo, retry, and ask again with another model.
(() => {
  "use strict";

  const { find, complain } = hermes;

  const log = find("log");
  const text = find("text");
  const composer = find("composer");
  const messages = composer.getAttribute("action");
  const base = messages.slice(0, messages.lastIndexOf("/"));

  async function request(path, options = {}) {
    const headers = { "Hermes-Key": hermes.key(), "HX-Request": "true" };
    const answer = await fetch(path, { ...options, headers }).catch(() => null);
    if (answer?.ok) return answer;
    if (answer?.status === 401) { hermes.lock(true); return null; }
    const refused = answer && new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("p");
    complain(refused?.textContent ?? "The gateway does not answer. Try again in a moment.");
    return null;
  }

  // Send commands one after the other. A second click while they are sent does nothing.
  let isSending = false;

  async function send(...commands) {
    if (isSending) return;
    isSending = true;
    const isByKeyboard = document.activeElement?.matches(":focus-visible");
    for (const command of commands) {
      const body = new FormData();
      body.set("client_id", hermes.newId());
      body.set("command", command);
      if (!await request(messages, { method: "POST", body })) break;
      complain("");
    }
    isSending = false;
    hermes.stickToEnd();
    // After a tap, do not move the focus, because a phone would open its keyboard.
    if (isByKeyboard || matchMedia("(hover: hover)").matches) text.focus();
  }

  const isAnswering = () => {
    const writing = find("writing").firstElementChild; // its style sheet hides it if nothing is written for some seconds
    return log.querySelector(":scope > .preview") || (writing && getComputedStyle(writing).visibility !== "hidden");
  };

  // ---- which message is the newest ------------------------------------------------------------------------------

  function last(selector) {
    let entry = log.lastElementChild;
    while (entry && !entry.matches(selector)) entry = entry.previousElementSibling;
    return entry;
  }

  document.addEventListener("htmx:after:swap", () => {
    const asked = last(".person:not(.command, .undone, .waiting)");
    let answered = last(".answer:not(.undone), .failure");
    if (asked && !(asked.compareDocumentPosition(answered ?? asked) & Node.DOCUMENT_POSITION_FOLLOWING)) answered = null;
    for (const entry of log.querySelectorAll(".is-newest")) {
      if (entry !== asked && entry !== answered) entry.classList.remove("is-newest");
    }
    asked?.classList.add("is-newest");
    answered?.classList.add("is-newest");
  });

  // ---- actions --------------------------------------------------------------------------------------------------

  async function copy(entry, button) {
    const selection = getSelection();
    selection.selectAllChildren(entry.querySelector(".body") ?? entry);
    try {
      await navigator.clipboard.writeText(selection.toString());
      selection.removeAllRanges();
      button.textContent = "Copied";
    } catch { button.textContent = "Selected"; } // browsers give no clipboard to a page from another machine without TLS
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  const models = find("models");

  async function chooseModel(entry, button) {
    const answer = await request(`${base}/models`);
    if (!answer) return;
    const names = await answer.json();
    models.querySelector("ul").replaceChildren(...names.map((name) => {
      const choice = document.createElement("button");
      choice.type = "button";
      choice.textContent = name;
      choice.addEventListener("click", () => { models.hidePopover(); send(`/model ${name}`, "/retry"); });
      const item = document.createElement("li");
      item.append(choice);
      return item;
    }));
    models.showPopover();
    const box = button.getBoundingClientRect();
    models.style.left = `${Math.max(8, Math.min(box.left, innerWidth - models.offsetWidth - 8))}px`;
    models.style.top = `${Math.max(8, Math.min(box.bottom + 4, innerHeight - models.offsetHeight - 8))}px`;
    models.querySelector("button")?.focus();
  }

  async function edit() {
    if (isAnswering()) await send("/stop");
    for (let tries = 0; tries < 50 && isAnswering(); tries += 1) await new Promise((done) => { setTimeout(done, 100); });
    const answer = await request(`${base}/editable`);
    if (!answer) return;
    const { ref, text: words, files } = await answer.json();
    const found = await Promise.all(files.map(async ({ number, name, mime: type }) => {
      const content = await request(`${base}/files/${number}`);
      return content && new File([await content.blob()], name, { type });
    }));
    hermes.fill(words, found.filter(Boolean), ref);
    text.focus();
  }

  async function rate(entry, button) {
    const isRemoved = button.ariaPressed === "true";
    const body = new FormData();
    body.set("ref", entry.id.slice(2));
    body.set("thumb", button.value);
    if (isRemoved) body.set("is_removed", "");
    if (!await request(`${base}/rate`, { method: "POST", body })) return;
    complain("");
    for (const thumb of entry.querySelectorAll("[data-act=rate]")) thumb.ariaPressed = `${thumb === button && !isRemoved}`;
  }

  const actions = {
    copy,
    rate,
    edit,
    undo: () => send("/undo"),
    retry: () => send("/retry"),
    models: chooseModel,
  };

  // Escape closes what is open, then ends an edit, then stops the running answer.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || event.isComposing || event.keyCode === 229) return;
    if (document.querySelector(":popover-open, dialog[open]")) return;
    if (composer.elements.edits.value) hermes.stopEditing();
    else if (isAnswering()) send("/stop");
  });

  log.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]");
    if (button) actions[button.dataset.act](button.closest(".entry"), button);
  });
})();
