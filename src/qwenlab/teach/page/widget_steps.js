// A batch step by step: a few answers that grow together, each beside what its prompt gets alone.
//
//   const run = new qwenlab.StepsRun(model, tokenizer, texts, pads)
//       pads: "hidden"   on the left and hidden at every step, by the engine itself
//             "dropped"  on the left; hidden while the prompts are read, and seen by new tokens
//             "right"    on the right; each row goes on from the last column, a pad in short rows
//   run.step()    -> a frame, or null once every row has stopped
//   run.prompts   token ids; run.alone, for each row the ids of its prompt alone, stop id included
//   A frame: step; rows, for each {id, kind, differs}; said, what happened, in words.

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const { sum, listed } = qwenlab;
  const MOST = 48; // new tokens that an answer may have

  const known = new Map(); // ids of an answer alone, by model and prompt: a switch asks again

  // What the prompt gets alone, with its stop id, if it has one.
  function answer_alone(model, prompt) {
    const key = prompt.join(" ");
    if (!known.has(model)) {
      known.set(model, new Map());
    }
    const answers = known.get(model);
    if (!answers.has(key)) {
      const [request] = qwenlab.generate(model, [prompt], { max_new_tokens: MOST }).outputs;
      answers.set(key, complete(request));
    }
    return answers.get(key);
  }

  const complete = ({ token_ids, stop_id }) =>
    stop_id === null ? token_ids : [...token_ids, stop_id];

  // --- Two ways to take a step -------------------------------------------------------------------

  // The library's own: no pad is stored, so none can be seen.
  class Exact {
    constructor(model, tokenizer, prompts) {
      this.engine = new qwenlab.Engine(model, prompts.length, { strategy: "static" });
      this.requests = prompts.map((ids) => this.engine.submit(ids, { max_new_tokens: MOST }));
    }

    // The newest token of each row that goes on, null for the others.
    step(going_on) {
      this.engine.step();
      return this.requests.map((request, b) => (going_on[b] ? complete(request).at(-1) : null));
    }
  }

  // One rectangle of prompts and new tokens, computed anew at every step. Its tokens are those of a
  // loop that keeps pads in its cache. Rows that have stopped are left out, for nothing needs them.
  class Rectangle {
    constructor(model, tokenizer, prompts, pads) {
      this.model = model;
      this.sees_pads = pads === "dropped";
      const side = pads === "right" ? "right" : "left";
      [this.input_ids, this.real] = qwenlab.drawing.rectangle(prompts, side, tokenizer.pad_id);
      this.width = this.input_ids[0].length;
    }

    step(going_on) {
      const sampled = this.input_ids.map((ids, b) => (going_on[b] ? this.next(ids, b) : null));
      this.input_ids = this.input_ids.map((ids, b) => [...ids, sampled[b] ?? 0]);
      this.real = this.real.map((row) => [...row, true]);
      return sampled;
    }

    // The most probable token behind the last column.
    next(ids, b) {
      const real = [this.real[b]];
      const mask = qwenlab.combined_mask(real);
      if (this.sees_pads) {
        const causal = qwenlab.causal_mask(ids.length, ids.length);
        mask[0][0].splice(this.width, Infinity, ...causal.slice(this.width));
      }
      const options = { attention_mask: mask, position_ids: qwenlab.position_ids(real) };
      const logits = this.model.forward([ids], options)[0].at(-1);
      return logits.indexOf(Math.max(...logits));
    }
  }

  // --- The run, without a page -------------------------------------------------------------------

  class StepsRun {
    constructor(model, tokenizer, texts, pads) {
      this.tokenizer = tokenizer;
      this.stop_ids = model.stop_ids;
      this.pads = pads;
      this.prompts = texts.map((text) => tokenizer.chat([{ role: "user", content: text }]));
      this.alone = this.prompts.map((ids) => answer_alone(model, ids));
      const Loop = pads === "hidden" ? Exact : Rectangle;
      this.loop = new Loop(model, tokenizer, this.prompts, pads);
      this.answers = this.prompts.map(() => []); // stop ids included
      this.frames = [];
    }

    // A token as a cell shows it.
    shown(id) {
      if (id === undefined) {
        return "nothing";
      }
      const text = this.tokenizer.decode([id]);
      return this.stop_ids.has(id) ? "stop" : qwenlab.drawing.token_text(text);
    }

    has_stopped(b) {
      const answer = this.answers[b];
      return this.stop_ids.has(answer.at(-1)) || answer.length === MOST;
    }

    is_done() {
      return this.answers.every((_, b) => this.has_stopped(b));
    }

    step() {
      if (this.is_done()) {
        return null;
      }
      const step = this.frames.length;
      const sampled = this.loop.step(this.answers.map((_, b) => !this.has_stopped(b)));
      const rows = sampled.map((id, b) => {
        if (id === null) {
          return { id, kind: "wasted", differs: false };
        }
        this.answers[b].push(id);
        return { id, kind: step === 0 ? "prefill" : "decode", differs: id !== this.alone[b][step] };
      });
      const frame = { step, rows, said: "" };
      this.frames.push(frame);
      frame.said = sentence(this, frame);
      return frame;
    }

    // The step at which a row leaves what its prompt gets alone; -1: never so far.
    leaves(b) {
      return this.frames.findIndex(({ rows }) => rows[b].differs);
    }
  }

  // --- What a step did, in words -----------------------------------------------------------------

  const name_of = (b) => "ABCDEFGHIJKL"[b];
  const plural = (rows, word) => (rows.length === 1 ? `${word}s` : word);

  const named = (rows) => listed(rows.map(name_of));

  function sentence(run, { step, rows }) {
    const all = rows.map((_, b) => b);
    const leaving = all.filter((b) => run.leaves(b) === step);
    const stopping = all.filter((b) => rows[b].id !== null && run.has_stopped(b));
    const said = leaving.map((b) => {
      const [here, alone] = [rows[b].id, run.alone[b][step]].map((id) => run.shown(id));
      return `${name_of(b)} goes astray: ${here} here, ${alone} alone.`;
    });
    if (stopping.length > 0) {
      said.push(about_stopping(run, stopping));
    }
    if (run.is_done()) {
      said.push(summary(run));
    }
    if (said.length === 0) {
      said.push(step === 0 ? about_prefill(run) : about_running(rows, all));
    }
    return said.join(" ");
  }

  function about_prefill({ prompts }) {
    const lengths = listed(prompts.map((ids) => ids.length));
    return `One pass reads the prompts, ${lengths} tokens, and each row samples its first token.`;
  }

  function about_running(rows, all) {
    const going = all.filter((b) => rows[b].kind === "decode");
    const wasted = all.filter((b) => rows[b].kind === "wasted");
    if (wasted.length === 0) {
      return "Each row reads the token that it sampled last, and samples the next.";
    }
    const vain = `${named(wasted)} ${wasted.length === 1 ? "is" : "are"} computed in vain`;
    return `${named(going)} ${going.length === 1 ? "goes" : "go"} on; ${vain}.`;
  }

  function about_stopping(run, stopping) {
    const stop = stopping.filter((b) => run.stop_ids.has(run.answers[b].at(-1)));
    const cut = stopping.filter((b) => !stop.includes(b));
    const said = [];
    if (stop.length > 0) {
      said.push(`${named(stop)} ${plural(stop, "stop")}.`);
    }
    if (cut.length > 0) {
      said.push(`${named(cut)} ${cut.length === 1 ? "reaches" : "reach"} the limit of ${MOST}.`);
    }
    if (!run.is_done()) {
      said.push(stopping.length === 1 ? "Its row is computed on." : "Their rows are computed on.");
    }
    return said.join(" ");
  }

  function summary(run) {
    const wrong = run.prompts.map((_, b) => b).filter((b) => run.leaves(b) >= 0);
    const together = run.frames.length;
    const one_by_one = sum(run.alone.map((ids) => ids.length));
    if (wrong.length > 0) {
      const prompts = wrong.length === 1 ? "its prompt gets" : "their prompts get";
      return `${named(wrong)} did not get what ${prompts} alone.`;
    }
    const instead = `in ${together} steps instead of ${one_by_one}`;
    return `Each row got what its prompt gets alone, ${instead}.`;
  }

  // --- On the page -------------------------------------------------------------------------------

  const PADS = [
    ["hidden", "hidden"],
    ["dropped", "seen by new tokens"],
    ["right", "on the right"],
  ];
  const STYLE = `
.qwl-stage.qwl-steps>*{margin-bottom:5px}
.qwl-steps .qwl-main{min-width:6.6em}
.qwl-steps .qwl-place{display:none}
@media(max-width:600px){.qwl.qwl .qwl-steps .qwl-sentence{min-height:4.2em}}
`;

  class StepsWidget {
    constructor(stage) {
      const { element } = qwenlab.drawing;
      this.stage = stage;
      stage.root.classList.add("qwl-steps");
      // How many steps it takes is known only when every row has stopped.
      const count = () => (this.run.is_done() ? this.run.frames.length : Infinity);
      this.player = stage.player({ count, show: (step) => this.show(step), delay: () => 260 });
      this.player.play_button.root.classList.add("qwl-main");
      this.pads = stage.choice("Pads", PADS, () => this.restart());
      this.grid = stage.grid("What each row samples, step by step", { steps: true });
      this.grid.caption.className = "qwl-words"; // the label of its box
      this.legend = stage.legend();
      this.list = element("ol", { className: "qwl-requests" });
      this.lines = stage.options.prompts.map((text, b) => this.add_line(text, b));
      const head = stage.controls(this.pads);
      stage.add(stage.sheet(STYLE), this.player, head, this.grid, this.legend);
      stage.add(stage.sentence, this.list);
    }

    add_line(text, b) {
      const { element } = qwenlab.drawing;
      const field = this.stage.field(name_of(b), text, () => this.restart());
      field.input.setAttribute("aria-label", `Prompt of row ${name_of(b)}`);
      const verdict = element("span");
      const answer = this.stage.answer();
      this.list.append(element("li", {}, field, verdict, answer));
      return { field, verdict, answer };
    }

    // Other prompts or pads: another batch, shown after its prefill.
    restart() {
      this.player.pause();
      const texts = this.lines.map(({ field }) => field.value);
      this.run = new StepsRun(this.model, this.tokenizer, texts, this.pads.value);
      this.player.go(0);
    }

    show(step) {
      const { run } = this;
      while (run.frames.length <= step && !run.is_done()) {
        run.step();
      }
      const frames = run.frames.slice(0, step + 1);
      const at_end = run.is_done() && frames.length === run.frames.length;
      this.draw_rows(frames);
      const counts = { prefill: 0, decode: 0, wasted: 0 };
      frames.forEach(({ rows }) => rows.forEach(({ kind }) => (counts[kind] += 1)));
      this.legend.draw(counts);
      this.lines.forEach((line, b) => this.draw_line(line, frames, b));
      const astray = frames.some(({ rows }) => rows.some(({ differs }) => differs));
      this.stage.say(frames.at(-1).said, astray ? "bad" : at_end ? "good" : "");
    }

    draw_rows(frames) {
      const { run } = this;
      const width = Math.max(...run.prompts.map((ids) => ids.length));
      const cells = run.prompts.map((ids, b) => {
        const pads = width - ids.length;
        const prompt = { kind: "t", text: `${ids.length} tokens`, title: "the prompt" };
        const padding = { kind: pads > 0 ? "p" : "o", text: pads > 0 ? `${pads} pads` : "" };
        const rectangle = run.pads === "right" ? [prompt, padding] : [padding, prompt];
        return [...rectangle, ...frames.map(({ rows, step }) => this.cell(rows[b], b, step))];
      });
      const head = run.pads === "right" ? ["prompt", "pads"] : ["pads", "prompt"];
      const columns = [...head, ...frames.map(({ step }) => String(step))];
      const follow = columns.length - 1;
      this.grid.draw(cells, { rows: run.prompts.map((_, b) => name_of(b)), columns, follow });
    }

    cell({ id, kind, differs }, b, step) {
      const { run } = this;
      const text = id === null ? name_of(b) : run.shown(id);
      const alone = `alone: ${run.shown(run.alone[b][step])}`;
      const title = `step ${step}, ${kind}${id === null ? "" : `, ${alone}`}`;
      return qwenlab.drawing.step_cell(kind, text, { title, marked: differs });
    }

    draw_line({ verdict, answer }, frames, b) {
      const ids = frames.map(({ rows }) => rows[b].id).filter((id) => id !== null);
      const astray = frames.some(({ rows }) => rows[b].differs);
      verdict.textContent = astray ? "≠ alone" : "as alone";
      answer.draw(this.tokenizer.decode(ids.filter((id) => !this.run.stop_ids.has(id))));
    }
  }

  qwenlab.widget("steps", async (stage) => {
    const widget = new StepsWidget(stage);
    [widget.model, widget.tokenizer] = await stage.bring();
    widget.restart();
  });
  Object.assign(qwenlab, { StepsRun });
})(globalThis.qwenlab);
