// The lineage: show the opened session, or the newest one, in the middle of its scrolling tree.
(() => {
  "use strict";

  let isPlaced = false;

  document.addEventListener("htmx:after:swap", () => {
    const trees = document.querySelectorAll(".tree");
    if (isPlaced || !trees.length) return;
    isPlaced = true;
    for (const tree of trees) {
      const node = tree.querySelector("a[aria-current] circle");
      tree.scrollLeft = node ? Number(node.getAttribute("cx")) - tree.clientWidth / 2 : tree.scrollWidth;
    }
    document.querySelector(".wanted")?.scrollIntoView({ block: "center" });
  });
})();
