// Shared by all pages: the key of this browser, the connection, errors, and copying.
const hermes = {
  find: (id) => document.getElementById(id),
  key: () => localStorage.getItem("hermes.key") ?? "",
  complain: (sentence) => {
    const line = document.createElement("p");
    line.textContent = sentence;
    hermes.find("complaint").replaceChildren(...(sentence ? [line] : []));
  },
};

(() => {
  "use strict";

  const { find } = hermes;

  // ---- the stream -----------------------------------------------------------------------------------------------

  const connection = find("connection");
  const lock = hermes.lock = (isLocked) => { document.body.classList.toggle("locked", isLocked); };
  const connected = () => { connection.hidden = true; lock(false); };
  document.addEventListener("htmx:sse:after:connection", connected);
  document.addEventListener("htmx:sse:error", (event) => {
    if (event.detail.status === 401) lock(true);
    connection.hidden = false;
  });
  document.addEventListener("htmx:response:error", (event) => {
    if (event.detail.ctx.response.status === 401) lock(true);
  });
  document.addEventListener("htmx:after:request", (event) => {
    if (event.detail.ctx.response?.status < 400) lock(false);
  });

  // If another tab signed in again, this page's stream would reconnect with the old key.
  window.addEventListener("storage", (event) => { if (event.key === "hermes.key") location.reload(); });

  // Every request needs the key. Unlike the cookie, it is not sent to other ports of this host.
  document.addEventListener("htmx:config:request", (event) => {
    event.detail.ctx.request.headers["Hermes-Key"] = hermes.key();
  });

  // ---- focus: an element that a change removes hands it to its replacement, or to the page's main element ---------------

  let focused = null;
  document.addEventListener("htmx:before:swap", () => {
    const element = document.activeElement;
    focused = element && element !== document.body ? { element, isVisible: element.matches(":focus-visible") } : focused;
  });
  document.addEventListener("htmx:after:swap", () => {
    if (!focused || focused.element.isConnected || document.activeElement !== document.body) return;
    const { element, isVisible } = focused;
    const address = element.getAttribute("href");
    const same = element.id ? find(element.id) : address && document.querySelector(`a[href="${CSS.escape(address)}"]`);
    if (same || isVisible) (same ?? find("text") ?? find("content"))?.focus({ preventScroll: true });
    focused = null;
  });

  // ---- the offline page ---------------------------------------------------------------------------------------------

  navigator.serviceWorker?.register("/static/worker.js", { scope: "/" }).catch(() => {}); // needs TLS or this machine

  // ---- times of the console, in the reader's zone --------------------------------------------------------------------

  const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

  document.addEventListener("htmx:after:swap", () => {
    for (const time of document.querySelectorAll("time[data-time]")) {
      const at = new Date(Number(time.dataset.time));
      time.dateTime = at.toISOString();
      time.textContent = moment.format(at);
    }
  });

  // ---- forms of the console: empty after they succeeded; `data-then` names the page to open next ---------------------

  document.addEventListener("htmx:finally:request", (event) => {
    const { ctx } = event.detail;
    const form = ctx?.request?.form;
    if (ctx?.request?.method !== "POST" || !form?.closest("#content") || !(ctx.response?.status < 400)) return;
    form.reset();
    if (form.dataset.then) location.assign(form.dataset.then);
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
