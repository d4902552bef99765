// What the theme leaves out for those who use a keyboard or listen: places that scroll can be reached by Tab, buttons
// that copy are no landmark, each list of pages has a name, and so has the search.
const mended = () => {
  for (const each of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (each.scrollWidth > each.clientWidth) each.setAttribute("tabindex", "0");
  }
  for (const each of document.querySelectorAll(".md-code__nav")) each.setAttribute("role", "presentation");
  for (const each of document.querySelectorAll("nav.md-nav[aria-labelledby]")) {
    const link = each.parentElement.querySelector(".md-ellipsis");
    each.setAttribute("aria-label", link ? link.textContent.trim() : "Pages");
    each.removeAttribute("aria-labelledby");
  }
};
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
let waiting = 0;
const soon = () => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(mended);
};
soon();
addEventListener("resize", soon);
new MutationObserver(soon).observe(document.body, { childList: true, subtree: true });
