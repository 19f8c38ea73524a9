// Two prompts in one rectangle, pads on the left or on the right: which token does the model read
// on from, and what does it generate next?
//
// Options: prompts ([question, start of the answer] each), side (what is chosen at first).

(function (qwenlab) {
  "use strict";

  const { element, chat_cells, rectangle, most_probable_bars } = qwenlab.drawing;
  const SHOWN = 3; // bars a row

  qwenlab.widget("sides", async (stage) => {
    const { prompts, side = "right" } = stage.options;
    const rows = prompts.map(([question, begun], i) => {
      const asked = stage.field(`${i + 1}`, question, update);
      const start = stage.field("answer so far", begun, update);
      asked.input.setAttribute("aria-label", `Question ${i + 1}`);
      start.input.setAttribute("aria-label", `Start of answer ${i + 1}`);
      const bars = stage.bars(`Row ${i + 1} goes on with`, SHOWN);
      return { asked, start, bars, line: element("div", { className: "qwl-asked" }, asked, start) };
    });
    const sides = [["right", "right"], ["left", "left"]];
    const side_choice = stage.choice("Pads", sides, update);
    const more = stage.slider("extra pads", { max: 12 }, update);
    const grid = stage.grid("What the model gets", { tight: true });
    side_choice.value = side;
    const bars = element("div", { className: "qwl-four" }, ...rows.map((row) => row.bars));
    stage.add(...rows.map(({ line }) => line), stage.controls(side_choice, more));
    stage.add(grid, bars, stage.sentence);
    const [model, tokenizer] = await stage.bring();
    update();

    function update() {
      const ids = rows.map(({ asked, start }) => {
        return qwenlab.drawing.begun_chat(tokenizer, asked.value, start.value);
      });
      const [input_ids, real] = rectangle(ids, side_choice.value, tokenizer.pad_id, more.value);
      const options = {
        attention_mask: qwenlab.combined_mask(real), // pads are hidden from every token
        position_ids: qwenlab.position_ids(real),
      };
      const logits = model.forward(input_ids, options).map((row) => row.at(-1));
      const alone = ids.map((row) => model.forward([row], { last_only: true })[0]);
      draw_grid(input_ids, real);
      const said = rows.map(({ bars }, b) => draw_bars(bars, b, logits[b], alone[b]));
      say(said, real);
    }

    function draw_grid(input_ids, real) {
      const cells = input_ids.map((row, b) => {
        const line = chat_cells(tokenizer, row, real[b]);
        line[line.length - 1] = { ...line.at(-1), marked: true };
        return line;
      });
      const title = "What the model gets (outlined: the cell it reads on from)";
      const follow = cells[0].length - 1;
      grid.draw(cells, { rows: rows.map((_, b) => `${b + 1}`), title, follow });
    }

    // Returns the most probable token in the batch and alone.
    function draw_bars(bars, b, logits, alone) {
      const [truth] = most_probable_bars(tokenizer, qwenlab.softmax(alone), 1);
      const found = most_probable_bars(tokenizer, qwenlab.softmax(logits), SHOWN);
      const noted = found.map((bar) => {
        return { ...bar, note: bar.id === truth.id ? "alone" : "", marked: bar.id === truth.id };
      });
      bars.draw(noted, `Row ${b + 1} goes on with (alone: ${truth.text})`);
      return { said: found[0].text, truth: truth.text };
    }

    function say(said, real) {
      const wrong = said.map((_, b) => b).filter((b) => said[b].said !== said[b].truth);
      const at_pad = real.map((_, b) => b).filter((b) => !real[b].at(-1));
      if (wrong.length > 0) {
        const [b] = wrong;
        const told = `Row ${b + 1} goes on with ${said[b].said}; alone, with ${said[b].truth}`;
        stage.say(`${told}. Its last cell is a pad, and that is where the model reads on.`, "bad");
      } else if (at_pad.length > 0) {
        const told = "Both rows go on as alone, by luck";
        stage.say(`${told}: the model reads on from a pad in row ${at_pad[0] + 1}.`, "");
      } else {
        const told = "Both rows go on as alone";
        stage.say(`${told}: each ends in its own last token, whatever stands in front.`, "good");
      }
    }
  });
})(globalThis.qwenlab);
