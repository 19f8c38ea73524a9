// Four prompts in one batch: the rectangle that the model gets, pads on either side, hidden or
// seen, and the answers as they are generated, correct or not. Once they have run, another setting
// runs them again, and what each setting gave stays in a list until a prompt changes.
//
// Options: prompts (texts), side and pads ("left" or "right", "hidden" or "seen": what is chosen at
// first), max_new_tokens.

(function (qwenlab) {
  "use strict";

  const { element, token_cell, chat_cells, rectangle, boxed } = qwenlab.drawing;
  const PACE = 110; // milliseconds a step
  const CAPTION = "What the model gets → what it generates";
  // A column is as wide as its widest cell, so tokens with long names are shown by a sign.
  const SIGNS = {
    "<think>": ["‹", "starts to think"],
    "</think>": ["›", "has thought"],
    "\\boxed": ["□", "box"],
  };
  const START = "Press Run, or Enter in a prompt.";

  // --- What is computed ------------------------------------------------------------------------

  // Greedy generation for a rectangle, as a plain loop does it: the next token of every row is
  // read off the last column. One pass of the model yields one id a row. `hidden`: no query sees a
  // pad; else the pads are tokens like others.
  function* generate_together(model, input_ids, real, hidden) {
    const state = model.new_state(input_ids.length);
    let logits;
    if (hidden) {
      const options = {
        attention_mask: qwenlab.combined_mask(real),
        position_ids: qwenlab.position_ids(real),
      };
      logits = model.forward(input_ids, options).map((row) => row.at(-1));
      model.forward(input_ids, { attention_mask: real, state, last_only: true }); // fills the state
    } else {
      logits = model.forward(input_ids, { state, last_only: true });
    }
    for (;;) {
      const ids = logits.map(qwenlab.argmax);
      yield ids;
      logits = model.forward(ids.map((id) => [id]), { state, last_only: true });
    }
  }

  // A prompt's answer at batch size 1, and how many passes of the model it takes.
  function answer_alone(model, prompt, max_new_tokens) {
    const [{ token_ids, logprobs }] = qwenlab.generate(model, [prompt], { max_new_tokens }).outputs;
    return [token_ids, logprobs.length];
  }

  // The value of a question such as "What is 31+12-5?", or null for any other.
  function value_of(question) {
    const asked = question.replace(/^\s*(what is|compute|calculate)\s/i, "");
    const bare = asked.replace(/[=?.\s]+$/, "").replaceAll(" ", "");
    const plain = bare.replaceAll("×", "*").replaceAll("−", "-");
    if (!/^\d+([+*-]\d+)+$/.test(plain)) {
      return null;
    }
    const terms = plain.replaceAll("-", "+-").split("+");
    const products = terms.map((term) => term.split("*").reduce((a, b) => a * Number(b), 1));
    return String(qwenlab.sum(products));
  }

  // --- The widget ------------------------------------------------------------------------------

  qwenlab.widget("batch", async (stage) => {
    const { prompts, side = "right", pads = "hidden", max_new_tokens = 60 } = stage.options;
    const fields = prompts.map((text, i) => stage.field(`${i + 1}`, text, edited));
    const verdicts = prompts.map(() => element("span", { className: "qwl-verdict" }));
    fields.forEach(({ input }, i) => {
      input.setAttribute("aria-label", `Prompt ${i + 1}`);
      input.setAttribute("enterkeyhint", "go");
    });
    const lines = fields.map((field, i) => {
      return element("div", { className: "qwl-asked" }, field, verdicts[i]);
    });
    const sides = [["right", "right"], ["left", "left"]];
    const side_choice = stage.choice("Pads", sides, switched);
    const seen_choice = stage.choice("", [["hidden", "hidden"], ["seen", "seen"]], switched);
    const ways = [["together", "all together"], ["alone", "one by one"]];
    const way_choice = stage.choice("", ways, switched);
    const button = stage.button("Run", run, true);
    const grid = stage.grid(CAPTION, { tight: true });
    const counts = element("p", { className: "qwl-counts" });
    const list = element("ul", { className: "qwl-tried", "aria-label": "What you have tried" });
    side_choice.value = side;
    seen_choice.value = pads;
    seen_choice.root.setAttribute("aria-label", "Pads hidden or seen");
    side_choice.root.setAttribute("aria-label", "Side of the pads");
    way_choice.root.setAttribute("aria-label", "Together or one by one");
    const controls = stage.controls(side_choice, seen_choice, way_choice, button);
    const asked = element("div", { className: "qwl-four" }, ...lines);
    asked.addEventListener("keydown", (event) => event.key === "Enter" && run());
    stage.add(asked, controls, grid, counts, stage.sentence, list);

    let turn = 0; // a later act ends an earlier run
    let has_run = false; // these prompts, under whatever setting
    const tried = new Map(); // how many answers were correct, by setting
    let tried_with = ""; // the prompts that they were tried with
    let rows = []; // what is drawn: {prompt: cells, answer: ids, stopped, alone}
    const [model, tokenizer] = await stage.bring();
    prepare();

    // Ids of each prompt, or null after saying what is missing.
    function read() {
      const empty = fields.findIndex(({ value }) => value.trim() === "");
      fields.forEach(({ input }, i) => input.setAttribute("aria-invalid", String(i === empty)));
      if (empty >= 0) {
        stage.say(`Prompt ${empty + 1} is empty: write a question into it.`);
        return null;
      }
      return fields.map(({ value }) => tokenizer.chat([{ role: "user", content: value }]));
    }

    function setting() {
      const pads = `${side_choice.value}, ${seen_choice.value}`;
      return way_choice.value === "together" ? pads : "one by one";
    }

    // What earlier runs with these prompts gave. The newest is framed.
    function draw_tried(newest = null) {
      const texts = fields.map(({ value }) => value).join("\n");
      if (texts !== tried_with) {
        tried.clear();
        tried_with = texts;
      }
      const lines = [...tried].map(([name, gave]) => {
        const line = element("li", {}, `${name}: ${gave}`);
        if (name === newest) {
          line.setAttribute("aria-current", "true");
        }
        return line;
      });
      const words = known() ? "Correct answers so far, by pads:" : "As alone so far, by pads:";
      const head = tried.size === 0 ? "Each setting that you try is noted here." : words;
      list.replaceChildren(element("li", {}, head), ...lines);
    }

    // Whether the widget knows the answer to every prompt.
    function known() {
      return fields.every(({ value }) => value_of(value) !== null);
    }

    function edited() {
      has_run = false;
      prepare();
    }

    // Another setting: at once, if the reader has run these prompts already.
    function switched() {
      if (has_run) {
        run();
      } else {
        prepare();
      }
    }

    // The rectangle before anything is generated.
    function prepare() {
      turn++;
      const together = way_choice.value === "together";
      side_choice.disable(!together);
      seen_choice.disable(!together);
      verdicts.forEach((verdict) => show_verdict(verdict, "", ""));
      draw_tried();
      const ids = read();
      if (ids === null) {
        return null;
      }
      const [input_ids, real] = together
        ? rectangle(ids, side_choice.value, tokenizer.pad_id)
        : [ids, ids.map((row) => row.map(() => true))];
      rows = input_ids.map((row, b) => {
        const prompt = chat_cells(tokenizer, row, real[b]).map(as_read);
        return { prompt, answer: [], stopped: false, alone: null };
      });
      draw();
      const padded = real.flat().filter((yes) => !yes).length;
      count(0, 0, padded);
      stage.say(before(together, padded));
      return { ids, input_ids, real, together, padded };
    }

    // A pad that the model reads is a token like any other.
    function as_read(cell) {
      if (cell.kind !== "p" || seen_choice.value === "hidden") {
        return cell;
      }
      const title = "a pad, read like any other token";
      return { kind: "t", text: "∅", title, said: "pad, seen" };
    }

    function before(together, padded) {
      if (!together) {
        return `Each prompt gets a batch of its own, so nothing is padded. ${START}`;
      }
      const where = `${padded} pads on the ${side_choice.value}`;
      const how = seen_choice.value === "hidden" ? "hidden from every token" : "read as text";
      const from = "Each answer goes on from its outlined cell";
      return `One rectangle: ${where}, ${how}. ${from}. ${START}`;
    }

    function draw(newest = null) {
      const longest = Math.max(...rows.map(({ answer }) => answer.length));
      const width = Math.max(...rows.map(({ prompt }) => prompt.length));
      const cells = rows.map(({ prompt, answer, alone, stopped }) => {
        const line = [...Array(width - prompt.length).fill(null), ...prompt];
        if (longest === 0) {
          line[width - 1] = { ...line[width - 1], marked: true };
        }
        line.push({ kind: "o", text: "→" });
        answer.forEach((id, t) => {
          const over = stopped !== false && t > stopped;
          const marked = over ? false : alone === null ? t === newest : id !== alone[t];
          line.push({ ...generated_cell(id, !over), marked });
        });
        return line;
      });
      const follow = newest === null ? null : width + 1 + newest;
      const differs = cells.flat().some((cell) => cell?.marked);
      const told = rows[0].alone === null ? "new" : differs ? "differs from alone" : null;
      const outlined = longest === 0 ? null : told; // before a run the sentence says it
      const title = `${CAPTION}${outlined === null ? "" : ` (outlined: ${outlined})`}`;
      const about = rows.map(({ prompt, answer }, b) => {
        const pads = prompt.filter(({ kind }) => kind === "p").length;
        const text = answer.length === 0 ? "nothing yet" : tokenizer.decode(ours(rows[b]));
        const padded = `${fields[b].value} with ${pads} ${pads === 1 ? "pad" : "pads"}`;
        return `Row ${b + 1}: ${padded}. Generated: ${text}`;
      });
      grid.draw(cells, { rows: rows.map((_, b) => `${b + 1}`), about, title, follow });
    }

    // What a row has generated, without its stop id.
    function ours({ answer, stopped }) {
      return stopped === false ? answer : answer.slice(0, stopped);
    }

    function generated_cell(id, real) {
      const cell = token_cell(tokenizer, id, real);
      if (!real) {
        return { ...cell, title: "pad: this answer is finished, the others are not" };
      }
      if (model.stop_ids.has(id)) {
        return { ...cell, text: "■", title: `stop: ${cell.text}`, said: "stop" };
      }
      const [sign, said] = SIGNS[cell.text] ?? [];
      return sign ? { ...cell, text: sign, title: cell.text, said } : cell;
    }

    function count(steps, passes, padded) {
      const tokens = qwenlab.sum(rows.map(useful));
      const words = [`Step ${steps}`, `${passes} ${passes === 1 ? "pass" : "passes"} of the model`];
      words.push(`${tokens} tokens generated`, `${padded} pads in the prompts`);
      counts.textContent = words.join(" · ");
    }

    function useful({ answer, stopped }) {
      return stopped === false ? answer.length : stopped + 1;
    }

    // Adds one id to a row. The stop id ends it; what comes after it in a batch is a pad.
    function take(row, id) {
      row.answer.push(row.stopped === false ? id : tokenizer.pad_id);
      if (row.stopped === false && model.stop_ids.has(id)) {
        row.stopped = row.answer.length - 1;
      }
    }

    async function run() {
      const given = prepare();
      if (given === null) {
        fields.find(({ value }) => value.trim() === "").input.focus();
        return;
      }
      const mine = turn;
      has_run = true;
      stage.root.scrollIntoView({ block: "nearest" });
      stage.say("The model is generating…");
      const groups = given.together ? [rows] : rows.map((row) => [row]);
      let passes = 0;
      for (const [g, group] of groups.entries()) {
        const input_ids = given.together ? given.input_ids : [given.ids[g]];
        const real = given.together ? given.real : [given.real[g]];
        const hidden = !given.together || seen_choice.value === "hidden";
        const steps = generate_together(model, input_ids, real, hidden);
        for (let step = 0; step < max_new_tokens; step++) {
          const ids = steps.next().value;
          group.forEach((row, b) => take(row, ids[b]));
          passes++;
          if (!stage.calm) {
            draw(step);
          }
          count(step + 1, passes, given.padded);
          await stage.pause(given.together ? PACE : PACE / 2);
          if (turn !== mine) {
            return;
          }
          if (group.every(({ stopped }) => stopped !== false)) {
            break;
          }
        }
      }
      finish(given, passes);
    }

    function finish(given, passes) {
      const padded_rows = [];
      const changed = []; // other answers than alone
      const reworded = []; // the same answers in other words
      let right = 0;
      let passes_alone = 0;
      rows.forEach((row, b) => {
        const [alone, most] = answer_alone(model, given.ids[b], max_new_tokens);
        const ids = ours(row);
        row.alone = row.stopped === false ? alone : [...alone, row.answer[row.stopped]];
        passes_alone += most;
        const same = ids.join() === alone.join();
        const said = boxed(tokenizer.decode(ids));
        const lone = boxed(tokenizer.decode(alone));
        const truth = value_of(fields[b].value);
        right += truth !== null && said === truth ? 1 : 0;
        if (!same) {
          (said === lone && said !== null ? reworded : changed).push(b + 1);
        }
        if (!given.real[b].every(Boolean)) {
          padded_rows.push(b + 1);
        }
        const [text, kind] = verdict_of(said, lone, truth, same);
        show_verdict(verdicts[b], text, kind);
      });
      draw();
      grid.centre(Math.max(...rows.map(({ prompt }) => prompt.length)));
      const as_alone = rows.length - changed.length - reworded.length;
      const lead = known()
        ? `${right} of ${rows.length} answers ${right === 1 ? "is" : "are"} correct`
        : `${as_alone} of ${rows.length} answers ${as_alone === 1 ? "is" : "are"} as alone`;
      tried.set(setting(), `${known() ? right : as_alone} of ${rows.length}`);
      draw_tried(setting());
      const told = after(given, passes, passes_alone, padded_rows, not_alone(changed, reworded));
      stage.say(told, as_alone < rows.length ? "bad" : "good", lead);
      stage.root.scrollIntoView({ block: "nearest" });
    }

    // Goes on from the headline, which has no full stop.
    function after({ together }, passes, passes_alone, padded_rows, differing) {
      if (!together) {
        return `. There are no pads, but it takes ${passes} passes, one for each token.`;
      }
      const instead = `${passes} passes of the model instead of ${passes_alone}`;
      if (padded_rows.length === 0) {
        return `. All prompts have the same length, so nothing is padded: ${instead}.`;
      }
      const is_left = side_choice.value === "left";
      const is_hidden = seen_choice.value === "hidden";
      if (is_left && is_hidden && differing === "") {
        const why = "Every row ends in its own last token, and no token sees a pad";
        return `. ${why}, so each prompt gets the answer that it gets alone, in ${instead}.`;
      }
      const differ = differing === "" ? ", but by luck" : `: ${differing}`;
      if (is_hidden) {
        const why = "The pads are hidden, but each short row ends in a pad";
        const then = "and the model goes on from that pad instead of from the question";
        return `${differ}. ${why}, ${then}. Now put the pads on the left.`;
      }
      const where = is_left ? "in front of" : "behind";
      const cure = is_left ? "Hide them" : "Put them on the left and hide them";
      return `${differ}. The model read the pads as text ${where} the question. ${cure}.`;
    }
  });

  // Whose answers are not those that the prompts get alone; "" if all are.
  function not_alone(changed, reworded) {
    const said = [];
    if (changed.length > 0) {
      const others = changed.length === 1 ? "another answer" : "other answers";
      said.push(`${get(changed)} ${others} alone`);
    }
    if (reworded.length > 0) {
      said.push(`${get(reworded)} the same alone, but in other words`);
    }
    return said.join("; ");
  }

  function get(numbers) {
    const names = qwenlab.listed(numbers);
    return numbers.length === 1 ? `prompt ${names} gets` : `prompts ${names} get`;
  }

  function verdict_of(said, lone, truth, same) {
    const shown = said || "no answer"; // a box may be empty
    const beside = same ? "same as alone" : `alone: ${lone || "no answer"}`;
    if (truth === null) {
      return [`${shown} (${beside})`, same ? "" : "bad"];
    }
    if (said === truth) {
      return [`${shown} ✓ correct`, "good"];
    }
    return [`${shown} ✗ (${beside})`, "bad"];
  }

  function show_verdict(verdict, text, kind) {
    verdict.textContent = text;
    verdict.dataset.kind = kind;
  }
})(globalThis.qwenlab);
