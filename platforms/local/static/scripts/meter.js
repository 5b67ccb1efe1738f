// The context meter: it loads again after each answer, reply and compression.
(() => {
  "use strict";

  const meter = hermes.find("meter");
  let shown = "";
  let timer;

  document.addEventListener("htmx:after:swap", () => {
    const settled = document.querySelectorAll("#log > :is(.answer, .notice, .condensed)");
    const now = `${settled.length} ${settled[settled.length - 1]?.id}`;
    if (now === shown) return;
    shown = now;
    clearTimeout(timer);
    timer = setTimeout(() => { htmx.trigger(meter, "meter-outdated"); }, 300);
  });
})();
