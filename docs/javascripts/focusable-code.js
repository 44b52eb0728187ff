// Code that is wider than the page scrolls in its own box. With this the keyboard reaches the box, too.
const watcher = new ResizeObserver((entries) => {
  for (const { target } of entries) target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
});
document.querySelectorAll(".md-typeset pre > code").forEach((code) => watcher.observe(code));
