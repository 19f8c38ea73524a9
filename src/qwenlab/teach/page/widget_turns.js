// Lesson 10: two rows talk with a hybrid model in two turns. In the second one the row with fewer
// tokens has pads, and the reader chooses what these do to its memory.
//
//   const run = new qwenlab.TurnsRun(model, tokenizer, talks, pads)
//       talks: [[question, follow-up], ...], one a row. Turn 1 is a question with the answer that
//       the model gives to it alone, turn 2 is what is asked then. pads: one of
//         "exact"     log-decay 0 and beta 0 at a pad, as in the library: nothing moves
//         "zeroed"    a pad's input to each linear layer is zeroed: decay and beta still act
//         "unmasked"  the linear layers read a pad like any token
//       Attention hides pads in all three, and positions count real tokens only.
//   run.rows       for each talk {turns: [ids, ids], pads: [count, count]}
//   run.frames     [0] after turn 1, [n] after column n of turn 2: frame.distances[row][i], of
//                  linear layer i: |S - S alone| / |S alone| over all heads, 0 if they are equal
//   run.answers()  the ids that each row generates behind turn 2, and alone: [here, alone]
// Options: talks.

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const MOST = 48; // new tokens that an answer may have

  const { range, listed } = qwenlab;

  // --- The run, without a page -------------------------------------------------------------------

  function linear_layers(model) {
    return range(model.layers.length).filter((n) => model.layers[n].is_linear);
  }

  // Copies of one row's memories, layer by layer.
  function memories(model, state, row) {
    return linear_layers(model).map((n) => state.layers[n].recurrent_state[row].slice());
  }

  // |a - b| / |b|
  function distance(a, b) {
    let [apart, size] = [0, 0];
    for (let i = 0; i < a.length; i++) {
      apart += (a[i] - b[i]) ** 2;
      size += b[i] ** 2;
    }
    return apart === 0 ? 0 : Math.sqrt(apart / size);
  }

  // Greedy, from where a row has read to. `state` holds that row alone and is changed.
  function go_on(model, state, logits) {
    const ids = [];
    let next = qwenlab.argmax(logits);
    while (!model.stop_ids.has(next) && ids.length < MOST) {
      ids.push(next);
      [logits] = model.forward([[next]], { state, last_only: true });
      next = qwenlab.argmax(logits);
    }
    return ids;
  }

  // The ids of a question with the answer of the row alone, and of what is asked then.
  function turns_of(model, tokenizer, [question, then]) {
    const asked = tokenizer.chat([{ role: "user", content: question }]);
    const state = model.new_state(1);
    const [logits] = model.forward([asked], { state, last_only: true });
    return [[...asked, ...go_on(model, state, logits)], tokenizer.next_turn(then)];
  }

  // One talk without neighbours: its memories after turn 1 and after each token of turn 2, and its
  // answer.
  function read_alone(model, turns) {
    const state = model.new_state(1);
    let [logits] = model.forward([turns[0]], { state, last_only: true });
    const after = [memories(model, state, 0)];
    for (const id of turns[1]) {
      [logits] = model.forward([[id]], { state, last_only: true });
      after.push(memories(model, state, 0));
    }
    return { after, answer: go_on(model, state, logits) };
  }

  // What one pad leaves in a row's memories and windows if they are not protected. Attention keeps
  // no key of it.
  function read_pad(model, state, row, pad_id, pads) {
    const held = state.lengths[row];
    const batch = new qwenlab.ForwardBatch([[pad_id]], [1], [held], state, [row]);
    if (pads === "zeroed") {
      const nothing = new Float32Array(model.config.hidden_size);
      for (const n of linear_layers(model)) {
        model.layers[n].mixer.forward(nothing, batch);
      }
      return;
    }
    batch.position_ids = [[Math.max(0, held - 1)]]; // real tokens are counted, and it is none
    batch.update_cache = (layer, keys) => {
      const cache = state.layers[layer];
      const size = held * keys.length;
      return [[cache.keys[row].subarray(0, size), cache.values[row].subarray(0, size)]];
    };
    model.hidden(batch);
  }

  class TurnsRun {
    constructor(model, tokenizer, talks, pads, known = new Map()) {
      Object.assign(this, { model, tokenizer, pads });
      const turns = talks.map((talk) => {
        const key = JSON.stringify(talk);
        known.set(key, known.get(key) ?? turns_of(model, tokenizer, talk));
        return known.get(key);
      });
      this.rectangles = [0, 1].map((number) => {
        const both = turns.map((ids) => ids[number]);
        return qwenlab.left_pad(both, tokenizer.pad_id);
      });
      const count_pads = (real) => real.filter((is_real) => !is_real).length;
      this.rows = turns.map((own, b) => {
        return { turns: own, pads: this.rectangles.map(([, real]) => count_pads(real[b])) };
      });
      this.alone = turns.map((own) => {
        const key = JSON.stringify(own);
        known.set(key, known.get(key) ?? read_alone(model, own));
        return known.get(key);
      });
      this.state = model.new_state(talks.length);
      this.logits = turns.map(() => null); // after the newest token of each row
      const [first, second] = this.rectangles;
      this.read(...first);
      this.frames = [this.frame(0)];
      for (const column of range(this.width)) {
        this.read(...second.map((rows) => rows.map((row) => [row[column]])));
        this.frames.push(this.frame(column + 1));
      }
    }

    // Columns of turn 2.
    get width() {
      return this.rectangles[1][0][0].length;
    }

    // Reads a rectangle (B, T), from left to right.
    read(input_ids, real) {
      const { model, state } = this;
      if (this.pads === "exact") {
        const options = { attention_mask: real, state, last_only: true };
        this.note(model.forward(input_ids, options), real);
        return;
      }
      input_ids.forEach((ids, row) => {
        const pads = ids.filter((_, t) => !real[row][t]);
        pads.forEach((id) => read_pad(model, state, row, id, this.pads));
        if (pads.length < ids.length) {
          const options = { state, rows: [row], last_only: true };
          [this.logits[row]] = model.forward([ids.slice(pads.length)], options);
        }
      });
    }

    note(logits, real) {
      logits.forEach((own, row) => {
        this.logits[row] = real[row].at(-1) ? own : this.logits[row];
      });
    }

    // How far each row is from the same row alone, which has read as many real tokens.
    frame(columns) {
      const [, real] = this.rectangles[1];
      const distances = this.alone.map(({ after }, row) => {
        const read = real[row].slice(0, columns).filter(Boolean).length;
        const here = memories(this.model, this.state, row);
        return here.map((memory, i) => distance(memory, after[read][i]));
      });
      return { distances };
    }

    answers() {
      this.generated ??= this.alone.map(({ answer }, row) => {
        const state = this.state.select([row]);
        return [go_on(this.model, state, this.logits[row]), answer];
      });
      return this.generated;
    }
  }

  // --- What a step shows, in words ---------------------------------------------------------------

  const name_of = (row) => "ABCDEFGH"[row];
  const whose = (rows) => listed(rows.map((row) => `${name_of(row)}’s`));
  const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

  // 0.47 or 3e-4
  function short(value) {
    return value >= 0.095 ? value.toFixed(2) : value.toExponential(0);
  }

  const farthest = (distances) => Math.max(...distances);

  // The rows whose memories are not those of the row alone.
  function moved_rows(run, step) {
    const { distances } = run.frames[step];
    return range(run.rows.length).filter((row) => farthest(distances[row]) > 0);
  }

  function sentence(run, step) {
    if (step === 0) {
      return after_turn_1(run);
    }
    return step === run.width ? at_the_end(run) : in_turn_2(run, step);
  }

  // "Both" or "All": of the batch's rows.
  const every = (run) => (run.rows.length === 2 ? "Both" : "All");

  // How far the memories of some rows are from those of the rows alone.
  function how_far(run, step, rows) {
    const far = farthest(rows.map((row) => farthest(run.frames[step].distances[row])));
    const alone = rows.length === 1 ? `${name_of(rows[0])} alone` : "the rows alone";
    return `up to ${short(far)} of their size away from those of ${alone}`;
  }

  function after_turn_1(run) {
    const moved = moved_rows(run, 0);
    if (run.rows.every(({ pads }) => pads[1] === 0)) {
      return `${every(run)} second turns are equally long, so none has pads. Write more in one.`;
    }
    if (moved.length > 0) {
      return `After turn 1, ${whose(moved)} memories are wrong already: pads are written in them.`;
    }
    if (run.pads === "zeroed") {
      return (
        "After turn 1 every memory is that of its row alone, in spite of the pads: while a " +
        "memory is empty, nothing in it can fade, and zeros write nothing. Now turn 2."
      );
    }
    return "After turn 1 every memory is that of its row alone, bit for bit. Now turn 2.";
  }

  function in_turn_2(run, step) {
    const [, real] = run.rectangles[1];
    const waiting = range(run.rows.length).filter((row) => !real[row][step - 1]);
    const moved = moved_rows(run, step);
    if (waiting.length === 0 && moved.length === 0) {
      return "Each row reads a token, and its memories are what they are alone.";
    }
    if (waiting.length === 0) {
      return `Each row reads a token, but ${whose(moved)} memories keep the trace of the pads.`;
    }
    const names = listed(waiting.map(name_of));
    const met = waiting.length === 1 ? `${names} meets a pad` : `${names} meet pads`;
    const its = `${whose(waiting)} memories`;
    if (run.pads === "exact") {
      return `${met}. With decay 1 and beta 0, not one bit of ${its} changes.`;
    }
    const away = `they are ${how_far(run, step, waiting)}`;
    if (run.pads === "zeroed") {
      return `${met}. The input is zero, but ${its} fade all the same: ${away}.`;
    }
    return `${met}, which is written into ${its} like a word: ${away}.`;
  }

  // What an answer comes to: its box, or its last characters.
  function outcome(text) {
    const [thought, boxed] = text.split("\\boxed");
    const ending = boxed === undefined ? thought.trim().slice(-12) : boxed.replaceAll(/[{}]/g, "");
    return `“${ending.trim()}”`;
  }

  function at_the_end(run) {
    const texts = run.answers().map((both) => both.map((ids) => run.tokenizer.decode(ids)));
    const rows = range(run.rows.length);
    const other = rows.filter((row) => texts[row][0] !== texts[row][1]);
    const moved = moved_rows(run, run.width);
    const as_alone = `${every(run)} answers are those of the rows alone`;
    if (moved.length === 0 && other.length === 0) {
      const cause = run.pads === "exact" ? ": at a pad the decay is 1 and beta is 0" : "";
      return `${as_alone}, and so is each memory, bit for bit${cause}.`;
    }
    const trace = `${whose(moved)} memories are ${how_far(run, run.width, moved)}`;
    if (other.length === 0) {
      return `${as_alone}, but by luck: ${trace}, and will stay wrong.`;
    }
    return `${other.map((row) => about_answer(row, texts[row])).join(" ")} ${trace}.`;
  }

  function about_answer(row, texts) {
    const [here, alone] = texts.map(outcome);
    if (here === alone) {
      return `${name_of(row)} comes to ${here} as alone, but in other words.`;
    }
    return `${name_of(row)} answers ${here} instead of ${alone}.`;
  }

  // --- On the page -------------------------------------------------------------------------------

  const { element, token_cell } = qwenlab.drawing;
  const PADS = ["zeroed", "unmasked", "exact"].map((pads) => [pads, pads]);
  const SHOWN = 3; // layers a row
  const LOWEST = -6; // power of ten of the palest distance
  const NOT_YET = { kind: "i" };
  const TITLE = "How far each memory is from the row alone (1: as far as its size)";

  const STYLE = `
.qwl-stage.qwl-turns>*{margin-bottom:6px}
.qwl.qwl .qwl-turns .qwl-grid :is(td,th){height:21px;padding:0 2px;font-size:11px}
.qwl.qwl .qwl-turns .qwl-grid td{min-width:26px;box-sizing:border-box}
.qwl.qwl .qwl-turns .qwl-grid tr>:is(td:nth-child(3)){border-right-width:3px}
.qwl.qwl .qwl-talks{list-style:none;margin:8px 0 0;padding:0 2px}
.qwl.qwl .qwl-talks li{display:grid;grid-template-columns:minmax(0,2fr) minmax(0,1fr);
  gap:2px 14px;margin:0 0 4px}
.qwl-talks .qwl-field{display:flex;gap:7px;align-items:center;margin:0}
.qwl-talks .qwl-field+.qwl-field span{color:var(--qwl-muted)}
.qwl-page .qwl-talks input{height:24px;min-height:0}
.qwl-talks .qwl-said{grid-column:1/3;display:grid;grid-template-columns:5.2em minmax(0,1fr);
  gap:8px;min-height:21px;line-height:21px}
.qwl-talks .qwl-said>b{font-weight:600;white-space:nowrap}
.qwl-turns .qwl-main{min-width:6.6em}
.qwl-turns .qwl-place{display:none}
.qwl-turns .qwl-player{margin:0}
@media(max-width:600px){.qwl.qwl .qwl-talks li{grid-template-columns:minmax(0,1fr)}
  .qwl-talks .qwl-said{grid-column:1}
  .qwl.qwl .qwl-turns .qwl-sentence{min-height:7em}}
`;

  class TurnsWidget {
    constructor(stage) {
      this.stage = stage;
      this.known = new Map(); // what the talks give alone
      stage.root.classList.add("qwl-turns");
      this.pads = stage.choice("Pads", PADS, () => this.restart());
      const count = () => this.run.frames.length;
      this.player = stage.player({ count, show: (step) => this.show(step), delay: () => 400 });
      this.player.play_button.root.classList.add("qwl-main");
      this.grid = stage.grid(TITLE);
      this.list = element("ol", { className: "qwl-talks" });
      this.lines = stage.options.talks.map((talk, row) => this.add_line(talk, row));
      const controls = stage.controls(this.pads, this.player);
      stage.add(stage.sheet(STYLE), controls, this.grid, stage.sentence, this.list);
    }

    add_line([question, then], row) {
      const later = () => this.restart_later();
      const asked = this.stage.field(name_of(row), question, later);
      const next = this.stage.field("turn 2", then, later);
      asked.input.setAttribute("aria-label", `Turn 1 of row ${name_of(row)}: a question`);
      const what = `Turn 2 of row ${name_of(row)}: what is asked then`;
      next.input.setAttribute("aria-label", what);
      const verdict = element("b");
      const answer = this.stage.answer();
      const said = element("span", { className: "qwl-said" }, verdict, answer);
      this.list.append(element("li", {}, asked, next, said));
      return { asked, next, verdict, answer };
    }

    // Once nobody has typed for a moment.
    restart_later() {
      this.stage.root.dataset.busy = true;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => {
        this.restart();
        delete this.stage.root.dataset.busy;
      }, 200);
    }

    // Other talks or pads: both turns once more, shown after the first.
    restart() {
      this.player.pause();
      const talks = this.lines.map(({ asked, next }) => [asked.value, next.value]);
      const { model, tokenizer, known } = this;
      this.run = new TurnsRun(model, tokenizer, talks, this.pads.value, known);
      this.player.go(0);
    }

    show(step) {
      const { run } = this;
      const rows = [];
      const cells = [];
      run.rows.forEach((_, row) => {
        const shown = linear_layers(this.model).slice(0, SHOWN);
        rows.push(name_of(row), ...shown.map((n) => `layer ${n}`));
        cells.push(this.tokens(row, step));
        cells.push(...shown.map((_, i) => this.distances(row, i, step)));
      });
      this.grid.draw(cells, { rows, follow: step > 0 ? step + 1 : null });
      const at_end = step === run.width;
      this.lines.forEach((line, row) => this.draw_answer(line, row, at_end));
      const wrong = moved_rows(run, step).length > 0;
      this.stage.say(sentence(run, step), wrong ? "bad" : at_end ? "good" : "");
    }

    // What a row reads: turn 1 as two cells, then turn 2.
    tokens(row, step) {
      const { rows, rectangles } = this.run;
      const { turns, pads } = rows[row];
      const control = new Set(this.tokenizer.control.values());
      const [input_ids, real] = rectangles[1];
      const second = input_ids[row].map((id, t) => {
        const cell = token_cell(this.tokenizer, id, real[row][t]);
        const folded = real[row][t] && control.has(id);
        const text = folded ? "⋯" : real[row][t] ? cell.text : "pad";
        return { ...cell, text, marked: t === step - 1 };
      });
      const title = this.tokenizer.decode(turns[0]);
      const first = { kind: "t", text: many(turns[0].length, "token"), title };
      const before = { kind: "p", text: many(pads[0], "pad"), title: "turn 1" };
      return [pads[0] > 0 ? before : null, first, ...second];
    }

    distances(row, layer, step) {
      const { frames } = this.run;
      const cells = frames.map(({ distances }, t) => {
        return t > step ? NOT_YET : distance_cell(distances[row][layer]);
      });
      return [null, ...cells];
    }

    draw_answer({ verdict, answer }, row, at_end) {
      if (!at_end) {
        verdict.textContent = "";
        answer.draw("");
        return;
      }
      const [here, alone] = this.run.answers()[row].map((ids) => this.tokenizer.decode(ids));
      verdict.textContent = here === alone ? "as alone" : "≠ alone";
      answer.draw(here);
    }
  }

  // On a log scale, from 1e-6 to 1.
  function distance_cell(value) {
    const power = value === 0 ? LOWEST : Math.log10(value);
    const level = Math.round(100 * (1 - Math.max(LOWEST, Math.min(power, 0)) / LOWEST));
    const text = value === 0 ? "0" : short(value).replace(/^0\./, ".");
    return { kind: "v", level, text, title: `${value.toPrecision(3)} of its size away` };
  }

  qwenlab.widget("turns", async (stage) => {
    const widget = new TurnsWidget(stage);
    [widget.model, widget.tokenizer] = await stage.bring();
    if (linear_layers(widget.model).length === 0) {
      throw new Error(`${stage.model} has no linear layer, and so no memory to compare`);
    }
    widget.restart();
  });
  Object.assign(qwenlab, { TurnsRun });
})(globalThis.qwenlab);
