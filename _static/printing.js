// What is unfolded on a page is printed. With ?solutions in the address everything is: hints,
// solutions and the reasons of the quizzes.
(function () {
  "use strict";

  if (!new URLSearchParams(location.search).has("solutions")) return;
  document.documentElement.classList.add("qwl-solutions");
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((part) => {
      part.removeAttribute("name"); // a quiz keeps one choice open at a time
      part.open = true;
    });
  });
})();
