// Brings a model into a page when it is first asked for, and a widget when it comes into view. On
// the site this file stands on every page, and next to it lie the others. Only this one, drawing.js
// and the widgets touch the document.
//
// What a widget calls:
//   qwenlab.bring(name)   promises [model, tokenizer]; scripts and weights come with the first call
//   qwenlab.announce()    says in the outputs of page_model whether their models have come
//   qwenlab.mount_all()   puts a widget into each placeholder, once that comes into view
// What an output of a notebook calls last:
//   qwenlab.answer(mark)  tells its kernel that all has come, by pressing the button of that class

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const SCRIPTS = ["lists.js", "text.js", "model.js", "sampling.js", "engine.js"];
  const source = document.currentScript?.src; // nothing where it stands in the page itself
  const coming = new Map(); // promises by file

  // A plain script tag, because a page opened as a file may neither fetch nor import.
  function add_script(file) {
    if (!coming.has(file)) {
      const promise = new Promise((resolve, reject) => {
        const element = document.createElement("script");
        element.src = new URL(file, source).href;
        element.async = false;
        element.onload = resolve;
        element.onerror = () => {
          coming.delete(file); // the next call tries again
          element.remove();
          reject(new Error(`${file} can't be loaded: is the model in qwenlab_page_models?`));
        };
        document.head.append(element);
      });
      coming.set(file, promise);
    }
    return coming.get(file);
  }

  async function bring(name) {
    if (source) {
      const files = qwenlab.generate ? [] : [...SCRIPTS]; // the last one defines it
      if (!qwenlab.packed?.[name]) {
        files.push(`model-${encodeURIComponent(name)}.js`);
      }
      await Promise.all(files.map(add_script));
      announce();
    }
    return qwenlab.load(name);
  }

  function announce() {
    for (const shown of document.querySelectorAll("[data-qwenlab-model]")) {
      const is_here = qwenlab.packed?.[shown.dataset.qwenlabModel] !== undefined;
      if (is_here || source) {
        const said = is_here ? "It is here." : "It is loaded when it is first used.";
        shown.querySelector("span").textContent = said;
      }
    }
  }

  // A placeholder is what page_model(...).widget(...) leaves: see drawing.js.
  function mount_all() {
    const observer = new IntersectionObserver(
      (entries) => {
        for (const { isIntersecting, target } of entries) {
          if (isIntersecting) {
            observer.unobserve(target);
            mount_one(target);
          }
        }
      },
      { rootMargin: "300px" },
    );
    for (const placeholder of document.querySelectorAll("[data-widget]:not([data-state])")) {
      placeholder.dataset.state = "waiting";
      observer.observe(placeholder);
    }
  }

  // The button is made by ipywidgets, which takes a moment; where there is none, nothing happens.
  function answer(mark, tries = 100) {
    const button = document.querySelector(`.${mark}`);
    if (button) {
      button.click();
    } else if (tries > 0) {
      setTimeout(() => answer(mark, tries - 1), 300);
    }
  }

  async function mount_one(placeholder) {
    try {
      if (source) {
        await add_script("lists.js");
        await add_script("drawing.js");
        await add_script(`widget_${placeholder.dataset.widget}.js`);
      }
    } catch (error) {
      placeholder.dataset.state = "failed"; // the still stays
      console.error(error);
      return;
    }
    await qwenlab.mount(placeholder);
  }

  if (source) {
    addEventListener("DOMContentLoaded", announce);
    addEventListener("DOMContentLoaded", mount_all);
  }
  Object.assign(qwenlab, { bring, announce, mount_all, answer });
})(globalThis.qwenlab);
