// Exchange the token in the address for the cookie, and for the key that only this origin's storage has.
(async () => {
  "use strict";
  const token = new URLSearchParams(location.search).get("token") ?? "";
  const headers = { "Hermes-Key": localStorage.getItem("hermes.key") ?? "", "Hermes-Token": token };
  const answer = await fetch("/sign-in", { method: "POST", headers }).catch(() => null);
  const line = document.querySelector("main p");
  if (!answer || answer.status >= 500) { // the token and the address stay valid
    line.textContent = "The gateway cannot sign you in right now. Reload this page in a moment.";
    return;
  }
  if (answer.status === 403) { // the gateway does not know the address of this reverse proxy
    const refused = new DOMParser().parseFromString(await answer.text(), "text/html");
    line.textContent = refused.querySelector("main p").textContent;
    return;
  }
  history.replaceState(null, "", "/");
  if (answer.status === 200) localStorage.setItem("hermes.key", await answer.text());
  location.replace(answer.headers.get("Hermes-Start") ?? "/chat/main");
})();
