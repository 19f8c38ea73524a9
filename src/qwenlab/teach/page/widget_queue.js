// The queue: requests of the reader's own wait for slots, under a strategy of the reader's choice.
// Each column comes from a plan of the engine's scheduler, each answer from the model.
//
//   const run = new qwenlab.QueueRun(model, tokenizer, requests, slots, strategy)
//       requests: [{name, text, arrives}]; `arrives` is the step before which it is sent
//   run.step()       -> a frame, or null once every request has its answer
//   run.send(asked)  sends one more {name, text} now
//   run.entries      those sent: {name, text, arrives, request, slot, joined, ended}, the last
//                    three null at first: its slot, the step of its first token and of its last
//   run.counts       {steps, passes, prefill, decode, wasted, idle}
//   A frame: step; slots, for each [name or null, kind]; event, whether a request takes a slot or
//   ends; said, what happens, in words.

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const MOST = 48; // new tokens that an answer may have
  const STRATEGIES = ["static", "early-stop", "continuous"];
  const NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

  const { range, listed, capital } = qwenlab;
  const number = (count) => NUMBERS[count] ?? String(count);
  const verb = (subjects, word) => (subjects.length === 1 ? `${word}s` : word);
  const by_arrival = (a, b) => a.arrives - b.arrives;
  const named = (entries) => listed(entries.map(({ name }) => name));

  // --- The run, without a page -------------------------------------------------------------------

  class QueueRun {
    constructor(model, tokenizer, requests, slots, strategy) {
      this.engine = new qwenlab.Engine(model, slots, { strategy });
      this.tokenizer = tokenizer;
      this.strategy = strategy;
      this.slots = slots;
      this.entries = []; // those that have been sent, in order of arrival
      this.coming = [...requests].sort(by_arrival);
      this.frames = [];
      this.passes = 0; // how often the model has been called
    }

    // Sends a request now: the next step may admit it.
    send({ name, text }) {
      this.coming.push({ name, text, arrives: this.frames.length });
      this.coming.sort(by_arrival); // behind those sent before the same step
    }

    // Hands the engine what has arrived. If it has nothing else to do, the next one comes at once.
    submit_arrived() {
      while (this.coming.length > 0) {
        if (this.coming[0].arrives > this.frames.length && this.engine.has_unfinished()) {
          return;
        }
        const asked = this.coming.shift();
        const prompt = this.tokenizer.chat([{ role: "user", content: asked.text }]);
        const request = this.engine.submit(prompt, { max_new_tokens: MOST });
        this.entries.push({ ...asked, request, slot: null, joined: null, ended: null });
      }
    }

    step() {
      this.submit_arrived();
      if (!this.engine.has_unfinished()) {
        return null;
      }
      this.engine.step();
      const { plan } = this.engine;
      const step = this.frames.length;
      const slots = this.place(plan.slot_kinds());
      const joined = plan.prefill.map(({ request }) => this.entries[request.index]);
      joined.forEach((entry) => {
        entry.joined ??= step;
      });
      const running = this.entries.filter((entry) => entry.ended === null);
      const ended = running.filter(({ request }) => request.finish_reason !== null);
      ended.forEach((entry) => {
        entry.ended = step;
      });
      this.passes += (plan.decode.length > 0 ? 1 : 0) + (plan.prefill.length > 0 ? 1 : 0);
      const event = joined.length + ended.length > 0;
      const frame = { step, slots, event, said: sentence(this, { slots, joined, ended }) };
      this.frames.push(frame);
      return frame;
    }

    // What each slot does, by its number. The engine moves rows together in its state when one
    // leaves; here each request stays in the slot that it took, the lowest that was free.
    place(kinds) {
      const kind_of = new Map(kinds.map(([index, kind]) => [this.entries[index], kind]));
      const present = this.entries.filter((entry) => kind_of.has(entry));
      for (const entry of this.entries) {
        if (!kind_of.has(entry)) {
          entry.slot = null;
        }
      }
      const taken = present.map(({ slot }) => slot);
      const free = range(this.slots).filter((slot) => !taken.includes(slot));
      const slots = range(this.slots).map(() => [null, "idle"]);
      for (const entry of present) {
        entry.slot ??= free.shift();
        slots[entry.slot] = [entry.name, kind_of.get(entry)];
      }
      return slots;
    }

    // Whether every request has its answer.
    is_done() {
      return this.coming.length === 0 && !this.engine.has_unfinished();
    }

    get waiting() {
      return this.entries.filter(({ joined, ended }) => joined === null && ended === null);
    }

    get counts() {
      const { step_count, kinds } = this.engine.stats;
      return { steps: step_count, passes: this.passes, ...kinds };
    }
  }

  // --- What a step did, in words -----------------------------------------------------------------

  function sentence(run, { slots, joined, ended }) {
    const said = [];
    if (joined.length > 0) {
      said.push(...about_joined(run, joined));
    }
    if (ended.length > 0) {
      said.push(about_ended(run, slots, ended));
    }
    return said.length > 0 ? said.join(" ") : about_running(run, slots);
  }

  // Who takes a slot, and whose it was.
  function about_joined({ frames, strategy, waiting }, joined) {
    const before = frames.at(-1);
    if (before !== undefined && strategy === "continuous") {
      return joined.map(({ name, slot }) => {
        const [left] = before.slots[slot];
        const why = left === null ? `Slot ${slot} was free` : `${left} stopped`;
        return `${why}, so ${name} takes slot ${slot} in this step.`;
      });
    }
    const free = before === undefined ? "" : "Every slot is free. ";
    const numbers = listed(range(joined.length));
    const slots = joined.length === 1 ? "slot 0" : `slots ${numbers}`;
    const prompts = joined.length === 1 ? "its prompt is" : "their prompts are";
    const wait = waiting.length > 0 ? `, and ${named(waiting)} ${verb(waiting, "wait")}` : "";
    return [`${free}${named(joined)} ${verb(joined, "take")} ${slots}, ${prompts} read${wait}.`];
  }

  // Whose answer is complete, and what becomes of the slot.
  function about_ended(run, slots, ended) {
    const { strategy, waiting } = run;
    const cut = ended.every(({ request }) => request.finish_reason === "length");
    const reach = ended.length === 1 ? "reaches" : "reach";
    const ends = cut ? `${reach} the limit of ${MOST} tokens` : verb(ended, "stop");
    const said = `${named(ended)} ${ends}.`;
    if (run.is_done()) {
      return `${said} ${summary(run)}`;
    }
    const going = still_going(run, slots);
    const next = waiting.slice(0, strategy === "continuous" ? ended.length : run.slots);
    if (next.length > 0 && (strategy === "continuous" || going.length === 0)) {
      return `${said} ${named(next)} ${verb(next, "come")} next.`;
    }
    const one = ended.length === 1;
    const empty = one ? "Its slot stays empty" : "Their slots stay empty";
    if (strategy === "continuous") {
      return `${said} ${empty}, because nobody waits.`;
    }
    const computed = one ? "Its row is computed on" : "Their rows are computed on";
    const until = `until ${named(going)} ${going.length === 1 ? "has" : "have"} stopped`;
    return `${said} ${strategy === "static" ? computed : empty} ${until}.`;
  }

  // Nobody comes or ends.
  function about_running(run, slots) {
    const going = still_going(run, slots);
    const { waiting } = run;
    const wasted = run.entries.filter(({ name }) => slots.some(is(name, "wasted")));
    const idle = slots.filter(([name]) => name === null).length;
    const each = going.length === 1 ? "" : ", one token each";
    const clauses = [`${named(going)} ${verb(going, "decode")}${each}`];
    if (wasted.length > 0) {
      clauses.push(`${named(wasted)} ${wasted.length === 1 ? "is" : "are"} computed in vain`);
    }
    if (idle > 0) {
      clauses.push(`${number(idle)} ${idle === 1 ? "slot is" : "slots are"} empty`);
    }
    if (waiting.length > 0) {
      clauses.push(`${named(waiting)} ${verb(waiting, "wait")}`);
    }
    return `${clauses.join("; ")}.`;
  }

  // What the whole run took.
  function summary(run) {
    const { steps, passes, wasted, idle } = run.counts;
    const answers = run.entries.length === 1 ? "The answer is" : "All answers are";
    const took = `${steps} steps, ${passes} passes of the model`;
    const spent = `${wasted} were wasted and ${idle} idle`;
    return `${answers} here after ${took}. Of ${steps * run.slots} row-steps ${spent}.`;
  }

  const is = (name, kind) => (slot) => slot[0] === name && slot[1] === kind;

  // Those in a slot whose answer goes on.
  function still_going(run, slots) {
    const names = slots.map(([name]) => name);
    return run.entries.filter(({ name, ended }) => names.includes(name) && ended === null);
  }

  // --- On the page -------------------------------------------------------------------------------

  const LETTERS = "ABCDEFGHIJ"; // as many requests as can be sent
  const MOST_SLOTS = 4;
  const PACE = 110; // milliseconds from one step to the next
  const REST = 1300; // after a step in which a request comes or ends, so that it can be read

  const NOTHING = { prefill: 0, decode: 0, wasted: 0, idle: 0 };

  const STYLE = `
.qwl-stage.qwl-queue>*{margin-bottom:4px}
.qwl-queue .qwl-controls{gap:6px 8px}
.qwl-queue .qwl-main{min-width:6.6em;padding:2px 8px}
.qwl-queue .qwl-bar-of-buttons span{padding:3px 8px}
.qwl-page .qwl-queue .qwl-player{margin:0}
.qwl-queue .qwl-place{display:none}
.qwl.qwl .qwl-queue .qwl-figure{min-height:142px;margin-bottom:2px}
.qwl-queue .qwl-requests{height:calc(25px*var(--lines))}
.qwl.qwl .qwl-queue .qwl-requests li{min-height:25px}
.qwl-last{display:flex;flex-wrap:wrap;gap:4px 16px;justify-content:space-between;
align-items:center}
.qwl-last .qwl-send{flex:1 1 20em;max-width:24em}
@media(max-width:600px){.qwl-queue .qwl-requests{height:calc(45px*var(--lines))}
.qwl.qwl .qwl-queue .qwl-sentence{min-height:4.2em}}
`;

  class QueueWidget {
    constructor(stage) {
      const { element } = qwenlab.drawing;
      const { prompts, slots = 3, strategies = STRATEGIES } = stage.options;
      this.stage = stage;
      stage.root.classList.add("qwl-queue");
      this.requests = []; // {name, text, arrives}, and their fields on the page
      this.results = new Map(); // steps by strategy, for these requests and slots
      this.run = null;

      // Its step 0 is the queue before the first step of the engine.
      const count = () => (this.run?.is_done() ? this.run.frames.length + 1 : Infinity);
      const delay = () => this.delay();
      this.player = stage.player({ count, show: (step) => this.show(step), delay, back: false });
      this.player.play_button.root.classList.add("qwl-main");
      this.again_button = stage.button("↺", () => this.restart());
      this.again_button.root.title = "Start again";
      this.again_button.root.setAttribute("aria-label", "Start again");
      const names = strategies.map((name) => [name, name]);
      this.strategy = stage.choice("Strategy", names, () => this.switched());
      this.strategy.root.firstChild.className = "qwl-words"; // its buttons say it
      const counts = range(MOST_SLOTS).map((i) => [i + 1, String(i + 1)]);
      this.slots = stage.choice("Slots", counts, () => this.edited());
      this.slots.value = slots;
      this.grid = stage.grid("What each slot does, step by step", { steps: true });
      this.grid.caption.className = "qwl-words"; // the label of its box
      this.legend = stage.legend();
      this.took = element("small", { className: "qwl-took" });
      this.list = element("ol", { className: "qwl-requests" });
      this.own = stage.field("Your own", "", null);
      this.own.input.placeholder = "17+25+3?";
      this.own.input.addEventListener("keydown", ({ key }) => key === "Enter" && this.send());
      this.send_button = stage.button("Send", () => this.send());
      const send = element("div", { className: "qwl-send" }, this.own, this.send_button);
      const last = element("div", { className: "qwl-last" }, send, this.took);
      prompts.forEach((text) => this.add_request(text, 0));
      this.list.style.setProperty("--lines", prompts.length); // more of them scroll

      const head = stage.controls(this.player, this.again_button, this.strategy, this.slots);
      stage.add(stage.sheet(STYLE), head, this.grid, this.legend, stage.sentence);
      stage.add(this.list, last);
    }

    // --- What the reader does

    add_request(text, arrives) {
      const { element } = qwenlab.drawing;
      const name = LETTERS[this.requests.length];
      const field = this.stage.field(name, text, () => this.edited());
      field.input.setAttribute("aria-label", `Prompt of request ${name}`);
      const state = element("span");
      const answer = this.stage.answer();
      this.list.append(element("li", {}, field, state, answer));
      this.requests.push({ name, arrives, field, state, answer });
      this.send_button.disable(this.requests.length === LETTERS.length);
    }

    // One more request, which arrives before the next step.
    send() {
      const text = this.own.value.trim();
      if (text === "" || this.requests.length === LETTERS.length) {
        return;
      }
      const step = this.run === null ? 0 : this.run.frames.length;
      this.add_request(text, step);
      this.own.value = "";
      this.results.clear();
      const { name } = this.requests.at(-1);
      this.run?.send({ name, text });
      this.player.settle();
      this.draw();
      this.list.scrollTop = this.list.scrollHeight;
      this.stage.say(`${name} joins the queue before step ${step}.`);
    }

    // Another prompt or number of slots is another comparison.
    edited() {
      this.results.clear();
      this.restart();
    }

    // The same requests under another strategy, at once if the reader has seen one to the end.
    switched() {
      const go_on = this.player.playing || this.run?.is_done();
      this.restart();
      if (go_on) {
        this.player.play();
      }
    }

    restart() {
      this.player.pause();
      this.player.go(0);
    }

    invitation() {
      const names = this.requests.map(({ name }) => name);
      const slots = this.slots.value === "1" ? "slot" : "slots";
      const how_many = number(Number(this.slots.value));
      return `${capital(number(names.length))} requests and ${how_many} ${slots}: press Play.`;
    }

    delay() {
      if (this.run === null) {
        return 0;
      }
      return this.run.frames.at(-1).event ? REST : PACE;
    }

    // The queue, or what the next step of the engine makes of it.
    show(step) {
      if (step === 0) {
        this.run = null;
        this.draw();
        this.stage.say(this.invitation());
        return;
      }
      this.run ??= this.new_run();
      const frame = this.run.step();
      if (this.run.is_done()) {
        this.results.set(this.strategy.value, this.run.counts.steps);
      }
      this.draw();
      this.stage.say(frame.said);
    }

    new_run() {
      const asked = this.requests.map(({ name, field, arrives }) => {
        return { name, text: field.value, arrives };
      });
      const slots = Number(this.slots.value);
      return new QueueRun(this.model, this.tokenizer, asked, slots, this.strategy.value);
    }

    // --- What is shown

    draw() {
      this.draw_slots();
      this.draw_counts();
      this.requests.forEach((line) => this.draw_request(line));
    }

    draw_slots() {
      const frames = this.run?.frames ?? [];
      const slots = Number(this.slots.value);
      const cells = range(slots).map((slot) =>
        frames.map((frame) => {
          const [name, kind] = frame.slots[slot];
          const what = name === null ? kind : `${name}, ${kind}`;
          const title = `step ${frame.step}, slot ${slot}: ${what}`;
          return qwenlab.drawing.step_cell(kind, name ?? "", { title });
        }),
      );
      const rows = range(slots).map((slot) => `slot ${slot}`);
      const columns = frames.map(({ step }) => String(step));
      this.grid.draw(cells, { rows, columns, follow: frames.length - 1 });
    }

    // How many row-steps of each kind, and what each strategy took so far.
    draw_counts() {
      const { prefill, decode, wasted, idle } = this.run?.counts ?? NOTHING;
      this.legend.draw({ prefill, decode, wasted, idle });
      const took = this.strategy.inputs.map(({ value }) => {
        return `${value} ${this.results.get(value) ?? "?"}`;
      });
      this.took.textContent = `${took.join(" · ")} steps`;
    }

    draw_request({ name, state, answer }) {
      const entry = this.run?.entries.find((sent) => sent.name === name);
      state.textContent = entry ? state_of(entry) : "waits";
      answer.draw(entry ? this.tokenizer.decode(entry.request.token_ids) : "");
    }
  }

  function state_of({ slot, joined, ended }) {
    if (joined === null) {
      return "waits";
    }
    return ended === null ? `in slot ${slot}` : `steps ${joined}–${ended}`;
  }

  qwenlab.widget("queue", async (stage) => {
    const widget = new QueueWidget(stage);
    [widget.model, widget.tokenizer] = await stage.bring();
    widget.restart();
  });
  Object.assign(qwenlab, { QueueRun });
})(globalThis.qwenlab);
