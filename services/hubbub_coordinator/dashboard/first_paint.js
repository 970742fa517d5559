// A classic script on purpose: it runs before anything is painted, and modules do not.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = localStorage.getItem("hubbub.theme") ?? system;
})();
