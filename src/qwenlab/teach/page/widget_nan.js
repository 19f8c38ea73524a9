// Lesson 04: a left-padded batch whose first pads see nothing. The reader steps through the layers,
// sees where NaN appears, and chooses what softmax makes of a query that sees nothing.
// Options: lines, one a row of the batch, each the beginning of a thought; the first is shorter.

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const { range, sum } = qwenlab;

  // --- The batch, without the page -------------------------------------------------------------

  // The left-padded rectangle: {input_ids, real}, (B, T) each.
  function rectangle(tokenizer, lines) {
    const begin = tokenizer.control.get("<think>");
    const prompts = lines.map((line) => [begin, ...tokenizer.encode(`\n${line}`)]);
    const [input_ids, real] = qwenlab.left_pad(prompts, tokenizer.pad_id);
    return { prompts, input_ids, real };
  }

  // One forward pass under a cure: finite[depth][b][t] (depth 0 is the embedding), the weights of
  // the first row's first query in the first layer and head, and of each row its next token's
  // probabilities and its loss, the mean over its real tokens.
  function run(model, { input_ids, real }, cure) {
    const watch = {};
    const before = model.softmax;
    model.softmax = cure;
    let logits;
    try {
      logits = model.forward(input_ids, {
        attention_mask: qwenlab.combined_mask(real),
        position_ids: qwenlab.position_ids(real),
        watch,
      });
    } finally {
      model.softmax = before;
    }
    return {
      finite: watch.finite,
      weights: watch.attention[0][0][0][0],
      next: logits.map((row) => qwenlab.softmax(row.at(-1))),
      losses: logits.map((row, b) => loss(row, input_ids[b], real[b])),
    };
  }

  // Mean of -log p(next token) over the real tokens of a row that have a next one.
  function loss(logits, ids, real) {
    const places = range(ids.length - 1).filter((t) => real[t]);
    const each = places.map((t) => -Math.log(qwenlab.softmax(logits[t])[ids[t + 1]]));
    return sum(each) / each.length;
  }

  // --- What is seen ----------------------------------------------------------------------------

  const { element, token_text, token_cell } = qwenlab.drawing;
  const CURES = {
    "-inf": "",
    "finfo.min": "a query that may see nothing averages all keys, hidden ones too",
    "log-sum-exp": "a query that may see nothing gets zeros",
    "pads-see-themselves": "a query that may see nothing sees itself",
  };
  const PACE = 1300; // milliseconds a layer
  const NOT_YET = { kind: "i" };
  const NAN = { kind: "n", text: "NaN", title: "not a number" };
  const NOTE = "weights: what the first pad's query takes of each key in layer 1, head 1";

  const STYLE = `
.qwl.qwl .qwl-nan .qwl-grid td{padding:0 2px;width:40px;min-width:40px;box-sizing:border-box;\
font-size:11px;height:22px}
.qwl.qwl .qwl-nan .qwl-grid th{font-size:11px;height:22px}
.qwl.qwl .qwl-nan figcaption{padding:0}
.qwl.qwl .qwl-nan{gap:4px 22px}
.qwl-nan-out{flex:1 1 200px}
.qwl.qwl .qwl-nan-controls{gap:6px 22px;margin:0}
.qwl-nan-controls .qwl-bar-of-buttons{flex-wrap:wrap}
@media(max-width:600px){.qwl.qwl .qwl-nan-controls+.qwl-sentence{min-height:5.6em}\
.qwl.qwl .qwl-nan .qwl-grid :is(td,th){padding:0 1px}\
.qwl.qwl .qwl-nan .qwl-grid td{width:28px;min-width:28px}}
`;

  class NanView {
    constructor(stage, [model, tokenizer]) {
      this.stage = stage;
      this.model = model;
      this.tokenizer = tokenizer;
      this.lines = stage.options.lines;
      this.batch = rectangle(tokenizer, this.lines);
      this.alone = this.batch.prompts.map((ids) =>
        qwenlab.argmax(model.forward([ids], { last_only: true })[0]),
      );
      this.layers = model.config.num_hidden_layers;
      this.step = 1;
      this.build();
      this.choose("-inf");
    }

    // The step that shows what comes out.
    get last() {
      return this.layers + 1;
    }

    build() {
      const { stage } = this;
      const cures = Object.keys(CURES).map((cure) => [cure, cure]);
      const choice = stage.choice("Softmax", cures, (cure) => this.choose(cure));
      this.player = stage.player({
        count: () => this.last + 1,
        show: (step) => {
          this.step = step;
          this.draw();
        },
        delay: () => PACE,
      });
      this.grids = this.lines.map((line, b) => stage.grid(`Row ${b}`));
      this.out = stage.grid("What comes out");
      const left = element("div", {}, ...this.grids);
      const right = element("div", { className: "qwl-nan-out" }, this.out, element("p", {}, NOTE));
      const side = element("div", { className: "qwl-side qwl-nan" }, left, right);
      const controls = stage.controls(choice, this.player);
      controls.classList.add("qwl-nan-controls");
      stage.add(stage.sheet(STYLE), controls, stage.sentence, side);
    }

    choose(cure) {
      this.cure = cure;
      this.result = run(this.model, this.batch, cure);
      this.player.go(this.step);
    }

    // --- What is shown ---

    draw() {
      this.grids.forEach((grid, b) => this.draw_row(grid, b));
      this.draw_out();
      this.stage.say(this.step === this.last ? this.end() : this.middle());
    }

    // A row's tokens on top, and below them what each depth makes of them.
    draw_row(grid, b) {
      const { input_ids, real } = this.batch;
      const tokens = input_ids[b].map((id, t) => {
        const cell = token_cell(this.tokenizer, id, real[b][t]);
        return real[b][t] ? cell : { ...cell, text: "pad" };
      });
      const rows = ["", "embedding", ...range(this.layers).map((n) => `layer ${n + 1}`)];
      const cells = [tokens];
      for (let depth = 0; depth <= this.layers; depth++) {
        cells.push(real[b].map((is_real, t) => this.token(b, t, depth, is_real)));
      }
      if (b === 0) {
        rows.splice(2, 0, "weights");
        const weights = Array.from(this.result.weights, weight_cell);
        cells.splice(2, 0, this.step > 0 ? weights : weights.map(() => NOT_YET));
      }
      const pads = real[b].filter((is_real) => !is_real).length;
      const behind = pads === 0 ? "no pad" : `${pads} pads in front`;
      grid.draw(cells, { rows, title: `Row ${b}: ${this.lines[b]} with ${behind}` });
    }

    token(b, t, depth, is_real) {
      if (depth > this.step) {
        return NOT_YET;
      }
      return this.result.finite[depth][b][t] ? { kind: is_real ? "t" : "p", text: "ok" } : NAN;
    }

    draw_out() {
      const done = this.step === this.last;
      const { next, losses } = this.result;
      const cells = next.map((probabilities, b) => {
        const id = qwenlab.argmax(probabilities);
        const token = Number.isNaN(probabilities[id]) ? NAN : token_cell(this.tokenizer, id);
        const alone = token_cell(this.tokenizer, this.alone[b]);
        return [alone, done ? token : NOT_YET, done ? loss_cell(losses[b]) : NOT_YET];
      });
      const mean = sum(losses) / losses.length;
      cells.push([null, null, done ? loss_cell(mean) : NOT_YET]);
      const rows = [...this.lines.map((_, b) => `row ${b}`), "batch"];
      this.out.draw(cells, { rows, columns: ["alone", "here", "loss"] });
    }

    // How many tokens of a row are NaN so far, and why.
    middle() {
      const place = `After layer ${this.step}`;
      const bad = this.result.finite[this.step].map((row) => row.filter((ok) => !ok).length);
      const all = this.batch.input_ids[0].length;
      if (this.step === 0) {
        return "All embeddings are finite, those of the pads too. Which tokens can a pad see?";
      }
      if (bad[0] === 0) {
        return `${place} all is finite: with ${this.cure} ${CURES[this.cure]}.`;
      }
      if (bad[0] < all) {
        return `${place} the ${bad[0]} pads of row 0 are NaN: they see nothing, and 0 / 0 is NaN.`;
      }
      return (
        `${place} all ${all} tokens of row 0 are NaN: a hidden key has weight 0, but 0 × NaN is ` +
        "NaN. Row 1 is well, since rows don't meet in attention."
      );
    }

    end() {
      const ids = this.result.next.map(qwenlab.argmax);
      const names = ids.map((id) => `“${token_text(this.tokenizer.decode([id]))}”`);
      if (this.result.losses.some(Number.isNaN)) {
        return (
          `Row 0 has no next token: all its logits are NaN. Row 1 gets ${names[1]}, as alone. ` +
          "But where rows meet, in the mean of their losses, all is NaN."
        );
      }
      const same = ids.every((id, b) => id === this.alone[b]);
      const verdict = same ? "Both rows get what they get alone" : "The rows get";
      return `${verdict}: ${names.join(" and ")}. With ${this.cure} ${CURES[this.cure]}.`;
    }
  }

  function weight_cell(weight) {
    if (Number.isNaN(weight)) {
      return NAN;
    }
    const digits = String(Number(weight.toFixed(3))).replace(/^0\./, ".");
    return { kind: "v", level: Math.round(100 * weight), text: digits };
  }

  function loss_cell(loss) {
    return Number.isNaN(loss) ? NAN : { kind: "o", text: loss.toFixed(2) };
  }

  qwenlab.widget("nan", async (stage) => {
    stage.add(stage.sentence);
    const [model, tokenizer] = await stage.bring();
    const { real } = rectangle(tokenizer, stage.options.lines);
    if (real[0][0]) {
      throw new Error("the first line must have fewer tokens than the second, and so pads");
    }
    new NanView(stage, [model, tokenizer]);
  });
})(globalThis.qwenlab);
