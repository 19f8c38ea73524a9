// Terms of the glossary (qwenlab.teach.glossary_terms): CSS shows a definition on hover and focus.
// A first tap shows it too, and a second one follows the link. Escape hides it.
(function () {
  "use strict";

  const open_terms = () => document.querySelectorAll(".qwl-term-open");

  document.addEventListener("click", (event) => {
    const term = event.target.closest(".qwl-term");
    const was_open = term !== null && term.classList.contains("qwl-term-open");
    open_terms().forEach((other) => other.classList.remove("qwl-term-open"));
    if (term !== null && event.pointerType === "touch" && !was_open) {
      event.preventDefault();
      term.classList.add("qwl-term-open");
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    open_terms().forEach((term) => term.classList.remove("qwl-term-open"));
    document.querySelectorAll(".qwl-term:is(:hover, :focus)").forEach((term) => {
      const show = () => term.classList.remove("qwl-term-hidden");
      term.classList.add("qwl-term-hidden");
      term.addEventListener("mouseleave", show, { once: true });
      term.addEventListener("blur", show, { once: true });
    });
  });
})();
