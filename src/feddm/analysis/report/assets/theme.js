// Runs before the first paint: follow the system's theme until the reader chooses one.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const follow = () => { root.dataset.theme = system.matches ? "dark" : "light"; };
  follow();
  system.addEventListener("change", () => {
    if (root.dataset.chosen) return;
    follow();
    document.dispatchEvent(new Event("themechange"));
  });
})();
