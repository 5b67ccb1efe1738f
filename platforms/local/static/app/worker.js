// Shows a page that says so when the gateway cannot be reached. It keeps nothing that a person or a model wrote.
"use strict";

const FILES = ["/offline", "/static/app.css", "/static/offline.js", "/static/icon.svg"];

self.addEventListener("install", (event) => {
  const kept = caches.open("offline").then((cache) => cache.addAll(FILES));
  event.waitUntil(kept.then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => {
  event.waitUntil(Promise.all([self.clients.claim(), self.registration.navigationPreload?.enable()]));
});

self.addEventListener("fetch", (event) => {
  const { pathname } = new URL(event.request.url);
  if (event.request.mode === "navigate") event.respondWith(page(event));
  else if (FILES.includes(pathname)) event.respondWith(fetch(event.request).catch(() => caches.match(pathname)));
});

async function page(event) {
  try {
    const answer = await event.preloadResponse ?? await fetch(event.request);
    if (![502, 504].includes(answer.status)) return answer; // the errors of a reverse proxy without its gateway
  } catch { /* no connection */ }
  return caches.match("/offline");
}

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil((async () => {
    const windows = await self.clients.matchAll({ type: "window" });
    const shown = windows.find((one) => new URL(one.url).pathname === event.notification.tag);
    return shown ? shown.focus() : self.clients.openWindow(event.notification.tag);
  })());
});
