// Exchanges the token of the address for the cookie and for the key that only this origin's storage holds.
(async () => {
  "use strict";
  const token = new URLSearchParams(location.search).get("token") ?? "";
  history.replaceState(null, "", "/");
  const headers = { "Hermes-Key": localStorage.getItem("hermes.key") ?? "", "Hermes-Token": token };
  const answer = await fetch("/sign-in", { method: "POST", headers });
  if (answer.status === 200) localStorage.setItem("hermes.key", await answer.text());
  location.replace("/chat/main");
})();
