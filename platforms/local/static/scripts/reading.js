// What the person has seen, and the notification that a long answer is done.
(() => {
  "use strict";

  const { find } = hermes;
  const log = find("log");
  const scroll = find("scroll");
  const LONG_MS = 10_000;

  // ---- the newest entry on the screen, which the gateway remembers --------------------------------------------------

  let told = "";
  let timer = 0;

  async function tell() {
    const bottom = scroll.getBoundingClientRect().bottom;
    const entry = [...log.querySelectorAll("article.entry:not(.preview, .waiting)")]
      .findLast((one) => one.getBoundingClientRect().top < bottom);
    if (!entry || entry.id === told || document.hidden) return;
    const body = new URLSearchParams({ ref: entry.id.slice(2) });
    const sent = await fetch(`${location.pathname}/read`, { method: "POST", body, headers: { "Hermes-Key": hermes.key() } })
      .catch(() => null);
    if (sent?.ok) told = entry.id;
  }

  function tellSoon() {
    clearTimeout(timer);
    timer = setTimeout(tell, 1500); // the gateway records a delivery after the page has shown it
  }

  document.addEventListener("htmx:after:swap", () => { told = ""; tellSoon(); });
  scroll.addEventListener("scroll", tellSoon, { passive: true });

  // ---- notifications --------------------------------------------------------------------------------------------------

  const button = find("notify");
  const isPossible = "Notification" in window && "serviceWorker" in navigator && Notification.permission !== "denied";
  const isOn = () => isPossible && Notification.permission === "granted" && localStorage.getItem("hermes.notify") === "on";

  function showState() {
    button.hidden = !isPossible;
    button.setAttribute("aria-pressed", String(isOn()));
  }

  button.addEventListener("click", async () => {
    const wanted = isOn() ? "off" : "on";
    if (wanted === "on" && await Notification.requestPermission() !== "granted") {
      hermes.complain("Your browser does not allow notifications from this page. Change this in its settings.");
      return;
    }
    localStorage.setItem("hermes.notify", wanted);
    showState();
  });
  showState();

  const newest = () => [...log.querySelectorAll(":is(.person, .answer, .preview, .notice):not(.waiting)")].at(-1);
  const isAnswering = () => newest()?.matches(".person, .preview") ?? false;

  // htmx closes the stream of a hidden page. Keep it while an answer is written, because the notification needs it.
  window.addEventListener("visibilitychange", (event) => {
    if (document.hidden && isOn() && isAnswering()) event.stopImmediatePropagation();
    if (!document.hidden) tellSoon();
  }, true);

  let wasAnswering = false;
  document.addEventListener("htmx:after:swap", async () => {
    const isDone = wasAnswering && !isAnswering();
    wasAnswering = isAnswering();
    const asked = [...log.querySelectorAll(".person:not(.waiting)")].at(-1);
    if (!isDone || !document.hidden || !isOn() || Date.now() - Number(asked?.dataset.at) < LONG_MS) return;
    const worker = await navigator.serviceWorker.ready;
    worker.showNotification("The answer is ready", { body: find("heading").textContent, tag: location.pathname, icon: "/static/icon-192.png" });
  });
})();
