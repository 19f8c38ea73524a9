// Several answers to one prompt: it is read once and copied into every slot, or read by each slot.
//
//   const run = new qwenlab.AnswersRun(model, tokenizer, text, n, temperature, shared, seed)
//       shared: true, the prompt is read once; false, n times
//   run.step()    -> a frame, or null once every answer has ended
//   run.prompt    token ids; the answer has begun with a thought, so what is sampled first differs
//   run.answers   for each slot the ids sampled so far, stop id included
//   A frame: step; what happened in it, read [{slot, start, end}], copied [{slot, length}] and
//   sampled [{slot, id, differs}]; said, the same in words. `differs`: without sharing (or with it,
//   if the run doesn't share) the library samples another id there.
//   Answer k stays in slot k of the picture; the engine moves rows together when one leaves.
//
// Options: prompt (text), n, temperature.

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const MOST = 60; // new tokens that an answer may have
  const MOST_ANSWERS = 8;
  const NONE = "none"; // in the place of a number, where an answer has no box

  const { range, sum, listed, capital } = qwenlab;

  const complete = ({ token_ids, stop_id }) =>
    stop_id === null ? token_ids : [...token_ids, stop_id];

  // "slot 2", "slots 0 and 2", "slots 0 to 4"
  function named(slots) {
    if (slots.length === 1) {
      return `slot ${slots[0]}`;
    }
    const together = slots.at(-1) - slots[0] === slots.length - 1;
    const is_long = together && slots.length > 2;
    return `slots ${is_long ? `${slots[0]} to ${slots.at(-1)}` : listed(slots)}`;
  }

  // --- The run, without a page -------------------------------------------------------------------

  // An engine with a slot for each answer, and their requests.
  function start(model, prompt, n, options, shared) {
    const engine = new qwenlab.Engine(model, n);
    const requests = qwenlab.make_requests(model, [prompt], n, options);
    if (shared) {
      qwenlab.share(requests, n);
    }
    requests.forEach((request) => engine.add_request(request));
    return { engine, requests };
  }

  class AnswersRun {
    constructor(model, tokenizer, text, n, temperature, shared, seed) {
      this.tokenizer = tokenizer;
      this.stop_ids = model.stop_ids;
      this.prompt = qwenlab.drawing.begun_chat(tokenizer, text);
      this.n = n;
      this.shared = shared;
      const options = { max_new_tokens: MOST, temperature, seed };
      this.main = start(model, this.prompt, n, options, shared);
      this.other = start(model, this.prompt, n, options, !shared); // what it is compared with
      this.frames = [];
    }

    get answers() {
      return this.main.requests.map(complete);
    }

    is_done() {
      return !this.main.engine.has_unfinished();
    }

    step() {
      if (this.is_done()) {
        return null;
      }
      const { engine } = this.main;
      engine.step();
      const { plan } = engine;
      const reader = new Map(plan.prefill.map(({ slot, request }) => [slot, request.index]));
      const frame = {
        step: this.frames.length,
        read: plan.prefill.map(({ request, start, end }) => ({ slot: request.index, start, end })),
        copied: plan.copies.map(({ prefix, slot }) => {
          return { slot: reader.get(slot), length: prefix.length };
        }),
        sampled: plan.sampled.map(({ index }) => this.sampled(index)),
        said: "",
      };
      frame.sampled.sort((a, b) => a.slot - b.slot);
      this.frames.push(frame);
      frame.said = sentence(this, frame);
      return frame;
    }

    // The newest id of an answer, beside the one at its place in the other run.
    sampled(slot) {
      const answer = this.answers[slot];
      const place = answer.length - 1;
      const { engine, requests } = this.other;
      while (complete(requests[slot]).length <= place && engine.has_unfinished()) {
        engine.step();
      }
      const id = answer[place];
      return { slot, id, differs: id !== complete(requests[slot])[place] };
    }

    // Tokens so far: read, copied and sampled.
    counts(frames = this.frames) {
      const read = frames.flatMap((frame) => frame.read.map(({ start, end }) => end - start));
      const copied = frames.flatMap((frame) => frame.copied.map(({ length }) => length));
      const sampled = frames.map((frame) => frame.sampled.length);
      return { read: sum(read), copied: sum(copied), sampled: sum(sampled) };
    }

    // How many answers that have ended have which number in their box, the most frequent first;
    // NONE for an answer without a box.
    tally(frames = this.frames) {
      const counts = new Map();
      for (const answer of this.ended(frames)) {
        const value = this.boxed(answer);
        counts.set(value, (counts.get(value) ?? 0) + 1);
      }
      return [...counts].sort((a, b) => b[1] - a[1]);
    }

    boxed(answer) {
      return qwenlab.drawing.boxed(this.tokenizer.decode(answer)) ?? NONE;
    }

    // Ids by slot, as they are after these frames.
    answers_after(frames) {
      const answers = range(this.n).map(() => []);
      frames.forEach(({ sampled }) => sampled.forEach(({ slot, id }) => answers[slot].push(id)));
      return answers;
    }

    has_ended(answer) {
      return this.stop_ids.has(answer.at(-1)) || answer.length === MOST;
    }

    ended(frames) {
      return this.answers_after(frames).filter((answer) => this.has_ended(answer));
    }

    // Slots whose answer differs from the other run's.
    astray(frames = this.frames) {
      const differing = frames.flatMap(({ sampled }) => sampled.filter(({ differs }) => differs));
      return [...new Set(differing.map(({ slot }) => slot))].sort((a, b) => a - b);
    }
  }

  // --- What a step did, in words -----------------------------------------------------------------

  function sentence(run, frame) {
    const said = [];
    if (frame.read.length > 0) {
      said.push(about_reading(run, frame));
    }
    const stopping = frame.sampled.filter(({ slot }) => run.has_ended(run.answers[slot]));
    if (stopping.length > 0) {
      said.push(about_stopping(run, stopping));
    }
    const leaving = frame.sampled.filter(({ differs }) => differs).map(({ slot }) => slot);
    if (leaving.length > 0) {
      said.push(`${capital(named(leaving))}: another token than ${other_way(run)}.`);
    }
    if (run.is_done()) {
      said.push(summary(run));
    } else if (said.length === 0) {
      const slots = frame.sampled.map(({ slot }) => slot);
      const one = slots.length === 1;
      const read = one ? "reads the token that it" : "each read the token that they";
      const next = one ? "samples the next" : "sample the next";
      said.push(`${capital(named(slots))} ${read} sampled last, and ${next}.`);
    }
    return said.join(" ");
  }

  function about_reading(run, { read, copied, sampled }) {
    const slots = read.map(({ slot }) => slot);
    const length = read[0].end - read[0].start;
    if (copied.length > 0) {
      const into = named(copied.map(({ slot }) => slot));
      const held = `What slot 0 has read, ${copied[0].length} tokens, is copied into ${into}`;
      const own = "Every slot reads the last token itself and samples its own first token";
      return `${held}. ${own}, ${from_here(run)}.`;
    }
    const waiting = range(run.n).filter((slot) => !slots.includes(slot));
    if (waiting.length > 0) {
      const wait = waiting.length === 1 ? "waits" : "wait";
      const but_one = read[0].end === run.prompt.length - 1;
      const what = but_one ? ", all but the last of the prompt" : "";
      return `Slot 0 reads ${length} tokens${what}; ${named(waiting)} ${wait} for a copy.`;
    }
    if (run.n === 1) {
      return `The slot reads ${length} tokens. With one answer there is nothing to share.`;
    }
    const told = `All ${run.n} slots read the same ${length} tokens and compute the same numbers.`;
    const own = `Each samples its own first token, ${from_here(run)}.`;
    return sampled.length > 0 ? `${told} ${own}` : told;
  }

  function from_here({ answers }) {
    const different = new Set(answers.map(([first]) => first)).size;
    return different > 1 ? "so from here on they differ" : "still the same in all of them";
  }

  function about_stopping(run, stopping) {
    const alike = new Map(); // slots by what is said of them
    for (const { slot } of stopping) {
      const answer = run.answers[slot];
      const value = run.boxed(answer);
      const stops = run.stop_ids.has(answer.at(-1)) ? "stop" : `reach the limit of ${MOST}`;
      const told = `${stops} ${value === NONE ? "without a box" : `with ${value}`}`;
      alike.set(told, [...(alike.get(told) ?? []), slot]);
    }
    const told = [...alike].map(([how, slots]) => {
      const one = how.replace(/^stop/, "stops").replace(/^reach/, "reaches");
      return `${named(slots)} ${slots.length === 1 ? one : how}`;
    });
    return `${capital(listed(told))}.`;
  }

  function summary(run) {
    const { n, shared } = run;
    const { read } = run.counts();
    if (n === 1) {
      return `${read} tokens were read.`;
    }
    const length = run.prompt.length;
    const each = `${n} × ${length} = ${n * length}`;
    const took = shared
      ? `${read} tokens were read instead of ${each}`
      : `${each} tokens were read, where ${length - 1 + n} would do`;
    const astray = run.astray();
    const equal = astray.length === 0
      ? `and every answer equals the one ${other_way(run)}, id for id`
      : `but ${named(astray)} did not get the ids that they get ${other_way(run)}`;
    const [[value, count]] = run.tally();
    const which = value === NONE ? "have no box" : `agree on ${value}`;
    const agree = count === 1 ? "No two answers agree" : `${count} of ${n} answers ${which}`;
    return `${took}, ${equal}. ${agree}.`;
  }

  const other_way = ({ shared }) => (shared ? "without sharing" : "with sharing");

  // --- On the page -------------------------------------------------------------------------------

  const WAYS = [["once", "once"], ["each", "n times"]];
  const PACE = 120; // milliseconds from one step to the next
  const REST = 2200; // before a step in which somebody reads, and after it

  const STYLE = `
.qwl-stage.qwl-answers>*{margin-bottom:5px}
.qwl-answers .qwl-controls{gap:6px 14px}
.qwl-answers .qwl-main{min-width:6.6em}
.qwl-page .qwl-answers .qwl-player{margin:0}
.qwl-answers .qwl-place{display:none}
.qwl-answers .qwl-field{flex:1 1 12em}
.qwl-answers input[type=range]{width:90px}
.qwl-answers output{min-width:1.6em}
.qwl-answers .qwl-box{min-height:232px}
.qwl.qwl .qwl-answers .qwl-figure{margin:0}
.qwl.qwl.qwl .qwl-answers .qwl-tight tbody th{min-width:5.5em;text-align:left}
.qwl-tally{display:flex;flex-wrap:wrap;gap:0 14px;align-items:center;
justify-content:space-between;min-height:26px}
.qwl.qwl .qwl-answers .qwl-sentence{min-height:4.2em}
.qwl.qwl .qwl-answers .qwl-counts{font-size:12px}
@media(max-width:600px){.qwl.qwl .qwl-answers .qwl-sentence{min-height:8.4em}
.qwl-answers .qwl-tally{min-height:3em}}
`;

  class AnswersWidget {
    constructor(stage) {
      const { element } = qwenlab.drawing;
      const { prompt, n = MOST_ANSWERS, temperature = 1 } = stage.options;
      this.stage = stage;
      this.seed = 0;
      this.told = new Set(); // ways whose tokens the reader has seen, so they are no guess any more
      stage.root.classList.add("qwl-answers");
      // Step 0 is the prompt before anybody has read it.
      const count = () => (this.run.is_done() ? this.run.frames.length + 1 : Infinity);
      const delay = (step) => this.delay(step);
      this.player = stage.player({ count, show: (step) => this.show(step), delay });
      this.player.play_button.root.classList.add("qwl-main");
      this.way = stage.choice("Read", WAYS, () => this.switched());
      this.way.root.setAttribute("aria-label", "How often the prompt is read");
      this.field = stage.field("Prompt", prompt, () => this.restart());
      const many = { min: 1, max: MOST_ANSWERS, value: n };
      this.many = stage.slider("answers", many, () => this.restart());
      const warm = { min: 0, max: 2, step: 0.1, value: temperature };
      this.warm = stage.slider("temperature", warm, () => this.restart());
      this.luck = stage.button("New seed", () => this.reseed());
      this.grid = stage.grid("The prompt in each slot → what it samples", { tight: true });
      this.legend = stage.legend();
      this.counted = element("small", { className: "qwl-counts" });
      this.agreed = element("span");
      const head = stage.controls(this.player, this.way, this.luck);
      const asked = stage.controls(this.field, this.many, this.warm);
      const tally = element("div", { className: "qwl-tally" }, this.legend, this.counted);
      stage.add(stage.sheet(STYLE), head, asked, this.grid, tally, this.agreed);
      stage.add(stage.sentence);
    }

    delay(step) {
      const frames = this.run.frames.slice(0, step);
      if (frames.length === 0) {
        return 0;
      }
      return frames.at(-1).read.length > 0 ? REST : PACE;
    }

    // Another prompt, number, temperature or seed: other answers.
    restart() {
      this.player.pause();
      const shared = this.way.value === "once";
      const asked = [this.field.value, this.many.value, this.warm.value, shared, this.seed];
      const question = `${this.field.value} ${this.many.value}`;
      if (question !== this.question) {
        this.question = question;
        this.told.clear();
      }
      this.run = new qwenlab.AnswersRun(this.model, this.tokenizer, ...asked);
      this.places = places_of(this.tokenizer, this.run.prompt);
      this.player.go(0);
    }

    // The same answers, read the other way: at once, if the reader has seen them already.
    switched() {
      const go_on = this.player.playing || this.run.is_done();
      this.restart();
      if (go_on) {
        this.player.play();
      }
    }

    reseed() {
      this.seed += 1;
      this.restart();
      this.player.play();
    }

    show(step) {
      const { run } = this;
      while (run.frames.length < step && !run.is_done()) {
        run.step();
      }
      const frames = run.frames.slice(0, step);
      this.draw_slots(frames);
      this.draw_counts(frames);
      const at_end = run.is_done() && frames.length === run.frames.length;
      const kind = run.astray(frames).length > 0 ? "bad" : at_end ? "good" : "";
      this.stage.say(frames.at(-1)?.said ?? this.invitation(), kind);
    }

    invitation() {
      const { n, prompt, shared } = this.run;
      const answers = n === 1 ? "One answer" : `${n} answers`;
      const how = shared ? "read once" : n === 1 ? "read by its slot" : "read by each slot";
      return `${answers} to one prompt of ${prompt.length} tokens, ${how}: press Play.`;
    }

    draw_slots(frames) {
      const { run, places } = this;
      const answers = run.answers_after(frames);
      const cells = answers.map((answer, slot) => {
        const prompt = places.map((place) => prompt_cell(place, slot, frames));
        return [...prompt, { kind: "o", text: "→" }, ...this.answer_cells(slot, frames)];
      });
      const rows = answers.map((answer, slot) => {
        return run.has_ended(answer) ? `${slot} → ${run.boxed(answer)}` : `slot ${slot}`;
      });
      const longest = Math.max(...answers.map((answer) => answer.length));
      // At the end the labels say what is in the boxes, so the picture shows what was read.
      const is_over = answers.every((answer) => run.has_ended(answer));
      const follow = longest === 0 || is_over ? 0 : places.length + longest;
      this.grid.draw(cells, { rows, follow });
    }

    answer_cells(slot, frames) {
      const { run, tokenizer } = this;
      const sampled = frames.flatMap((frame) => frame.sampled.filter((one) => one.slot === slot));
      return sampled.map(({ id, differs }) => {
        const cell = qwenlab.drawing.token_cell(tokenizer, id);
        const text = run.stop_ids.has(id) ? "■" : cell.text;
        const title = `${cell.title}, ${differs ? "another" : "the same"} ${other_way(run)}`;
        return { kind: "d", text, title, marked: differs };
      });
    }

    draw_counts(frames) {
      const { run } = this;
      this.legend.draw(run.counts(frames));
      const length = run.prompt.length;
      const once = run.n === 1 ? `${length}` : `${length - 1} + ${run.n} = ${length - 1 + run.n}`;
      const each = `${run.n} × ${length} = ${run.n * length}`;
      if (frames.length > 0) {
        this.told.add(run.shared);
      }
      if (run.is_done() && frames.length === run.frames.length) {
        this.told.add(!run.shared); // the last sentence compares both
      }
      const seen = (shared, count) => (this.told.has(shared) ? count : "?");
      this.counted.textContent = `read once: ${seen(true, once)} · n times: ${seen(false, each)}`;
      const tally = run.tally(frames).map(([value, count]) => {
        return `${value === NONE ? "no box" : value} (${count})`;
      });
      this.agreed.textContent = `Boxed answers: ${tally.join(", ") || "none yet"}`;
    }
  }

  // The cells of a prompt: {end, text, title}, where `end` is the place behind their last token.
  // Each stretch of the chat format takes one cell, but for the very last token, which every slot
  // reads itself.
  function places_of(tokenizer, prompt) {
    const empty = qwenlab.drawing.begun_chat(tokenizer, "");
    const before = empty.indexOf(tokenizer.control.get("<|im_end|>"));
    const behind = empty.length - before - 1;
    const own = prompt.length - before - behind - 1; // tokens of the question
    let end = 0;
    return [before, ...range(own).fill(1), behind, 1].map((length) => {
      end += length;
      const { text, title } = qwenlab.drawing.token_cell(tokenizer, prompt[end - 1]);
      const format = { end, text: "⋯", title: `${length} tokens of the chat format` };
      return length === 1 ? { end, text, title } : format;
    });
  }

  function prompt_cell({ end, text, title }, slot, frames) {
    const has = (list, held) => list.some((one) => one.slot === slot && held(one));
    const holds = (one) => one.start < end && end <= one.end;
    if (frames.some((frame) => has(frame.read, holds))) {
      return { kind: "f", text, title: `${title}, read in slot ${slot}` };
    }
    if (frames.some((frame) => has(frame.copied, ({ length }) => end <= length))) {
      return { kind: "a", text, title: `${title}, copied into slot ${slot}` };
    }
    return { kind: "i", text, title: `${title}, not in slot ${slot} yet` };
  }

  qwenlab.widget("answers", async (stage) => {
    const widget = new AnswersWidget(stage);
    [widget.model, widget.tokenizer] = await stage.bring();
    widget.restart();
  });
  Object.assign(qwenlab, { AnswersRun });
})(globalThis.qwenlab);
