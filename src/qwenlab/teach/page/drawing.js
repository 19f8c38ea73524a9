// What the widgets of a page are drawn with: the same cells, colours and hatches as the pictures
// of qwenlab.teach (palette.py holds them), labelled controls, and one sentence that says what has
// just happened. Nothing here computes.
//
// How to add a widget "mask":
//   1. In Python, page_model("tiny").widget("mask", still=heatmap(...), height=(420, 560), a=1)
//      shows a placeholder: the still, for print and for readers without scripts, and the options
//      {a: 1} as JSON. `height`: what the widget takes on a desk and on a telephone, in pixels, so
//      that nothing below it jumps when it takes the still's place.
//   2. widget_mask.js in this folder registers itself; it is loaded when its placeholder comes
//      into view:
//        qwenlab.widget("mask", async (stage) => {
//          const side = stage.choice("Pads", [["left", "left"], ["right", "right"]], draw);
//          const grid = stage.grid("Who sees whom", {pick: (i, j) => flip(i, j)});
//          stage.add(stage.controls(side), grid, stage.sentence);
//          const [model, tokenizer] = await stage.bring();  // says that it loads, or has failed
//          function draw() { grid.draw(cells, {rows, columns}); stage.say("Now ..."); }
//          draw();
//        });
//   3. A test in tests/site opens it as a file and compares what it shows with what Python says.
//
// A stage has
//   root, options, model (its name), calm (true: the reader wants no motion)
//   add(...parts)               puts parts (elements, or what the calls below return) below another
//   sheet(css)                  a style sheet of the widget's own, with sizes in px
//   sentence, say(text, kind, lead)   the sentence; screen readers hear it (aria-live), so one per
//                               act; lead: its beginning, in bold type
//   bring()                     promises [model, tokenizer]
//   controls(...parts)          a line of controls, which wraps
//   choice(label, [[value, text], ...], change)   radio buttons in one bar; .value; .disable(yes)
//   toggle(label, checked, change), slider(label, {min, max, value}, change)     the same
//   menu(label, [[value, text], ...], change)     the same, for many
//   field(label, text, change)  one line of text, at most 200 characters; .value
//   button(text, press, main=false)               .disable(yes), .text = "..."
//   player({count, show, delay, back})            play, pause, step back, step, for a run of
//       count() steps: show(step) draws one; .go(step), .play(), .pause(), .step, .playing
//   grid(label, {pick, steps, tight})  a rectangle of cells: see Grid
//   bars(label, count)          as many bars of probabilities: see Bars
//   legend()                    .draw(counts): how many row-steps of each kind
//   answer()                    .draw(text): an answer in one line, its end in view
//   pause(milliseconds)         promises to come back; at once if the stage is calm
// A cell is {kind, text, title, said, marked, level}; kind as in heatmaps.py: t a real token, p a
// pad, a allowed, m masked, n NaN, v and g numbers with a level 0..100, f prefill, d decode, u
// wasted, i idle, o nothing. `title` is what a pointer that rests on it is told; said: what a
// screen reader reads, where that isn't the text; marked: outlined.
// qwenlab.drawing has token_cell(tokenizer, id, real), which makes one from a token,
// step_cell(kind, text, more), which makes one of a timeline, chat_cells(tokenizer, ids, real),
// which makes a line from a chat, rectangle, which pads, boxed(text), what stands in
// an answer's last box, and begun_chat(tokenizer, question, start), ids. lists.js has range, sum,
// listed and capital.

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const widgets = (qwenlab.widgets ??= new Map()); // what builds each, by name
  const stages = (qwenlab.stages ??= new Map()); // the newest of each cell of a live notebook
  const BLANK = { kind: "o", text: "" };
  const MOST_CHARACTERS = 200; // of a field
  let number = 0; // of radio groups and fields, whose names must differ within a page

  // An element with properties, and children: elements, strings, or parts with a root.
  function element(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in made) {
        made[name] = value;
      } else {
        made.setAttribute(name, value);
      }
    }
    made.append(...children.map((child) => child.root ?? child));
    return made;
  }

  // A token's text with newlines and leading spaces made visible, as heatmaps.token_text.
  function token_text(text) {
    text = text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
    const bare = text.replace(/^ +/, "");
    return "␣".repeat(text.length - bare.length) + bare;
  }

  function token_cell(tokenizer, id, real = true) {
    if (!real) {
      return { kind: "p", text: "", title: "pad", said: "pad" };
    }
    const text = token_text(tokenizer.decode([id]));
    return { kind: "t", text, title: `token ${id}`, said: spoken(text) };
  }

  // Signs of white space as words.
  function spoken(text) {
    const words = { "⏎": " new line ", "␣": " space ", "⇥": " tab " };
    return text.replaceAll(/[⏎␣⇥]/g, (sign) => words[sign]);
  }

  // The cells of one chat with its pads. The chat format's tokens are the same in every prompt, so
  // each stretch of them takes one cell, ⋯.
  function chat_cells(tokenizer, ids, real) {
    const end_id = tokenizer.control.get("<|im_end|>");
    const empty = tokenizer.chat([{ role: "user", content: "" }]);
    const before = empty.indexOf(end_id); // <|im_start|>, user and a newline
    const behind = empty.length - before;
    const cells = ids.map((id, t) => token_cell(tokenizer, id, real[t]));
    const first = real.indexOf(true);
    const folded = (count) => {
      const title = `${count} tokens of the chat format`;
      return { kind: "t", text: "⋯", title, said: title };
    };
    cells.splice(ids.indexOf(end_id, first), behind, folded(behind));
    cells.splice(first, before, folded(before));
    return cells;
  }

  // Prompts with their pads on one side, and `extra` columns of pads: ids and which of them are
  // real, both (B, T).
  function rectangle(prompts, side, pad_id, extra = 0) {
    const width = extra + Math.max(...prompts.map((ids) => ids.length));
    const with_pads = (row, value) => {
      const pads = new Array(width - row.length).fill(value);
      return side === "left" ? [...pads, ...row] : [...row, ...pads];
    };
    const input_ids = prompts.map((ids) => with_pads(ids, pad_id));
    const real = prompts.map((ids) => with_pads(ids.map(() => true), false));
    return [input_ids, real];
  }

  // --- Pictures --------------------------------------------------------------------------------

  // Rows of cells under labels. `pick(i, j)` makes each cell a button, reached by mouse, touch and
  // arrow keys. `steps`: cells as narrow as a timeline's; `tight`: as narrow as their text.
  class Grid {
    constructor(label, { pick = null, steps = false, tight = false } = {}) {
      this.pick = pick;
      this.at = [0, 0]; // the cell that Tab reaches
      this.head = element("tr");
      this.body = element("tbody");
      this.lines = []; // {line, label, cells} of each row
      const kinds = ["qwl-grid", steps && "steps", pick && "qwl-pick", tight && "qwl-tight"];
      const className = kinds.filter(Boolean).join(" ");
      this.table = element("table", { className }, element("thead", {}, this.head));
      this.table.append(this.body);
      this.box = element("div", { className: "qwl-box" }, this.table);
      if (pick) {
        this.table.setAttribute("role", "grid");
        this.table.setAttribute("aria-label", label);
        this.table.addEventListener("click", (event) => this.clicked(event));
        this.table.addEventListener("keydown", (event) => this.pressed(event));
      } else {
        this.box.tabIndex = 0; // it may scroll
        this.box.setAttribute("role", "group");
        this.box.setAttribute("aria-label", label);
      }
      this.caption = element("figcaption", {}, label);
      this.root = element("figure", { className: "qwl-figure" }, this.caption, this.box);
    }

    // cells: rows of cells, or null where nothing stands. rows, columns: their labels. about: what
    // a screen reader reads instead of each row's label. title: the caption. follow: scrolls to
    // this column. Only what has changed is touched.
    draw(cells, { rows = null, columns = null, about = [], title = null, follow = null } = {}) {
      const width = Math.max(0, ...cells.map((row) => row.length));
      if (title !== null && this.caption.textContent !== title) {
        this.caption.textContent = title;
      }
      this.head.parentElement.hidden = columns === null;
      this.draw_head(columns ?? [], rows !== null);
      while (this.lines.length > cells.length) {
        this.lines.pop().line.remove();
      }
      cells.forEach((row, i) => this.draw_line(i, row, width, rows?.[i] ?? null));
      about.forEach((words, i) => this.lines[i].label.setAttribute("aria-label", words));
      if (this.pick && cells.length > 0) {
        this.reach(Math.min(this.at[0], cells.length - 1), Math.min(this.at[1], width - 1));
      }
      if (follow !== null) {
        this.follow(follow);
      }
    }

    draw_head(columns, labelled) {
      const texts = labelled ? ["", ...columns] : columns;
      if (texts.join("\u0000") === this.shown_head) {
        return;
      }
      this.shown_head = texts.join("\u0000");
      const cells = texts.map((text) => {
        const label = { scope: "col" };
        return text === "" ? element("td", { className: "o" }) : element("th", label, text);
      });
      this.head.replaceChildren(...cells);
    }

    draw_line(i, row, width, label) {
      if (this.lines.length === i) {
        const line = element("tr");
        this.body.append(line);
        this.lines.push({ line, label: null, cells: [] });
      }
      const kept = this.lines[i];
      if (label !== null && kept.label === null) {
        kept.label = element("th", { scope: "row" });
        kept.line.prepend(kept.label);
      }
      if (label !== null && kept.label.textContent !== label) {
        kept.label.textContent = label;
      }
      while (kept.cells.length > width) {
        kept.cells.pop().remove();
      }
      for (let j = 0; j < width; j++) {
        if (kept.cells.length === j) {
          const cell = element("td", this.pick ? { tabIndex: -1, role: "gridcell" } : {});
          kept.line.append(cell);
          kept.cells.push(cell);
        }
        paint(kept.cells[j], row[j] ?? BLANK, this.pick !== null);
      }
    }

    follow(column) {
      const cell = this.lines[0]?.cells[column];
      if (cell) {
        const right = cell.offsetLeft + cell.offsetWidth + 8;
        const left = Math.max(0, right - this.box.clientWidth);
        this.box.scrollLeft = left;
      }
    }

    // Scrolls so that this column is in the middle of what is seen.
    centre(column) {
      const cell = this.lines[0]?.cells[column];
      if (cell) {
        this.box.scrollLeft = cell.offsetLeft - this.box.clientWidth / 2;
      }
    }

    // The one cell that Tab reaches.
    reach(i, j, focus = false) {
      this.lines[this.at[0]]?.cells[this.at[1]]?.setAttribute("tabindex", -1);
      this.at = [i, j];
      const cell = this.lines[i].cells[j];
      cell.tabIndex = 0;
      if (focus) {
        cell.focus();
      }
    }

    clicked(event) {
      const cell = event.target.closest("td[role=gridcell]");
      const i = this.lines.findIndex(({ cells }) => cells.includes(cell));
      if (i >= 0) {
        const j = this.lines[i].cells.indexOf(cell);
        this.reach(i, j, true);
        this.pick(i, j);
      }
    }

    pressed(event) {
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      const [i, j] = this.at;
      if (event.key in moves) {
        const down = i + moves[event.key][0];
        const right = j + moves[event.key][1];
        if (this.lines[down]?.cells[right]) {
          this.reach(down, right, true);
        }
      } else if (event.key === " " || event.key === "Enter") {
        this.pick(i, j);
      } else {
        return;
      }
      event.preventDefault();
    }
  }

  function paint(shown, cell, picked) {
    const { kind, text = "", title = "", said = text, marked = false, level = 0 } = cell;
    const look = [kind, text, title, said, marked, level].join("\u0000");
    if (shown.look === look) {
      return;
    }
    shown.look = look;
    const white = (kind === "v" && level >= 71) || (kind === "g" && level >= 93); // as ink_on
    shown.className = `${kind}${white ? " w" : ""}${marked ? " x" : ""}`;
    shown.textContent = text;
    shown.title = title;
    shown.style.setProperty("--v", level);
    if (picked) {
      // What is heard begins with what is seen, as voice control expects.
      const both = text && title && !title.includes(text) ? `${text}: ${title}` : title || text;
      shown.setAttribute("aria-label", both);
    } else if (said === text) {
      shown.removeAttribute("aria-label");
    } else {
      shown.setAttribute("aria-label", said);
    }
  }

  // Probabilities as bars, for the most probable next tokens. Always `count` lines, so that
  // nothing below moves.
  class Bars {
    constructor(label, count) {
      this.count = count;
      this.list = element("ol", { className: "qwl-bars" });
      this.caption = element("figcaption", {}, label);
      this.root = element("figure", { className: "qwl-figure" }, this.caption, this.list);
      this.draw([]);
    }

    // bars: {text, value (0 to 1, or NaN), marked, note, kind}; kind: "gone" for a token that can't
    // be drawn, "rest" for all the others together, or both; title: the caption.
    draw(bars, title = null) {
      if (title !== null) {
        this.caption.textContent = title;
      }
      const lines = [];
      for (let i = 0; i < this.count; i++) {
        const { text = "", value = 0, marked = false, note = "", kind = "" } = bars[i] ?? {};
        const bar = element("span", { className: "qwl-bar" });
        bar.style.setProperty("--share", Number.isNaN(value) ? 0 : value);
        const percent = i >= bars.length ? "" : percentage(value);
        const line = element("li", { className: `${kind}${marked ? " x" : ""}` });
        const is_token = text !== "" && !kind.startsWith("rest");
        const token = element("span", { className: is_token ? "qwl-token" : "" }, text);
        const said = element("span", { className: "qwl-percent" }, percent);
        line.append(token, element("span", { className: "qwl-track" }, bar), said);
        line.append(element("span", { className: "qwl-note" }, note));
        lines.push(line);
      }
      this.list.replaceChildren(...lines);
    }
  }

  function percentage(value) {
    if (Number.isNaN(value)) {
      return "NaN";
    }
    return value > 0 && value < 0.005 ? "< 1%" : `${Math.round(100 * value)}%`;
  }

  // The most probable next tokens of one row of logits, for Bars. `probabilities` are qwenlab.
  // softmax's.
  function most_probable_bars(tokenizer, probabilities, count) {
    const ids = Array.from(probabilities.keys());
    ids.sort((a, b) => probabilities[b] - probabilities[a]);
    return ids.slice(0, count).map((id) => {
      return { text: token_text(tokenizer.decode([id])), value: probabilities[id], id };
    });
  }

  // What a slot does in a step: the kind of its cell, and the sign before its text. And how it came
  // by a token.
  const STEP_KINDS = {
    prefill: ["f", "▸"],
    decode: ["d", ""],
    wasted: ["u", "×"],
    idle: ["i", "·"],
    read: ["f", "▸"],
    copied: ["a", "="],
    sampled: ["d", ""],
  };

  // The cell of a timeline, as in timelines.py: what a slot does in one step.
  function step_cell(kind, text, more = {}) {
    const [style, sign] = STEP_KINDS[kind];
    return { kind: style, text: sign + text, ...more };
  }

  // How many row-steps, or tokens, of each kind, below a timeline.
  class Legend {
    constructor() {
      this.root = element("div", { className: "qwl-legend" });
    }

    // counts: {prefill: 3, ...}
    draw(counts) {
      const entries = Object.entries(counts).map(([kind, count]) => {
        const [style, sign] = STEP_KINDS[kind];
        const sample = element("td", { className: style }, sign);
        const row = element("tr", {}, sample, element("th", {}, `${kind}: ${count}`));
        return element("table", { className: "qwl-grid steps", role: "presentation" }, row);
      });
      this.root.replaceChildren(...entries);
    }
  }

  // An answer in one line, whose end stays in view: the thought, then what is in the box.
  class Answer {
    constructor() {
      this.thought = element("span");
      this.boxed = element("b");
      this.root = element("span", { className: "qwl-answer" }, this.thought, this.boxed);
    }

    draw(text) {
      const [thought, boxed] = text.replaceAll(/<\/?think>/g, "").split("\\boxed");
      this.thought.textContent = thought.trim().replaceAll(/\n+/g, " ⏎ ");
      this.boxed.textContent = boxed === undefined ? "" : `→ ${boxed.replaceAll(/[{}]/g, "")}`;
      this.thought.scrollLeft = this.thought.scrollWidth;
    }
  }

  // The ids of a chat whose answer has begun with a thought, and with `start` on its first line.
  function begun_chat(tokenizer, question, start = "") {
    const chat = tokenizer.chat([{ role: "user", content: question }]);
    return [...chat, tokenizer.control.get("<think>"), ...tokenizer.encode(`\n${start}`)];
  }

  // What stands in the last \boxed{} of an answer, or null.
  function boxed(text) {
    return [...text.matchAll(/\\boxed\{([^{}]*)\}/g)].at(-1)?.[1] ?? null;
  }

  // --- Controls --------------------------------------------------------------------------------

  // What the reader does is told to `change`.
  class Control {
    constructor(label, change) {
      Object.assign(this, { label, change });
    }

    disable(yes) {
      this.input.disabled = yes;
    }

    offers() {
      return true;
    }

    // As if the reader had done it.
    move(value) {
      if (this.value !== value && this.offers(value)) {
        this.value = value;
        this.change?.(this.value);
      }
    }
  }

  class Choice extends Control {
    constructor(label, values, change) {
      super(label, change);
      const name = `qwl-choice-${++number}`;
      const settings = { type: "radio", name, autocomplete: "off" };
      this.inputs = values.map(([value], i) => {
        return element("input", { ...settings, value, checked: i === 0 });
      });
      const buttons = values.map(([, text], i) => {
        return element("label", {}, this.inputs[i], element("span", {}, text));
      });
      const bar = element("span", { className: "qwl-bar-of-buttons" }, ...buttons);
      this.root = element("fieldset", {}, element("legend", {}, label), bar);
      this.root.addEventListener("change", () => change?.(this.value));
    }

    get value() {
      return this.inputs.find((input) => input.checked).value;
    }

    set value(value) {
      this.inputs.find((input) => input.value === String(value)).checked = true;
    }

    offers(value) {
      return this.inputs.some((input) => input.value === value);
    }

    disable(yes) {
      this.root.disabled = yes;
    }
  }

  class Toggle extends Control {
    constructor(label, checked, change) {
      super(label, change);
      this.input = element("input", { type: "checkbox", checked, autocomplete: "off" });
      this.root = element("label", {}, this.input, label);
      this.input.addEventListener("change", () => change?.(this.value));
    }

    get value() {
      return this.input.checked;
    }

    set value(value) {
      this.input.checked = value;
    }
  }

  class Slider extends Control {
    constructor(label, { min = 0, max, value = min, step = 1 }, change) {
      super(label, change);
      this.input = element("input", { type: "range", min, max, step, autocomplete: "off" });
      this.output = element("output");
      this.root = element("label", {}, label, this.input, this.output);
      this.value = value;
      this.input.addEventListener("input", () => {
        this.output.textContent = this.input.value;
        change?.(this.value);
      });
    }

    get value() {
      return Number(this.input.value);
    }

    set value(value) {
      this.input.value = value;
      this.output.textContent = this.input.value;
    }
  }

  class Menu extends Control {
    constructor(label, values, change) {
      super(label, change);
      const options = values.map(([value, text]) => element("option", { value }, text));
      this.input = element("select", { autocomplete: "off" }, ...options);
      this.root = element("label", {}, label, this.input);
      this.input.addEventListener("change", () => change?.(this.value));
    }

    get value() {
      return this.input.value;
    }

    set value(value) {
      this.input.value = value;
    }

    offers(value) {
      return [...this.input.options].some((option) => option.value === value);
    }
  }

  class Field extends Control {
    constructor(label, text, change) {
      super(label, change);
      const settings = { type: "text", value: text, autocomplete: "off", spellcheck: false };
      this.input = element("input", { ...settings, maxLength: MOST_CHARACTERS });
      this.limit = element("output", { className: "qwl-limit" });
      this.root = element("label", { className: "qwl-field" }, element("span", {}, label));
      this.root.append(this.input, this.limit);
      this.input.addEventListener("input", () => {
        this.mark_limit();
        change?.(this.value);
      });
    }

    // What is typed or pasted beyond the limit is lost, so it is said.
    mark_limit() {
      const is_full = this.value.length >= MOST_CHARACTERS;
      this.limit.textContent = is_full ? `at most ${MOST_CHARACTERS} characters` : "";
    }

    get value() {
      return this.input.value;
    }

    set value(text) {
      this.input.value = text;
      this.mark_limit();
    }
  }

  class Button {
    constructor(text, press, main = false) {
      const className = main ? "qwl-button qwl-main" : "qwl-button";
      this.root = element("button", { type: "button", className }, text);
      this.root.addEventListener("click", () => {
        if (this.root.getAttribute("aria-disabled") !== "true") {
          press();
        }
      });
    }

    set text(text) {
      this.root.textContent = text;
    }

    // Not `disabled`, which would take the focus away from the one who has just pressed it.
    disable(yes) {
      this.root.setAttribute("aria-disabled", yes);
    }
  }

  // Walks through a run of count() steps, 0 being the first; Infinity while nobody knows how many.
  // `show(step)` draws one, which then stands for delay(step) milliseconds. Without `back` there is
  // no way back.
  class Player {
    constructor({ count, show, delay = () => 350, back = true }) {
      Object.assign(this, { count, show, delay });
      this.step = 0;
      this.timer = null;
      this.play_button = new Button("▶ Play", () => (this.playing ? this.pause() : this.play()));
      this.back = new Button("◀ Step back", () => this.move(-1));
      this.forward = new Button("Step ▶", () => this.move(1));
      this.back.root.hidden = !back;
      this.place = element("output", { className: "qwl-place" });
      const parts = [this.play_button, this.back, this.forward, this.place];
      const settings = { className: "qwl-controls qwl-player", role: "group" };
      this.root = element("div", { ...settings, "aria-label": "Steps" }, ...parts);
    }

    get playing() {
      return this.timer !== null;
    }

    go(step) {
      this.step = Math.max(0, Math.min(step, this.last));
      this.show(this.step);
      this.settle();
    }

    get last() {
      return Math.max(0, this.count() - 1);
    }

    // Which buttons can be pressed: once a step is drawn, it may turn out to be the last.
    settle() {
      this.back.disable(this.step === 0);
      this.forward.disable(this.step >= this.last);
      const of = this.last === Infinity ? "" : ` of ${this.last}`;
      this.place.textContent = `step ${this.step}${of}`;
    }

    move(change) {
      this.pause();
      this.go(this.step + change);
    }

    play() {
      this.pause();
      if (this.step >= this.last) {
        this.go(0);
      }
      this.play_button.text = "❚❚ Pause";
      this.wait();
    }

    wait() {
      this.timer = setTimeout(() => {
        this.go(this.step + 1);
        if (this.step >= this.last) {
          this.pause();
        } else if (this.playing) {
          this.wait();
        }
      }, this.delay(this.step));
    }

    pause() {
      clearTimeout(this.timer);
      this.timer = null;
      this.play_button.text = "▶ Play";
    }
  }

  // --- The stage -------------------------------------------------------------------------------

  class Stage {
    constructor(placeholder) {
      this.placeholder = placeholder;
      this.options = JSON.parse(placeholder.dataset.options || "{}");
      this.model = placeholder.dataset.model;
      this.calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
      this.made = []; // its controls
      this.root = element("div", { className: "qwl-stage" });
      this.sentence = element("p", { className: "qwl-sentence", role: "status" });
      this.listen(true);
      // While somebody types, the sentence is not read out at every key.
      this.root.addEventListener("input", ({ target }) => this.listen(target.type !== "text"));
      this.root.addEventListener("change", () => this.listen(true));
    }

    listen(yes) {
      this.sentence.setAttribute("aria-live", yes ? "polite" : "off");
    }

    // Like palette.scaled: sizes grow with the letters of the page around them, thin lines don't.
    sheet(css) {
      const sizes = /@media[^{]*|(?<![\w.-])([4-9]|\d\d+)px/g;
      const scaled = (found, size) => (size ? `calc(${size}*var(--qwl-px))` : found);
      return element("style", {}, css.replace(sizes, scaled));
    }

    add(...parts) {
      this.root.append(...parts.map((part) => part.root ?? part));
    }

    say(text, kind = "", lead = "") {
      if (this.sentence.textContent !== lead + text) {
        this.sentence.replaceChildren(...(lead === "" ? [] : [element("b", {}, lead)]), text);
      }
      this.sentence.dataset.kind = kind; // "good", "bad", "failed" or nothing
    }

    async bring(name = this.model) {
      if (!qwenlab.generate || !qwenlab.packed?.[name]) {
        this.say("The model is being loaded into this page…");
      }
      try {
        return await qwenlab.bring(name);
      } catch (error) {
        this.say(`The model can't be loaded: ${error.message}`, "failed");
        throw error;
      }
    }

    controls(...parts) {
      return element("div", { className: "qwl-controls" }, ...parts);
    }

    control(made) {
      this.made.push(made);
      return made;
    }

    choice(label, values, change) {
      return this.control(new Choice(label, values, change));
    }

    toggle(label, checked, change) {
      return this.control(new Toggle(label, checked, change));
    }

    slider(label, range, change) {
      return this.control(new Slider(label, range, change));
    }

    menu(label, values, change) {
      return this.control(new Menu(label, values, change));
    }

    field(label, text, change) {
      return this.control(new Field(label, text, change));
    }

    // Once it is built: its controls go where the reader left those of an earlier stage, one by
    // one in the order in which they were made. One that begins elsewhere now, because its cell was
    // edited, stays there.
    take_over(earlier) {
      for (const control of this.made) {
        control.first = control.value;
      }
      this.made.forEach((control, i) => {
        const before = earlier?.made[i];
        if (before?.label === control.label && before.first === control.first) {
          control.move(before.value);
        }
      });
    }

    button(text, press, main = false) {
      return new Button(text, press, main);
    }

    player(run) {
      return new Player(run);
    }

    grid(label, how) {
      return new Grid(label, how);
    }

    bars(label, count) {
      return new Bars(label, count);
    }

    legend() {
      return new Legend();
    }

    answer() {
      return new Answer();
    }

    pause(milliseconds) {
      return new Promise((resolve) => setTimeout(resolve, this.calm ? 0 : milliseconds));
    }
  }

  // Registers what builds a widget.
  function widget(name, build) {
    widgets.set(name, build);
  }

  // Puts the widget in the place of the placeholder's still.
  async function mount(placeholder) {
    const build = widgets.get(placeholder.dataset.widget);
    const stage = new Stage(placeholder);
    placeholder.append(stage.root);
    placeholder.dataset.state = "loading";
    stage.root.inert = true; // nothing can be pressed before the model is there
    try {
      await build(stage);
      const { place } = placeholder.dataset; // nothing on the site, where no cell runs again
      if (place) {
        stage.take_over(stages.get(place));
        stages.set(place, stage);
      }
      placeholder.dataset.state = "ready";
    } catch (error) {
      placeholder.dataset.state = "failed";
      if (stage.sentence.dataset.kind !== "failed") {
        stage.say(`This can't be shown: ${error.message}`, "failed");
      }
      stage.root.append(stage.sentence);
      console.error(error);
    }
    stage.root.inert = false;
  }

  const drawing = { element, token_text, token_cell, step_cell, chat_cells, rectangle };
  Object.assign(drawing, { most_probable_bars, boxed, begun_chat });
  Object.assign(qwenlab, { widget, mount, drawing });
})(globalThis.qwenlab);
