// From logits to a token: the model's distribution for the next token, what temperature, top-k,
// top-p and the repetition penalty make of it, and a draw.
//
//   const {before, kept, reasons, after} = qwenlab.chances(logits, request)
//       logits: one row; `request` as in sampling.js. before: probabilities after penalty and
//       temperature (1 where greedy); kept: true at ids that can be drawn; reasons: what removes
//       each of the others, "temperature 0", "top-k" or "top-p"; after: what the library draws from
//   qwenlab.draws(after, seed, place, count)
//       the ids of `count` samples at this place of their answers, as generate's n draws them
//
// Options: prompt (text), temperature, top_k, top_p, repetition_penalty.

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const SHOWN = 12; // tokens with a bar of their own
  const DRAWS = 100;
  const MOST = 60; // new tokens of an answer

  const { range, sum, capital } = qwenlab;

  // --- What is computed --------------------------------------------------------------------------

  // The order of sampling.js: penalty, temperature, top-k, top-p.
  function chances(logits, request) {
    const { temperature, top_k, top_p } = request.params;
    const [penalised] = qwenlab.penalise([logits], [request]);
    const scaled = qwenlab.scale(penalised, temperature || 1);
    if (temperature === 0) {
      const best = qwenlab.argmax(penalised);
      const kept = range(scaled.length).map((id) => id === best);
      const after = Float64Array.from(kept, (yes) => (yes ? 1 : 0));
      const reasons = kept.map((yes) => (yes ? "" : "temperature 0"));
      return { before: qwenlab.softmax(scaled), kept, reasons, after };
    }
    const kept = qwenlab.most_probable(scaled, top_k, top_p);
    const within_k = qwenlab.most_probable(scaled, top_k, 1);
    const reasons = kept.map((yes, id) => (yes ? "" : within_k[id] ? "top-p" : "top-k"));
    const left = scaled.map((value, id) => (kept[id] ? value : -Infinity));
    return { before: qwenlab.softmax(scaled), kept, reasons, after: qwenlab.softmax(left) };
  }

  function draws(after, seed, place, count) {
    return range(count).map((k) => {
      return qwenlab.inverse_cdf(after, qwenlab.uniform([seed, 0, k], place));
    });
  }

  // --- In words ----------------------------------------------------------------------------------

  const percent = (value) => `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)}%`;

  // What the settings do to the distribution, the most probable token as the example.
  function about_settings({ params, plain, found, best, text, seen }) {
    const { temperature, top_k, top_p, repetition_penalty } = params;
    const { before, kept, after } = found;
    const left = kept.filter(Boolean).length;
    const said = [];
    if (repetition_penalty !== 1) {
      said.push(`The penalty makes the ${seen} tokens seen so far less likely.`);
    }
    if (temperature === 0) {
      said.push(`Temperature 0 always takes the most probable token, “${text}”.`);
      return said.join(" ");
    }
    if (temperature !== 1) {
      const how = temperature < 1 ? "sharpens" : "flattens";
      const [now, once] = [before[best], plain[best]].map(percent);
      const instead = `“${text}” has ${now} instead of ${once}`;
      said.push(`Temperature ${temperature} ${how} the distribution: ${instead}.`);
    }
    if (left === kept.length) {
      const share = percent(after[best]);
      said.push(`Any of the ${left} tokens may be drawn, “${text}” with ${share}.`);
      return said.join(" ");
    }
    const cuts = [];
    if (top_k > 0 && top_k < kept.length) {
      cuts.push(`top-k keeps the ${top_k === 1 ? "most probable" : `${top_k} most probable`}`);
    }
    if (top_p < 1) {
      const among = cuts.length > 0 ? "of these" : "keeps";
      cuts.push(`top-p ${among} the fewest that reach ${percent(top_p)} together`);
    }
    const cut = cuts.join(", ");
    const rest = left === 1 ? "One token is left" : `${left} tokens are left and share 100%`;
    said.push(`${capital(cut)}. ${rest}.`);
    return said.join(" ");
  }

  // --- On the page -------------------------------------------------------------------------------

  const STYLE = `
.qwl-stage.qwl-sampling>*{margin-bottom:6px}
.qwl-sampling .qwl-field{flex:1 1 16em}
.qwl-sampling input[type=range]{width:104px}
.qwl-sampling output{min-width:2em}
.qwl-sampling .qwl-note{min-width:7.5em}
.qwl-sampling .qwl-bars li>:first-child{min-width:7em}
.qwl.qwl .qwl-sampling .qwl-figure{margin:0 0 4px}
.qwl-sampling .qwl-box{min-height:42px}
.qwl.qwl .qwl-sampling .qwl-sentence{min-height:4.2em}
@media(max-width:600px){.qwl.qwl .qwl-sampling .qwl-sentence{min-height:8.4em}
.qwl-sampling .qwl-note{min-width:6.2em}.qwl-sampling .qwl-percent{width:3.2em}}
`;

  class SamplingWidget {
    constructor(stage) {
      const { temperature = 1, top_k = 0, top_p = 1, repetition_penalty = 1 } = stage.options;
      this.stage = stage;
      this.seed = 0;
      stage.root.classList.add("qwl-sampling");
      this.field = stage.field("Prompt", stage.options.prompt, () => this.restart());
      const change = () => this.update();
      const warm = { max: 2, step: 0.1, value: temperature };
      this.temperature = stage.slider("temperature", warm, change);
      this.top_k = stage.slider("top-k (0: all)", { max: 20, value: top_k }, change);
      const share = { min: 0.05, max: 1, step: 0.05, value: top_p };
      this.top_p = stage.slider("top-p", share, change);
      const penalty = { min: 1, max: 2, step: 0.1, value: repetition_penalty };
      this.penalty = stage.slider("repetition penalty", penalty, change);
      this.bars = stage.bars("The next token", SHOWN + 1);
      this.draw_button = stage.button("Draw", () => this.draw(), true);
      this.back_button = stage.button("Take back", () => this.take_back());
      this.luck = stage.button("New seed", () => this.reseed());
      this.grid = stage.grid("The answer so far", { tight: true });
      const sliders = [this.temperature, this.top_k, this.top_p, this.penalty];
      const buttons = stage.controls(this.draw_button, this.back_button, this.luck);
      const head = [stage.controls(this.field), stage.controls(...sliders)];
      stage.add(stage.sheet(STYLE), ...head, this.bars, buttons);
      stage.add(this.grid, stage.sentence);
    }

    get params() {
      return {
        temperature: this.temperature.value,
        top_k: this.top_k.value,
        top_p: this.top_p.value,
        repetition_penalty: this.penalty.value,
      };
    }

    // Another prompt: an answer that has begun with a thought, and nothing more.
    restart() {
      const chat = this.tokenizer.chat([{ role: "user", content: this.field.value }]);
      this.begun = [this.tokenizer.control.get("<think>"), ...this.tokenizer.encode("\n")];
      this.request = new qwenlab.Request(0, [...chat, ...this.begun], {
        rng_key: [this.seed, 0, 0],
      });
      this.read();
      this.update();
    }

    // The logits behind the prompt and the answer so far.
    read() {
      const { prompt, token_ids } = this.request;
      const ids = [...prompt, ...token_ids];
      [this.logits] = this.model.forward([ids], { last_only: true });
    }

    get stopped() {
      return this.request.stop_id !== null;
    }

    // Says what the settings do, unless there is something else to say.
    update(said = null) {
      const { request, logits, tokenizer } = this;
      request.params = { ...request.params, ...this.params };
      const found = chances(logits, request);
      this.found = found;
      this.draw_bars(found);
      this.draw_answer();
      const is_full = request.token_ids.length === MOST;
      this.draw_button.disable(this.stopped || is_full);
      this.back_button.disable(request.logprobs.length === 0);
      const plain = { ...request, params: { ...request.params, temperature: 1 } };
      const best = qwenlab.argmax(found.before);
      const text = qwenlab.drawing.token_text(tokenizer.decode([best]));
      const seen = new Set([...request.prompt, ...request.token_ids]).size;
      const told = { params: request.params, plain: chances(logits, plain).before, found };
      this.stage.say(said ?? about_settings({ ...told, best, text, seen }));
    }

    draw_bars({ before, kept, reasons, after }) {
      const { tokenizer, request, seed } = this;
      if (this.stopped) {
        this.bars.draw([], "The answer has stopped, so there is no next token");
        return;
      }
      const drawn = new Map();
      for (const id of draws(after, seed, request.logprobs.length, DRAWS)) {
        drawn.set(id, (drawn.get(id) ?? 0) + 1);
      }
      const bars = qwenlab.drawing.most_probable_bars(tokenizer, before, SHOWN);
      const shown = bars.map(({ id, text, value }) => {
        if (!kept[id]) {
          return { text, value, kind: "gone", note: reasons[id] };
        }
        return { text, value: after[id], note: `drawn ${drawn.get(id) ?? 0}×` };
      });
      shown.push(this.rest(bars.map(({ id }) => id), drawn));
      this.bars.draw(shown, `The next token, drawn ${DRAWS} times`);
    }

    // All tokens that have no bar of their own.
    rest(ids, drawn) {
      const { before, kept, reasons, after } = this.found;
      const own = new Set(ids);
      const others = range(before.length).filter((id) => !own.has(id));
      const left = others.filter((id) => kept[id]);
      const text = `${others.length} others`;
      if (left.length === 0) {
        const why = [...new Set(others.map((id) => reasons[id]))].sort().join(", ");
        const value = sum(others.map((id) => before[id]));
        return { text, value, kind: "rest gone", note: why };
      }
      const value = sum(left.map((id) => after[id]));
      const times = sum(left.map((id) => drawn.get(id) ?? 0));
      return { text, value, kind: "rest", note: `drawn ${times}×` };
    }

    draw_answer() {
      const { tokenizer, model, request, begun } = this;
      const cell = (id) => qwenlab.drawing.token_cell(tokenizer, id);
      const given = begun.map((id) => ({ ...cell(id), title: "given" }));
      const ids = [...request.token_ids, ...(this.stopped ? [request.stop_id] : [])];
      const sampled = ids.map((id, place) => {
        const text = model.stop_ids.has(id) ? "■" : cell(id).text;
        return { ...cell(id), text, marked: place === ids.length - 1 };
      });
      const cells = [[...given, { kind: "o", text: "→" }, ...sampled]];
      this.grid.draw(cells, { follow: cells[0].length - 1 });
    }

    // The library's own way, so that the answer is the one that generate gives with this seed.
    draw() {
      const { request, model, tokenizer } = this;
      const logits = qwenlab.penalise([this.logits], [request]);
      const [id] = qwenlab.sample(logits, [request]);
      const number = qwenlab.uniform(request.rng_key, request.logprobs.length);
      const share = percent(this.found.after[id]);
      request.logprobs.push(...qwenlab.logprobs_of(logits, [id], [request]));
      const text = qwenlab.drawing.token_text(tokenizer.decode([id]));
      const fell = this.temperature.value === 0
        ? `“${text}” is the most probable token`
        : `The number ${number.toFixed(3)} fell to “${text}”, which had ${share}`;
      if (model.stop_ids.has(id)) {
        request.stop_id = id;
        this.update(`${fell}. It is a stop id, so the answer ends here.`);
        return;
      }
      request.token_ids.push(id);
      this.read();
      this.update(`${fell}. It is appended, and the model has read on.`);
    }

    take_back() {
      const { request } = this;
      if (this.stopped) {
        request.stop_id = null;
      } else {
        request.token_ids.pop();
      }
      request.logprobs.pop();
      this.read();
      this.update("Taken back. The next draw at this place uses the same number again.");
    }

    reseed() {
      this.seed += 1;
      this.request.rng_key = [this.seed, 0, 0];
      const how = "other numbers, so other draws from the same distribution";
      this.update(`Seed ${this.seed}: ${how}.`);
    }
  }

  qwenlab.widget("sampling", async (stage) => {
    const widget = new SamplingWidget(stage);
    [widget.model, widget.tokenizer] = await stage.bring();
    widget.restart();
  });
  Object.assign(qwenlab, { chances, draws });
})(globalThis.qwenlab);
