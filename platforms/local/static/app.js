// Behaviour of the page that HTML cannot express. htmx moves the fragments.
(() => {
  "use strict";

  const find = (id) => document.getElementById(id);

  // ---- entries: each id is shown once, in order of time --------------------------------------------

  let api;

  htmx.registerExtension("local-chat", {
    init: (internal) => { api = internal; },
    handle_swap: (style, target, fragment) => {
      if (style !== "upsert") return false;
      return [...fragment.children].map((fresh) => place(target, updated(fresh)));
    },
  });

  function updated(fresh) {
    const shown = find(fresh.id);
    if (!shown) return fresh;
    if (shown.tagName !== fresh.tagName) { shown.replaceWith(fresh); return fresh; }
    const holder = document.createDocumentFragment();
    const id = fresh.id;
    holder.append(fresh);
    api.morph(shown, holder, false);
    return find(id);
  }

  function place(log, entry) {
    const order = Number(entry.dataset.order);
    let before = log.lastElementChild;
    while (before && (before === entry || Number(before.dataset.order) > order)) before = before.previousElementSibling;
    if (before ? before.nextElementSibling !== entry : log.firstElementChild !== entry) {
      if (before) before.after(entry); else log.prepend(entry);
    }
    return entry;
  }

  // ---- times: in the reader's zone and format, a date before the first entry of each day ------------------------

  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "medium" });
  const date = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", year: "numeric" });

  function showTimes() {
    let day = "";
    for (const entry of find("log").querySelectorAll(".entry")) {
      const at = new Date(Number(entry.dataset.at));
      for (const time of entry.querySelectorAll("header > time")) {
        time.dateTime = at.toISOString();
        time.title = moment.format(at);
        time.textContent = clock.format(at);
      }
      showDay(entry, date.format(at), day);
      day = date.format(at);
    }
    for (const line of document.querySelectorAll("#log > .day")) {
      if (!line.nextElementSibling?.classList.contains("entry")) line.remove();
    }
  }

  function showDay(entry, day, before) {
    let line = entry.previousElementSibling;
    if (!line?.classList.contains("day")) line = null;
    if (day === before) { line?.remove(); return; }
    if (!line) {
      line = document.createElement("p");
      line.className = "day";
      entry.before(line);
    }
    line.dataset.order = entry.dataset.order;
    if (line.textContent !== day) line.textContent = day;
  }

  document.addEventListener("htmx:after:swap", showTimes);

  // ---- scrolling: stay at the end unless the reader scrolled up ---------------------------------------------------

  const scroll = find("scroll");
  let isAtEnd = true;

  const toEnd = () => { scroll.scrollTop = scroll.scrollHeight; };
  scroll.addEventListener("scroll", () => {
    isAtEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
  }, { passive: true });
  new ResizeObserver(() => { if (isAtEnd) toEnd(); }).observe(find("log"));
  new ResizeObserver(() => { if (isAtEnd) toEnd(); }).observe(scroll);
  document.addEventListener("htmx:after:swap", () => { if (isAtEnd) toEnd(); });
  toEnd();

  // ---- the stream -----------------------------------------------------------------------------------------------

  const connection = find("connection");
  const lock = (isLocked) => { document.body.classList.toggle("locked", isLocked); };
  const connected = () => { connection.hidden = true; lock(false); };
  document.addEventListener("htmx:sse:after:connection", connected);
  document.addEventListener("htmx:sse:error", (event) => {
    if (event.detail.status === 401) lock(true);
    connection.hidden = false;
  });
  document.addEventListener("htmx:response:error", (event) => {
    if (event.detail.ctx.response.status === 401) lock(true);
  });

  // If another tab signed in again, this page's stream would reconnect with the old key.
  window.addEventListener("storage", (event) => { if (event.key === "hermes.key") location.reload(); });

  // Every request needs the key. Unlike the cookie, it is not sent to other ports of this host.
  document.addEventListener("htmx:config:request", (event) => {
    event.detail.ctx.request.headers["Hermes-Key"] = localStorage.getItem("hermes.key") ?? "";
  });

  // ---- the composer ---------------------------------------------------------------------------------------------

  const composer = find("composer");
  const text = find("text");
  const files = find("files");
  const chosen = find("chosen");
  const complaint = find("complaint");

  const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

  function complain(sentence) {
    const line = document.createElement("p");
    line.textContent = sentence;
    complaint.replaceChildren(...(sentence ? [line] : []));
  }

  function grow() {
    text.style.height = "auto";
    text.style.height = `${Math.min(text.scrollHeight, window.innerHeight * 0.4)}px`;
  }

  function showChosen() {
    chosen.replaceChildren(...[...files.files].map((file) => {
      const item = document.createElement("li");
      item.textContent = file.name;
      return item;
    }));
    if (files.files.length) {
      const item = document.createElement("li");
      const remove = document.createElement("button");
      remove.type = "button";
      remove.className = "quiet";
      remove.textContent = "Remove";
      remove.addEventListener("click", () => { files.value = ""; showChosen(); text.focus(); });
      item.append(remove);
      chosen.append(item);
    }
    chosen.hidden = !files.files.length;
  }

  const isTooLarge = () => [...files.files].some((file) => file.size > Number(composer.dataset.maxBytes));

  // Every form gives its message an id. The same id again, from a double click or a retry, is the same message.
  document.addEventListener("htmx:config:request", (event) => {
    const { ctx } = event.detail;
    const form = ctx.request.form;
    if (ctx.request.method !== "POST" || !form) return;
    const field = form.elements.client_id;
    field.value ||= newId();
    ctx.request.body.set("client_id", field.value);
    if (form !== composer) return;
    if (!text.value.trim() && !files.files.length) { event.preventDefault(); return; }
    if (isTooLarge()) {
      complain(`A file can be at most ${Math.round(Number(composer.dataset.maxBytes) / 1e6)} MB.`);
      event.preventDefault();
      return;
    }
    ctx.sent = { text: text.value, files: files.files, id: field.value };
    field.value = newId();
    text.value = "";
    files.value = "";
    showChosen();
    grow();
    isAtEnd = true;
    toEnd();
  });

  document.addEventListener("htmx:finally:request", (event) => {
    const { ctx } = event.detail;
    const form = ctx?.request?.form;
    if (!form || ctx.request.method !== "POST") return;
    const isStored = ctx.response && ctx.response.status < 400;
    if (!ctx.response) complain("The gateway does not answer. Your text is still here; try again in a moment.");
    else if (!isStored && !complaint.textContent.trim()) {
      complain("Something went wrong. Your text is still here; try again in a moment.");
    }
    if (form !== composer) {
      if (isStored) form.elements.client_id.value = newId();
    } else if (!isStored && ctx.sent) {
      giveBack(ctx.sent);
    }
  });

  // Put text that was not stored back into the composer. It keeps its id unless the person began a new message.
  function giveBack(sent) {
    if (!text.value) composer.elements.client_id.value = sent.id;
    text.value = text.value ? `${sent.text}\n${text.value}` : sent.text;
    if (!files.files.length) { files.files = sent.files; showChosen(); }
    grow();
  }

  text.addEventListener("input", () => { grow(); complain(""); suggest(); });
  files.addEventListener("change", () => { complain(""); showChosen(); text.focus(); });
  text.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) { files.files = event.clipboardData.files; showChosen(); event.preventDefault(); }
  });
  text.addEventListener("keydown", (event) => {
    if (event.isComposing || event.keyCode === 229) return; // Safari sends it after compositionend
    if (steer(event)) { event.preventDefault(); return; }
    if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      composer.requestSubmit();
    }
  });

  // ---- commands: a list that filters while the person types ---------------------------------------------------------

  const list = find("commands");
  const options = list ? [...list.children] : [];

  const matching = () => {
    const typed = /^\/\S*$/.test(text.value) ? text.value.toLowerCase() : null;
    return typed === null ? [] : options.filter((option) => option.dataset.command.startsWith(typed));
  };

  function suggest() {
    const found = matching();
    for (const option of options) option.hidden = !found.includes(option);
    if (list) list.hidden = !found.length;
    select(found[0]);
  }

  function select(wanted) {
    for (const option of options) option.setAttribute("aria-selected", String(option === wanted));
    if (wanted) { text.setAttribute("aria-activedescendant", wanted.id); wanted.scrollIntoView({ block: "nearest" }); }
    else text.removeAttribute("aria-activedescendant");
  }

  function take(option) {
    text.value = option.dataset.command + (option.hasAttribute("data-argument") ? " " : "");
    list.hidden = true;
    text.focus();
    grow();
  }

  function steer(event) {
    if (!list || list.hidden) return false;
    const found = matching();
    const at = found.findIndex((option) => option.getAttribute("aria-selected") === "true");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      select(found[(at + step + found.length) % found.length]);
      return true;
    }
    if (event.key === "Escape") { list.hidden = true; return true; }
    const option = found[at];
    if (!option || (event.key !== "Tab" && event.key !== "Enter")) return false;
    if (event.key === "Enter" && text.value === option.dataset.command) { list.hidden = true; return false; }
    take(option);
    return true;
  }

  list?.addEventListener("mousedown", (event) => {
    const option = event.target.closest("[data-command]");
    if (option) { event.preventDefault(); take(option); }
  });
  text.addEventListener("blur", () => { if (list) list.hidden = true; });

  // ---- files from the agent: fetched with the key, which a plain link cannot send --------------------------------

  async function fetched(address) {
    const answer = await fetch(address, { headers: { "Hermes-Key": localStorage.getItem("hermes.key") ?? "" } });
    if (!answer.ok) throw new Error(`${answer.status}`);
    return URL.createObjectURL(await answer.blob());
  }

  async function showPicture(picture) {
    try {
      picture.src = await fetched(picture.dataset.file);
      picture.addEventListener("load", () => { URL.revokeObjectURL(picture.src); }, { once: true });
    } catch { picture.hidden = true; } // its name is shown below
  }

  document.addEventListener("htmx:after:swap", () => {
    document.querySelectorAll("#log img[data-file]:not([src])").forEach(showPicture);
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-file]");
    if (!button) return;
    try {
      const link = document.createElement("a");
      link.href = await fetched(button.dataset.file);
      link.download = button.dataset.name;
      link.click();
      setTimeout(() => { URL.revokeObjectURL(link.href); }, 60_000);
    } catch { complain("This file is no longer available, or the gateway does not answer."); }
  });

  // ---- copy buttons -----------------------------------------------------------------------------------------------

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const code = button.closest(".code").querySelector("pre");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch { // browsers give no clipboard to a page from another machine without TLS
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
})();
