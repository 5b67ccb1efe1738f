// The list of chats: its menu, its archive, and how much of it a refresh loads.
(() => {
  "use strict";

  const { find } = hermes;
  const list = find("chat-list");
  const menu = find("chat-menu");
  const archived = find("show-archived");
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  let opener;

  const say = (sentence) => { find("list-said").textContent = sentence; };

  document.addEventListener("htmx:config:request", (event) => {
    const { ctx } = event.detail;
    ctx.request.headers["Hermes-Zone"] = zone;
    if (!ctx.sourceElement?.hasAttribute("data-list")) return;
    const address = new URL(ctx.request.action, location.href);
    address.searchParams.set("count", list.querySelectorAll(".chat-more").length);
    if (archived.getAttribute("aria-pressed") === "true") address.searchParams.set("archived", "1");
    ctx.request.action = address.pathname + address.search;
  });

  archived.addEventListener("click", () => {
    const isOn = archived.getAttribute("aria-pressed") !== "true";
    archived.setAttribute("aria-pressed", String(isOn));
    archived.textContent = isOn ? "Back to all chats" : "Archived chats";
    say("");
    htmx.trigger(list, "chats-changed");
    list.scrollTop = 0;
  });

  // ---- a message that an address or a search names: shown once its content is loaded ------------------------------------

  let wanted = decodeURIComponent(location.hash.slice(1)) || "found";

  document.addEventListener("htmx:after:swap", () => {
    const found = wanted && find(wanted);
    if (!found) return;
    wanted = "";
    found.classList.add("found");
    found.scrollIntoView({ block: "center" });
  });

  // ---- the menu of a chat -------------------------------------------------------------------------------------------

  list.addEventListener("click", (event) => {
    const button = event.target.closest(".chat-more");
    if (button) opener = button;
  });

  document.addEventListener("htmx:after:swap", () => {
    if (!menu.firstElementChild || !opener) return;
    if (!menu.matches(":popover-open")) menu.showPopover();
    const at = opener.getBoundingClientRect();
    menu.style.left = `${Math.max(8, Math.min(at.left, innerWidth - menu.offsetWidth - 8))}px`;
    menu.style.top = `${Math.max(8, Math.min(at.bottom + 4, innerHeight - menu.offsetHeight - 8))}px`;
    if (!menu.contains(document.activeElement)) menu.querySelector("button, input").focus();
  });

  menu.addEventListener("toggle", (event) => {
    if (event.newState !== "closed") return;
    const id = opener?.closest("li")?.id;
    opener = null;
    menu.replaceChildren();
    (find(id)?.querySelector(".chat-more") ?? list).focus();
  });

  document.addEventListener("chats-changed", () => { if (menu.matches(":popover-open")) menu.hidePopover(); });

  document.addEventListener("htmx:finally:request", (event) => {
    const { ctx } = event.detail;
    if (!ctx.response && find("chats").contains(ctx.sourceElement)) say("The gateway does not answer. Try again in a moment.");
  });
})();
