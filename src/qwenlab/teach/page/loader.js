// Brings a model into a page when it is first asked for. The only file here that touches the
// document; on the site it stands on every page, and next to it lie the others.
//
// What a widget calls:
//   qwenlab.bring(name)   promises [model, tokenizer]; scripts and weights come with the first call
//   qwenlab.announce()    says in the outputs of page_model whether their models have come

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const SCRIPTS = ["text.js", "model.js", "sampling.js", "engine.js"];
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

  if (source) {
    addEventListener("DOMContentLoaded", announce);
  }
  Object.assign(qwenlab, { bring, announce });
})(globalThis.qwenlab);
