// Lesson 03: one row's mask as a grid. Each cell is a query (its row) and a key (its column), and
// flips by mouse, touch and keyboard. After each flip the model runs over the row again, and the
// next token, the answer and the sentence on what changed follow.
//
// Options: lines, one a row of the batch, each the beginning of a thought that the model continues;
// hints, of each row the key that the first sentence proposes to hide from the last query; pad, the
// text of the token that stands on every pad.
//
// The square has a place for each token of the prompt. A token that is generated sees what the last
// query sees, and itself; the tokens before it don't see it.

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const { range, capital } = qwenlab;

  // --- The mask, without the page --------------------------------------------------------------

  // What each rule hides from a query: the keys that come later, pads, or both.
  const RULES = {
    "later or pad": { causal: true, padding: true, what: "later keys and pads" },
    later: { causal: true, padding: false, what: "later keys only" },
    pad: { causal: false, padding: true, what: "pads only" },
    nothing: { causal: false, padding: false, what: "nothing" },
  };
  const MOST = 12; // tokens of an answer, at most

  // One row of the batch: its ids (T,), which of them are real (T,), and who sees whom.
  class Row {
    constructor(ids, real) {
      this.ids = ids;
      this.real = real;
      this.rule = "later or pad";
      this.flips = range(ids.length).map(() => ids.map(() => false)); // (T, T), by the reader
    }

    get width() {
      return this.ids.length;
    }

    // Why the rule hides a key from a query: "later", "pad", "both", or "" if it doesn't.
    rule_says(query, key) {
      const { causal, padding } = RULES[this.rule];
      const later = causal && key > query;
      const pad = padding && !this.real[key];
      return later && pad ? "both" : later ? "later" : pad ? "pad" : "";
    }

    sees(query, key) {
      return (this.rule_says(query, key) === "") !== this.flips[query][key];
    }

    // The same as `rule_says`, with "you" where the reader hid what the rule shows.
    why(query, key) {
      return this.sees(query, key) ? "" : this.rule_says(query, key) || "you";
    }

    // Hides or shows a pair, whatever it was.
    set(query, key, sees) {
      this.flips[query][key] = (this.rule_says(query, key) === "") !== sees;
    }

    get num_flips() {
      return this.flips.flat().filter(Boolean).length;
    }

    reset() {
      this.flips.forEach((row) => row.fill(false));
    }

    // (T, T), true = may attend.
    mask() {
      return range(this.width).map((q) => range(this.width).map((k) => this.sees(q, k)));
    }

    // Forward passes over the rectangle, one for each token of the answer: yields {logits (V,), id,
    // watch}, the stop id's pass included.
    *answer(model) {
      const ids = [...this.ids];
      let mask = this.mask();
      const [position_ids] = qwenlab.position_ids([this.real]);
      for (let n = 0; n < MOST; n++) {
        const watch = {};
        const options = {
          attention_mask: [[mask]],
          position_ids: [position_ids],
          last_only: true,
          watch,
        };
        const [logits] = model.forward([ids], options);
        const id = qwenlab.argmax(logits);
        yield { logits, id, watch };
        if (model.stop_ids.has(id)) {
          return;
        }
        ids.push(id);
        position_ids.push(position_ids.at(-1) + 1);
        mask = with_one_more(mask);
      }
    }
  }

  // (T, T) to (T + 1, T + 1).
  function with_one_more(mask) {
    return [...mask.map((row) => [...row, false]), [...mask.at(-1), true]];
  }

  // The rows of a left-padded batch in which every pad holds the token `pad`.
  function rows_of(tokenizer, lines, pad) {
    const begin = tokenizer.control.get("<think>");
    const prompts = lines.map((line) => [begin, ...tokenizer.encode(`\n${line}`)]);
    const [input_ids, attention_mask] = qwenlab.left_pad(prompts, tokenizer.encode(pad)[0]);
    return input_ids.map((ids, b) => new Row(ids, attention_mask[b]));
  }

  // --- What is seen ----------------------------------------------------------------------------

  const { element, token_text, token_cell, most_probable_bars } = qwenlab.drawing;
  const BARS = 5;
  const REASONS = {
    later: "it comes later",
    pad: "it is a pad",
    both: "it comes later and is a pad",
    you: "you hid it",
  };
  const LEGEND = "l: it comes later, p: a pad, b: both, y: you";

  const STYLE = `
.qwl.qwl .qwl-mask .qwl-grid td{padding:0 2px;width:40px;min-width:40px;box-sizing:border-box;\
font-size:11px;cursor:pointer}
.qwl.qwl .qwl-mask .qwl-grid td.m{color:#d3d9df}
.qwl.qwl .qwl-mask .qwl-grid td.m.x{color:#fff;font-weight:700;outline:2px solid #fff;\
outline-offset:-4px}
.qwl.qwl .qwl-mask .qwl-grid td.hint{outline:3px dashed #1f6fb2;outline-offset:-3px}
.qwl-mask-why{color:var(--qwl-muted);min-height:1.4em}
.qwl.qwl .qwl-mask-all figcaption{padding:0}
.qwl.qwl .qwl-mask-all{gap:4px 22px}
.qwl-mask-next{flex:1 1 220px;max-width:420px}
.qwl-mask-next .qwl-track{position:relative}
.qwl-mask-next .qwl-note{display:none}
.qwl-mask-right{position:absolute;top:-2px;bottom:-2px;width:3px;margin-left:-1px;\
background:var(--qwl-ink)}
.qwl-mask-line{display:flex;flex-wrap:wrap;gap:2px;align-content:flex-start;min-height:54px}
.qwl-mask-line span{padding:5px 6px;height:25px;box-sizing:border-box;white-space:pre;\
font:12px/1 ui-monospace,Menlo,Consolas,monospace}
.qwl-mask-line .x{outline:3px solid var(--qwl-ink);outline-offset:-3px}
.qwl-mask-legend{display:none}
.qwl-mask-menu>select{min-height:28px}
@media(max-width:600px){.qwl.qwl .qwl-mask-controls+.qwl-sentence{min-height:4.2em}\
.qwl.qwl .qwl-mask .qwl-grid td{width:28px;min-width:28px}\
.qwl-mask-legend{display:block}}
`;

  class MaskView {
    constructor(stage, [model, tokenizer]) {
      this.stage = stage;
      this.model = model;
      this.tokenizer = tokenizer;
      const { lines, hints, pad } = stage.options;
      this.hints = hints;
      this.rows = rows_of(tokenizer, lines, pad);
      const lost = hints.find((hint) => hint >= this.rows[0].width);
      if (lost !== undefined) {
        throw new Error(`hints: ${lost} is no key, expected 0 to ${this.rows[0].width - 1}`);
      }
      this.chosen = 0;
      this.shade = null; // or [layer, head], whose weights are shown
      this.turn = 0;
      this.narrow = matchMedia("(max-width: 600px)");
      this.narrow.addEventListener("change", () => this.draw_mask());
      this.build(lines);
      this.choose(0);
    }

    get row() {
      return this.rows[this.chosen];
    }

    get last() {
      return this.row.width - 1;
    }

    text(id) {
      return token_text(this.tokenizer.decode([id]));
    }

    // What a place of the row is called.
    name(place) {
      return this.row.real[place] ? `“${this.text(this.row.ids[place])}”` : "a pad";
    }

    build(lines) {
      const { stage } = this;
      const rows = lines.map((line, b) => [b, line]);
      const rules = Object.keys(RULES).map((rule) => [rule, rule]);
      const choice = stage.choice("Row", rows, (b) => this.choose(Number(b))); // has its own rule
      this.rule = stage.choice("Hides", rules, (rule) => this.change_rule(rule));
      this.undo = stage.button("Undo flips", () => this.reset());
      const controls = stage.controls(choice, this.rule, this.weights_menu(), this.undo);
      controls.classList.add("qwl-mask-controls");
      this.grid = stage.grid("Who sees whom", { pick: (i, j) => this.pick(i - 1, j - 1) });
      this.why = element("p", { className: "qwl-mask-why" });
      for (const event of ["pointerover", "focusin"]) {
        this.grid.root.addEventListener(event, ({ target }) => this.point(target));
      }
      const legend = element("p", { className: "qwl-mask-legend" }, LEGEND);
      const left = element("div", { className: "qwl-mask" }, this.grid, this.why, legend);
      this.bars = stage.bars("Next token", BARS);
      this.answers = [0, 1].map(() => element("div", { className: "qwl-mask-line" }));
      const answers = ["Answer under this mask", "Under the right mask"].flatMap(
        (words, n) => [element("figcaption", {}, words), this.answers[n]],
      );
      const right = element("div", { className: "qwl-mask-next" }, this.bars, ...answers);
      const side = element("div", { className: "qwl-side qwl-mask-all" }, left, right);
      stage.add(stage.sheet(STYLE), controls, stage.sentence, side);
    }

    weights_menu() {
      const { num_hidden_layers: layers, num_attention_heads: heads } = this.model.config;
      const values = [["", "none"]];
      for (let layer = 0; layer < layers; layer++) {
        for (let head = 0; head < heads; head++) {
          values.push([`${layer} ${head}`, `layer ${layer + 1}, head ${head + 1}`]);
        }
      }
      const menu = this.stage.menu("Weights", values, (value) => {
        this.shade = value ? value.split(" ").map(Number) : null;
        this.draw_mask();
      });
      menu.root.className = "qwl-mask-menu";
      return menu;
    }

    // --- What the reader does ---

    choose(b) {
      this.chosen = b;
      const { row } = this;
      this.rule.value = row.rule;
      this.grid.at = [row.width, this.hints[b] + 1]; // Tab leads to the cell of the hint
      this.pointed = [this.last, this.hints[b]];
      if (row.right === undefined) {
        row.right = summary([...new Row(row.ids, row.real).answer(this.model)]);
        row.now = row.right;
      }
      this.run("");
    }

    change_rule(rule) {
      this.row.rule = rule;
      this.row.reset();
      this.run(`A mask that hides ${RULES[rule].what}`);
    }

    reset() {
      if (this.row.num_flips > 0) {
        this.row.reset();
        this.run("Undoing the flips");
      }
    }

    // A cell flips; the token in front of a line, or on top of a column, flips them all.
    pick(query, key) {
      if (query < 0 && key < 0) {
        return;
      }
      const pairs = this.pairs(query, key);
      const sees = !pairs.some((pair) => this.row.sees(...pair));
      pairs.forEach((pair) => this.row.set(...pair, sees));
      const what = key < 0 ? "every key" : this.name(key);
      const whom = query < 0 ? "every query" : this.name(query);
      this.run(sees ? `Showing ${what} to ${whom}` : `Hiding ${what} from ${whom}`);
    }

    // Of a whole line or column those that the rule shows; if there are none, those hidden as pads.
    pairs(query, key) {
      if (query >= 0 && key >= 0) {
        return [[query, key]];
      }
      const all = range(this.row.width).map((n) => (query < 0 ? [n, key] : [query, n]));
      const shown = all.filter((pair) => this.row.rule_says(...pair) === "");
      return shown.length > 0
        ? shown
        : all.filter((pair) => this.row.rule_says(...pair) === "pad");
    }

    // The pair under the pointer or the keyboard is said in words.
    point(target) {
      const i = this.grid.lines.findIndex(({ cells }) => cells.includes(target));
      if (i >= 0) {
        this.pointed = [i - 1, this.grid.lines[i].cells.indexOf(target) - 1];
        this.draw_why();
      }
    }

    // --- What is shown ---

    // Runs the model. `action`: what the reader did, as the subject of a sentence, or "".
    async run(action) {
      const turn = ++this.turn;
      const { row } = this;
      const before = row.now;
      const passes = [];
      this.stage.root.dataset.busy = true;
      for (const pass of row.answer(this.model)) {
        passes.push(pass);
        row.now = summary(passes);
        this.draw_answers();
        if (passes.length === 1) {
          this.draw_mask();
          this.draw_bars();
          this.stage.say(action ? this.effect(action, before) : this.proposal());
        }
        await new Promise(requestAnimationFrame);
        if (turn !== this.turn) {
          return;
        }
      }
      const same = before.ids.join() === row.now.ids.join();
      if (action && before.id === row.now.id && !same) {
        this.stage.say(`${this.effect(action, before)} But it goes on differently.`);
      }
      delete this.stage.root.dataset.busy;
    }

    proposal() {
      const { now, right, num_flips } = this.row;
      const next = `The next token is “${this.text(now.id)}”`;
      if (num_flips > 0 || this.row.rule !== "later or pad") {
        return `${next}; under the right mask it is “${this.text(right.id)}”.`;
      }
      const hint = this.name(this.hints[this.chosen]);
      return `${next}. Flip the dashed cell, and ${this.name(this.last)} no longer sees ${hint}.`;
    }

    effect(action, before) {
      const { now } = this.row;
      const to = `“${this.text(now.id)}”`;
      if (before.id !== now.id) {
        const from = `“${this.text(before.id)}”`;
        return `${action} changed the next token from ${from} to ${to}.${this.blind()}`;
      }
      const [was, is] = [before, now].map((one) => Math.round(100 * one.probabilities[now.id]));
      return `${action} left the next token at ${to}: ${was}% before, ${is}% now.${this.blind()}`;
    }

    // A real query that sees nothing.
    blind() {
      const places = range(this.row.width);
      const sees_nothing = (query) => places.every((key) => !this.row.sees(query, key));
      const query = places.find((place) => this.row.real[place] && sees_nothing(place));
      if (query === undefined) {
        return "";
      }
      return ` ${this.name(query)} sees nothing now, which is the next lesson's case.`;
    }

    // The tokens of the keys on top, those of the queries in front.
    draw_mask() {
      const { row } = this;
      const places = range(row.width);
      const token = (place, words) => {
        const cell = token_cell(this.tokenizer, row.ids[place], row.real[place]);
        return { ...cell, text: this.text(row.ids[place]), title: words };
      };
      const keys = places.map((key) => token(key, `key ${this.name(key)}, for every query`));
      const lines = places.map((query) => {
        const cells = places.map((key) => this.cell(query, key));
        return [token(query, `query ${this.name(query)}, every key`), ...cells];
      });
      const padded = row.real.includes(false);
      const words = padded ? ` (hatched: a pad, a loud ${this.stage.options.pad})` : ", no pad";
      const title = `Row ${this.chosen}${words}`;
      const corner = { kind: "o", title: "queries below, keys to the right" };
      this.grid.draw([[corner, ...keys], ...lines], { title });
      const hint = this.grid.lines[row.width].cells[this.hints[this.chosen] + 1];
      hint.classList.toggle("hint", row.num_flips === 0);
      this.undo.disable(row.num_flips === 0);
      this.draw_why();
    }

    cell(query, key) {
      const why = this.row.why(query, key);
      const marked = this.row.flips[query][key];
      const title = this.sentence(query, key);
      if (why) {
        return { kind: "m", text: this.narrow.matches ? why[0] : why, title, marked };
      }
      if (this.shade === null) {
        return { kind: "a", text: marked ? "you" : "", title, marked };
      }
      const [layer, head] = this.shade;
      const weight = this.row.now.watch.attention[layer][0][head][query][key];
      const level = Math.round(100 * weight);
      const digits = weight.toFixed(2);
      const text = level % 100 === 0 ? String(level / 100) : digits.slice(1);
      return { kind: "v", level, text, title: `${title}, weight ${digits}`, marked };
    }

    sentence(query, key) {
      const why = this.row.why(query, key);
      const sees = why ? "does not see" : "sees";
      const pair = `query ${this.name(query)} ${sees} key ${this.name(key)}`;
      return why ? `${pair}: ${REASONS[why]}` : pair;
    }

    draw_why() {
      const [query, key] = this.pointed;
      let words = "Click a key here to hide it from every query, a query to hide every key from it";
      if (query >= 0 && key >= 0) {
        words = this.sentence(query, key);
      }
      this.why.textContent = `${capital(words)}.`;
    }

    // The most probable tokens, and a line where each stands under the right mask.
    draw_bars() {
      const { now, right } = this.row;
      const bars = most_probable_bars(this.tokenizer, now.probabilities, BARS);
      if (!bars.some(({ id }) => id === right.id)) {
        const { id } = right;
        bars[BARS - 1] = { id, text: this.text(id), value: now.probabilities[id] };
      }
      bars[0].marked = now.id !== right.id;
      this.bars.draw(bars, `After ${this.name(this.last)} (┃ right mask)`);
      const tracks = this.bars.root.querySelectorAll(".qwl-track");
      bars.forEach(({ id }, n) => {
        const line = element("span", { className: "qwl-mask-right" });
        line.style.left = `${100 * right.probabilities[id]}%`;
        tracks[n].append(line);
      });
    }

    draw_answers() {
      const { now, right } = this.row;
      [now, right].forEach(({ ids }, n) => {
        const tokens = ids.map((id, place) => {
          const text = this.model.stop_ids.has(id) ? "stop" : this.text(id);
          const differs = n === 0 && id !== right.ids[place];
          return element("span", { className: `qwl-token${differs ? " x" : ""}` }, text);
        });
        this.answers[n].replaceChildren(...tokens);
      });
    }
  }

  // What the forward passes so far say.
  function summary(passes) {
    return {
      id: passes[0].id, // of the next token
      probabilities: qwenlab.softmax(passes[0].logits),
      watch: passes[0].watch,
      ids: passes.map(({ id }) => id),
    };
  }

  qwenlab.widget("mask", async (stage) => {
    stage.add(stage.sentence);
    new MaskView(stage, await stage.bring());
  });
})(globalThis.qwenlab);
