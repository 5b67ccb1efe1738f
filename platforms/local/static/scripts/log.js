// The messages of a chat: their order, times and scrolling. htmx moves the fragments.
(() => {
  "use strict";

  const { find } = hermes;

  // ---- entries: each id is shown once, in order of time --------------------------------------------

  let api;

  htmx.registerExtension("local-chat", {
    init: (internal) => { api = internal; },
    handle_swap: (style, target, fragment) => {
      if (style === "forget") { for (const gone of fragment.children) find(gone.id)?.remove(); return []; }
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
  const button = find("to-end");
  let isAtEnd = true;
  hermes.stickToEnd = () => { isAtEnd = true; toEnd(); };

  const toEnd = () => { scroll.scrollTop = scroll.scrollHeight; };
  scroll.addEventListener("scroll", () => {
    isAtEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
    button.hidden = isAtEnd;
  }, { passive: true });
  button.addEventListener("click", () => { hermes.stickToEnd(); find("text").focus({ preventScroll: true }); });

  // The first time that messages are shown, begin at the line above those that the person has not seen.
  document.addEventListener("htmx:after:swap", function begin() {
    if (!find("log").children.length) return;
    document.removeEventListener("htmx:after:swap", begin);
    const line = find("unread");
    if (!line || scroll.scrollHeight - line.offsetTop < scroll.clientHeight) return;
    isAtEnd = false;
    line.scrollIntoView({ block: "start" });
  });
  new ResizeObserver(() => { if (isAtEnd) toEnd(); }).observe(find("log"));
  new ResizeObserver(() => { if (isAtEnd) toEnd(); }).observe(scroll);
  document.addEventListener("htmx:after:swap", () => { if (isAtEnd) toEnd(); });
  toEnd();
})();
