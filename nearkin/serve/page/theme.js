// A classic script in the head: the remembered theme must be there before the first paint.
(() => {
  try {
    const theme = localStorage.getItem("nearkin-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be forbidden; the system's preference holds then.
  }
})();
