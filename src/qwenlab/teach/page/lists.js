// What the other scripts do with lists of numbers and words. It is loaded first.
//
//   qwenlab.range(end, start=0)   [start, ..., end - 1]
//   qwenlab.sum(numbers)          of an array, 0 if it is empty
//   qwenlab.listed(words)         "A, B and C"
//   qwenlab.capital(text)         with its first letter in upper case

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const range = (end, start = 0) => Array.from({ length: end - start }, (_, i) => start + i);
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const capital = (text) => text[0].toUpperCase() + text.slice(1);

  function listed(words) {
    const last = words.at(-1) ?? "";
    return words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${last}` : last;
  }

  Object.assign(qwenlab, { range, sum, listed, capital });
})(globalThis.qwenlab);
