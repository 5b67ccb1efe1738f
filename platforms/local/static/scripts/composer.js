// The field in which a person writes, and its list of commands.
(() => {
  "use strict";

  const { find, complain } = hermes;

  // ---- the composer ---------------------------------------------------------------------------------------------

  const composer = find("composer");
  const text = find("text");
  const files = find("files");
  const chosen = find("chosen");
  const complaint = find("complaint");

  const newId = hermes.newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

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

  function setFiles(wanted) {
    const transfer = new DataTransfer();
    for (const file of wanted) transfer.items.add(file);
    files.files = transfer.files;
    showChosen();
  }

  const isTooLarge = () => [...files.files].some((file) => file.size > Number(composer.dataset.maxBytes));

  // Every form gives its message an id. The same id again, from a double click or a retry, is the same message.
  document.addEventListener("htmx:config:request", (event) => {
    const { ctx } = event.detail;
    const form = ctx.request.form;
    if (ctx.request.method !== "POST" || !form) return;
    const field = form.elements.client_id;
    if (!field) return;
    field.value ||= newId();
    ctx.request.body.set("client_id", field.value);
    if (form !== composer) return;
    if (!text.value.trim() && !files.files.length) { event.preventDefault(); return; }
    if (isTooLarge()) {
      complain(`A file can be at most ${Math.round(Number(composer.dataset.maxBytes) / 1e6)} MB.`);
      event.preventDefault();
      return;
    }
    ctx.sent = { text: text.value, files: files.files, id: field.value, edits: composer.elements.edits.value };
    field.value = newId();
    takeUpDraft();
    hermes.stickToEnd();
  });

  // Put text and files into the composer. `edits` is the message that they replace when they are sent. Until then, the
  // draft that was in the composer waits.
  let draft = { words: "", chosenFiles: [] };
  composer.elements.edits.value = ""; // a reload can restore it

  hermes.fill = (words, chosenFiles, edits = "") => {
    if (edits && !composer.elements.edits.value) draft = { words: text.value, chosenFiles: files.files };
    text.value = words;
    setFiles(chosenFiles);
    composer.elements.edits.value = edits;
    find("editing").hidden = !edits;
    grow();
  };

  function takeUpDraft() {
    hermes.fill(draft.words, draft.chosenFiles);
    draft = { words: "", chosenFiles: [] };
  }

  hermes.stopEditing = () => { takeUpDraft(); text.focus(); };
  find("editing").querySelector("button").addEventListener("click", hermes.stopEditing);

  // This tab keeps the text over a reload, for example after another tab has signed in again. It cannot keep files.
  const place = `hermes.draft ${location.pathname}`;
  window.addEventListener("pagehide", () => {
    const kept = [text.value, composer.elements.edits.value, draft.words, files.files.length + draft.chosenFiles.length];
    if (kept.some(Boolean)) sessionStorage.setItem(place, JSON.stringify(kept));
    else sessionStorage.removeItem(place);
  });
  const [words, edits, waiting, count] = JSON.parse(sessionStorage.getItem(place) ?? '["", "", "", 0]');
  hermes.fill(words, [], edits);
  draft.words = waiting;
  if (count) complain("Your text is still here. Choose your files again.");

  document.addEventListener("htmx:finally:request", (event) => {
    const { ctx } = event.detail;
    const form = ctx?.request?.form;
    if (!form?.elements.client_id || ctx.request.method !== "POST") return;
    const isStored = ctx.response && ctx.response.status < 400;
    if (!ctx.response) complain("The gateway does not answer. Your text is still here; try again in a moment.");
    else if (!isStored && !complaint.textContent.trim()) {
      complain("Something went wrong. Your text is still here; try again in a moment.");
    }
    if (form !== composer) {
      if (isStored) form.elements.client_id.value = newId();
    } else if (!isStored && ctx.sent) {
      giveBack(ctx.sent, ctx.response?.status === 409);
    }
  });

  // Put text that was not stored back into the composer. It keeps its id unless the person began a new message.
  function giveBack(sent, isNewMessage) {
    if (sent.edits && !isNewMessage) { hermes.fill(sent.text, sent.files, sent.edits); composer.elements.client_id.value = sent.id; return; }
    if (!text.value) composer.elements.client_id.value = sent.id;
    const words = text.value ? `${sent.text}\n${text.value}` : sent.text;
    hermes.fill(words, files.files.length ? files.files : sent.files);
  }

  text.addEventListener("input", () => { grow(); complain(""); suggest(); });
  files.addEventListener("change", () => { complain(""); showChosen(); text.focus(); });

  // ---- pasted and dropped files -------------------------------------------------------------------------------------

  function attach(event, added) {
    event.preventDefault();
    complain("");
    setFiles([...files.files, ...added]);
    text.focus();
  }

  const isOfFiles = (event) => event.dataTransfer?.types.includes("Files");
  const showTarget = (isShown) => { document.body.classList.toggle("dropping", isShown); };

  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) attach(event, event.clipboardData.files);
  });
  document.addEventListener("dragover", (event) => {
    if (!isOfFiles(event)) return;
    event.preventDefault(); // otherwise the browser opens the file instead of this page
    showTarget(true);
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) showTarget(false); });
  document.addEventListener("drop", (event) => {
    if (!isOfFiles(event)) return;
    showTarget(false);
    attach(event, event.dataTransfer.files);
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
  const slash = find("slash");
  slash?.addEventListener("mousedown", (event) => { event.preventDefault(); }); // keeps the focus, and the phone's keyboard
  slash?.addEventListener("click", () => {
    if (!text.value) text.value = "/";
    text.focus();
    suggest();
  });

  text.addEventListener("blur", () => { if (list) list.hidden = true; });
})();
