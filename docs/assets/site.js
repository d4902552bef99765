// What the theme leaves out for those who use a keyboard or listen: places that scroll can be reached by Tab, and
// only what leads somewhere is a landmark.
const mended = () => {
  for (const each of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (each.scrollWidth > each.clientWidth) each.setAttribute("tabindex", "0");
  }
  for (const each of document.querySelectorAll(".md-code__nav, nav.md-nav nav.md-nav")) each.setAttribute("role", "group");
};
let waiting = 0;
const soon = () => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(mended);
};
soon();
addEventListener("resize", soon);
new MutationObserver(soon).observe(document.body, { childList: true, subtree: true });
