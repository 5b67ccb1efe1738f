// Files from the agent. They are fetched with the key, which a plain link cannot send.
(() => {
  "use strict";

  async function fetched(address) {
    const answer = await fetch(address, { headers: { "Hermes-Key": hermes.key() } });
    if (!answer.ok) throw new Error(`${answer.status}`);
    return URL.createObjectURL(await answer.blob());
  }

  async function showPicture(picture) {
    picture.dataset.isAsked = "";
    try {
      picture.src = await fetched(picture.dataset.file); // a picture, or a recording
      picture.addEventListener("load", () => { URL.revokeObjectURL(picture.src); }, { once: true });
    } catch { picture.hidden = true; } // its name is shown below
  }

  document.addEventListener("htmx:after:swap", () => {
    document.querySelectorAll("#log :is(img, audio)[data-file]:not([data-is-asked])").forEach(showPicture);
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
    } catch { hermes.complain("This file is no longer available, or the gateway does not answer."); }
  });
})();
