// Batched generation, as in src/qwenlab/engine: padding and masks, requests, the scheduler, which
// plans a step without a tensor, the runner, which executes the plan, and the engine. On the same
// arrivals the scheduler makes the same plans as the one in Python.
//
// What a widget calls:
//   qwenlab.left_pad(sequences, pad_id) -> [input_ids, attention_mask], B arrays of T each
//   qwenlab.right_pad(sequences, pad_id) -> input_ids
//   qwenlab.position_ids(attention_mask) -> B arrays of T; 0 at pads
//   qwenlab.causal_mask(queries, keys) -> Q arrays of K booleans
//   qwenlab.combined_mask(attention_mask, queries=null) -> (B, 1, Q, K), for model.forward
//   qwenlab.generate(model, prompts, options) -> {outputs, stats}
//       Runs to the end; outputs[i * n + k] is sample k of prompt i. Options: n, strategy
//       ("continuous", "early-stop", "static", "sequential"), slots, shared_prefix (null: n samples
//       share their prompt; true: all prompts their beginning too; false: none), and those of one
//       request, one value each or an array with one per prompt: max_new_tokens, temperature,
//       top_k, top_p, repetition_penalty, seed; stop: an array of ids for all, null = the model's.
//   const engine = new qwenlab.Engine(model, slots, {strategy, token_budget, chunk})
//       engine.submit(prompt, options) -> request    (options of one request, as above)
//       engine.add_request(request)                  queues one that was made elsewhere
//       engine.step() -> the requests that it changed, perhaps none; engine.plan is what it did
//       engine.has_unfinished(), engine.cancel(request), engine.run()
//       engine.stats: step_count, sampled_tokens, prefill_tokens, padded_tokens, preempted,
//       plans, steps (plan.slot_kinds() of each), kinds {prefill, decode, wasted, idle}: slots
//       times steps, by use
//   qwenlab.make_requests(model, prompts, n, options) -> requests, n for each prompt
//   qwenlab.share(requests, n)    lets the n requests of each prompt read it once
//   request: index, prompt, token_ids (without the stop id), logprobs, stop_id, finish_reason
//       (null, "stop", "length", "cancelled" or "error", which `error` explains), status
//       ("waiting", "prefill", "decode", "finished"), slot (null while it has none),
//       num_computed_tokens, first_token_s, seconds
//   plan: slots, moves [{source, target}], resets [slot], copies [{prefix, slot}], drops [prefix],
//       decode [{request, slot}], prefill [{request, slot, start, end}], saves [{slot, prefix}],
//       sampled [request], held_back [{request, slot}], wasted (Set of slots), preempted [request];
//       slot_kinds(): for each slot [request's index or null,
//       "prefill", "decode", "wasted" or "idle"]
// For a page that stays responsive call step() from requestAnimationFrame, not run().
// Wrong input throws an Error with one line.

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const { range, sum } = qwenlab;
  const now = () => performance.now() / 1000; // in seconds

  // --- padding.py and masks.py -----------------------------------------------------------------

  // Pads on the left, so that every row ends at the same column. The mask comes from the lengths,
  // never from the ids: a prompt may legitimately contain `pad_id`.
  function left_pad(sequences, pad_id) {
    const lengths = sequences.map((ids) => ids.length);
    if (lengths.length === 0 || lengths.includes(0)) {
      throw new Error("there is no prompt to pad, or an empty one");
    }
    const width = Math.max(...lengths);
    const pads = lengths.map((length) => new Array(width - length).fill(pad_id));
    const input_ids = sequences.map((ids, b) => [...pads[b], ...ids]);
    const attention_mask = pads.map((row) => range(width).map((t) => t >= row.length));
    return [input_ids, attention_mask];
  }

  // Each real token's position in its own row, from 0; 0 at pads.
  function position_ids(attention_mask) {
    return attention_mask.map((row) => {
      let next = 0;
      return row.map((real) => (real ? next++ : 0));
    });
  }

  // (Q, K), true = may attend, bottom-right aligned: the last query sees all keys.
  function causal_mask(queries, keys) {
    return range(queries).map((q) => range(keys).map((k) => k <= q + keys - queries));
  }

  // (B, 1, Q, K): a query sees the real keys up to its own position. The row of a left pad is all
  // false.
  function combined_mask(attention_mask, queries = null) {
    const keys = attention_mask[0].length;
    const causal = causal_mask(queries ?? keys, keys);
    const both = (real) => causal.map((row) => row.map((sees, k) => sees && Boolean(real[k])));
    return attention_mask.map((real) => [both(real)]);
  }

  // --- request.py ------------------------------------------------------------------------------

  const DEFAULTS = {
    max_new_tokens: 256,
    stop: null, // the model's own
    temperature: 0,
    top_k: 0,
    top_p: 1,
    repetition_penalty: 1,
    seed: 0,
  };
  const RANGES = {
    max_new_tokens: ["a whole number of at least 0", (x) => Number.isInteger(x) && x >= 0],
    temperature: ["0 or more", (x) => x >= 0],
    top_k: ["a whole number of at least 0", (x) => Number.isInteger(x) && x >= 0],
    top_p: ["0 to 1", (x) => x >= 0 && x <= 1],
    repetition_penalty: ["a number above 0", (x) => x > 0],
    seed: ["a whole number of at least 0", (x) => Number.isSafeInteger(x) && x >= 0],
  };

  // What a caller asks for, for one prompt: checked, and completed with the defaults.
  function sampling_params(options) {
    for (const [name, value] of Object.entries(options)) {
      if (!(name in DEFAULTS)) {
        throw new Error(`unknown option ${name}, expected ${Object.keys(DEFAULTS).join(", ")}`);
      }
      const [expected, fits] = RANGES[name] ?? ["", () => true];
      if (!fits(value) || value === Infinity) {
        throw new Error(`${name} is ${value}, expected ${expected}`);
      }
    }
    return { ...DEFAULTS, ...options };
  }

  // A prompt on its way, and its output so far.
  class Request {
    constructor(index, prompt, own = {}) {
      this.index = index;
      this.prompt = prompt;
      this.token_ids = [];
      this.logprobs = []; // one per sampled token, the stop id's last
      this.stop_id = null;
      this.finish_reason = null;
      this.first_token_s = null;
      this.seconds = null;
      this.error = null;
      this.params = sampling_params({});
      this.max_tokens = 256; // most tokens to sample, so that the whole stays within the limit
      this.stop_ids = new Set();
      this.rng_key = [0, 0, 0]; // seed, request, sample: see `uniform` in sampling.js
      // These belong to the scheduler, as does the output.
      this.arrival = 0; // its number in the order of arrival
      this.arrival_s = 0;
      this.slot = null;
      this.num_computed_tokens = 0; // how many of its tokens the slot holds
      this.decoding = false; // the slot holds all of them, so it gets a token per step
      this.prefixes = []; // longest first
      Object.assign(this, own);
    }

    // Tokens of the prompt and of the answer so far.
    get num_tokens() {
      return this.prompt.length + this.token_ids.length;
    }

    get status() {
      if (this.finish_reason !== null) {
        return "finished";
      }
      if (this.slot === null) {
        return "waiting";
      }
      return this.decoding ? "decode" : "prefill";
    }
  }

  // A request whose prompt and answer stay within the model's context, and within token_budget.
  function new_request(model, prompt, params, token_budget = null, index = 0) {
    const { vocab_size, max_position_embeddings } = model.config;
    if (!Array.isArray(prompt) || prompt.length === 0) {
      throw new Error(`prompt ${index} is empty or no array, expected at least 1 token id`);
    }
    const wrong = prompt.find((id) => !Number.isInteger(id) || id < 0 || id >= vocab_size);
    if (wrong !== undefined) {
      const known = `0 to ${vocab_size - 1}`;
      throw new Error(`prompt ${index}: token id ${wrong} is outside the vocabulary (${known})`);
    }
    const limit = Math.min(max_position_embeddings, token_budget ?? Infinity);
    const room = limit - prompt.length;
    if (room < Math.min(1, params.max_new_tokens)) {
      const what = `prompt ${index} has ${prompt.length} tokens`;
      throw new Error(`${what}: no room for a new one in a context of ${limit}`);
    }
    return new Request(index, prompt, {
      params,
      max_tokens: Math.min(params.max_new_tokens, room),
      stop_ids: params.stop === null ? model.stop_ids : new Set(params.stop),
    });
  }

  // Request i * n + k is sample k of prompt i. One seed s gives it the stream [s, i, k], an array
  // of seeds [seeds[i], 0, k].
  function make_requests(model, prompts, n, options) {
    const requests = [];
    prompts.forEach((prompt, i) => {
      const own = {};
      for (const [name, value] of Object.entries(options)) {
        const listed = Array.isArray(value) && name !== "stop";
        if (listed && value.length !== prompts.length) {
          throw new Error(`${name} has ${value.length} values for ${prompts.length} prompts`);
        }
        own[name] = listed ? value[i] : value;
      }
      const params = sampling_params(own);
      for (let k = 0; k < n; k++) {
        const request = new_request(model, prompt, params, null, i);
        request.index = i * n + k;
        request.rng_key = [params.seed, Array.isArray(options.seed) ? 0 : i, k];
        requests.push(request);
      }
    });
    return requests;
  }

  // --- prefix.py -------------------------------------------------------------------------------

  // The first `length` tokens of some prompts. `users` are the requests that still need them.
  class Prefix {
    constructor(length, users) {
      this.length = length;
      this.users = new Set(users);
      for (const request of users) {
        request.prefixes.push(this);
      }
    }

    // The request has read it, or never will.
    leave(request) {
      this.users.delete(request);
      request.prefixes = request.prefixes.filter((prefix) => prefix !== this);
    }
  }

  // Lets the n samples of each prompt share it, and, if `everybody`, all prompts their beginning.
  // Each request still reads at least the last token of its prompt itself.
  function share(requests, n, everybody = false) {
    const groups = range(requests.length / n).map((i) => requests.slice(i * n, (i + 1) * n));
    if (everybody) {
      groups.push(requests); // last, so that a request's prefixes get shorter along its list
    }
    for (const group of groups) {
      const readers = group.filter((request) => request.max_tokens > 0); // the others never prefill
      const length = readers.length > 1 ? common_length(readers) : 0;
      if (length > 0) {
        new Prefix(length, readers);
      }
    }
  }

  // How many tokens all prompts have in common at their start, the last of each left out.
  function common_length(requests) {
    const first = requests[0].prompt;
    const shortest = Math.min(...requests.map((request) => request.prompt.length)) - 1;
    for (let place = 0; place < shortest; place++) {
      if (requests.some((request) => request.prompt[place] !== first[place])) {
        return place;
      }
    }
    return shortest;
  }

  // Those of the request's prefixes that its first `num_tokens` tokens don't contain.
  function longer_than(request, num_tokens) {
    return request.prefixes.filter((prefix) => prefix.length > num_tokens);
  }

  // The longest of the request's prefixes of which there is a copy.
  function longest_saved(request, saved) {
    return request.prefixes.find((prefix) => saved.has(prefix)) ?? null;
  }

  // Whether the request should wait, because another is reading a prefix that it could copy.
  function is_held_back(request, saved, being_prefilled) {
    for (const prefix of request.prefixes) {
      if (saved.has(prefix)) {
        return false;
      }
      if (being_prefilled.has(prefix)) {
        return true;
      }
    }
    return false;
  }

  // Leaves the prefixes that the request's slot holds by now.
  function leave_held(request) {
    for (const prefix of request.prefixes) {
      if (prefix.length <= request.num_computed_tokens) {
        prefix.leave(request);
      }
    }
  }

  // The request is finished or preempted, and needs none of its prefixes.
  function leave_all(request) {
    for (const prefix of request.prefixes) {
      prefix.leave(request);
    }
  }

  // --- slots.py --------------------------------------------------------------------------------

  const SHORT = 64; // tokens: rows up to this length count as equally long

  const by_slot = (a, b) => a.slot - b.slot;

  // Slots 0..D-1 for the requests that decode, D..R-1 for those that prefill. Rows of similar
  // length decode side by side, the long ones first. A request that has one of its group's slots
  // keeps it. Returns the requests in order of their slots, and the moves.
  function assign_slots(running) {
    const groups = new Map();
    for (const request of running) {
      const size = length_class(request);
      groups.set(size, [...(groups.get(size) ?? []), request]);
    }
    const ordered = [];
    const moves = [];
    for (const size of [...groups.keys()].sort((a, b) => b - a)) {
      const group = groups.get(size);
      moves.push(...place(group, ordered.length));
      ordered.push(...group.sort(by_slot));
    }
    return [ordered, moves];
  }

  // 0 for a request that prefills. Long rows of one class differ by less than a factor of 2.
  function length_class(request) {
    if (!request.decoding) {
      return 0;
    }
    return 32 - Math.clz32(Math.max(request.num_tokens, SHORT)); // bits
  }

  // Gives each request of a group one of as many slots, from `first` on. Returns the moves.
  function place(group, first) {
    const taken = new Set(group.map((request) => request.slot));
    const slots = range(first + group.length, first);
    const free = slots.filter((slot) => !taken.has(slot));
    const moves = [];
    for (const request of group) {
      if (slots.includes(request.slot)) {
        continue;
      }
      const slot = free.shift(); // the lowest
      if (request.slot !== null) {
        moves.push({ source: request.slot, target: slot });
      }
      request.slot = slot;
    }
    return moves;
  }

  // --- step_plan.py ----------------------------------------------------------------------------

  // Which rows decode, which prefill, and what happens to the slots before and after that: see the
  // head of this file. From `moves` to `saves` in the order in which the runner executes them.
  class StepPlan {
    constructor(fields) {
      Object.assign(this, fields);
    }

    // Whether the model is called.
    get computes() {
      return this.decode.length + this.prefill.length > 0;
    }

    // How many tokens each row prefills.
    prefill_widths() {
      return this.prefill.map((row) => row.end - row.start);
    }

    get prefill_tokens() {
      return sum(this.prefill_widths());
    }

    // Pads beside the prefill's real tokens, in one rectangle.
    get padded_tokens() {
      const widths = this.prefill_widths();
      return widths.length * Math.max(0, ...widths) - this.prefill_tokens;
    }

    // What each slot does: the request's index, or null, and what it does.
    slot_kinds() {
      const entries = range(this.slots).map(() => [null, "idle"]);
      for (const { request, slot } of this.held_back) {
        entries[slot] = [request.index, "idle"];
      }
      for (const { request, slot } of this.decode) {
        entries[slot] = [request.index, this.wasted.has(slot) ? "wasted" : "decode"];
      }
      for (const { request, slot } of this.prefill) {
        entries[slot] = [request.index, "prefill"];
      }
      return entries;
    }
  }

  // --- scheduler.py ----------------------------------------------------------------------------

  // `leave`: a finished request frees its slot at once. `join`: a waiting one takes it at once.
  // `most`: the most slots, whatever was asked for.
  const POLICIES = {
    // One by one.
    sequential: { frees_slots_early: true, admits_while_running: false, max_slots: 1 },
    // A batch runs until its longest answer ends.
    static: { frees_slots_early: false, admits_while_running: false, max_slots: null },
    // Finished requests leave, so the batch shrinks.
    "early-stop": { frees_slots_early: true, admits_while_running: false, max_slots: null },
    // And waiting requests take the free slots.
    continuous: { frees_slots_early: true, admits_while_running: true, max_slots: null },
  };

  // Requests wait in order of arrival, run in a slot, and finish. `schedule` plans a step, somebody
  // else executes the plan, and `update` takes it back with the sampled tokens: only `update`
  // records progress. (Slots pinned to a caller's own state are in the Python library only.)
  //
  // `admit` picks the next requests, `preempt_over_budget` sends some back, `assign` says who
  // decodes and in which slot, `plan` who prefills which tokens, `take_token` when an answer ends.
  class Scheduler {
    constructor(slots, strategy = "continuous", token_budget = null, chunk = 256) {
      this.policy = POLICIES[strategy];
      this.slots = slots;
      this.token_budget = token_budget;
      this.chunk = chunk;
      this.waiting = [];
      this.running = []; // in slots 0..R-1: those that decode, then those that still prefill
      this.decoding = []; // the first of `running`
      this.resets = new Set(); // slots whose content nobody needs
      this.saved = new Set(); // prefixes of which the runner keeps a copy
      this.unreported = new Map(); // requests that `update` changed: tokens each had before
      this.num_arrived = 0;
      this.in_flight = false; // a plan is out
      this.regroup = false; // `running` has changed: slots must be assigned anew
    }

    get num_unfinished() {
      const running = this.running.filter((request) => request.finish_reason === null);
      return this.waiting.length + running.length;
    }

    get num_finished() {
      return this.num_arrived - this.num_unfinished;
    }

    // Whether another step has anything to do for a request.
    has_unfinished() {
      return this.in_flight || this.unreported.size > 0 || this.num_unfinished > 0;
    }

    // Requests come and go.

    // Queues a request.
    add(request) {
      request.arrival = this.num_arrived;
      request.arrival_s = now();
      if (request.max_tokens === 0) {
        this.finish(request, "length");
      } else {
        this.waiting.push(request);
      }
      this.num_arrived += 1;
    }

    // Ends a request. The next step frees its slot, if the strategy lets it leave.
    finish(request, reason, error = null) {
      leave_all(request);
      this.regroup = true;
      request.error = error && `request ${request.index}: ${error}`;
      request.seconds = now() - request.arrival_s;
      request.finish_reason = reason;
      this.waiting = this.waiting.filter((other) => other !== request);
    }

    // A step.

    // Plans the next step: who decodes, who prefills, and what happens to the slots before that.
    schedule() {
      if (this.in_flight) {
        this.preempt_all();
      }
      this.in_flight = true;
      this.free_finished();
      const preempted = this.preempt_over_budget();
      this.admit();
      const moves = this.regroup ? this.assign() : [];
      return this.plan(moves, preempted);
    }

    free_finished() {
      if (!this.regroup) {
        return;
      }
      const finished = this.running.filter((request) => request.finish_reason !== null);
      if (this.policy.frees_slots_early || finished.length === this.running.length) {
        for (const request of finished) {
          this.free(request, true);
        }
        this.running = this.running.filter((request) => request.slot !== null);
      }
    }

    // Preempts the youngest until the others fit the budget. A single request always does.
    preempt_over_budget() {
      const preempted = [];
      while (this.running.length > 1 && !this.within_budget(this.running)) {
        const youngest = this.running.reduce((a, b) => (b.arrival > a.arrival ? b : a));
        this.preempt(youngest);
        preempted.push(youngest);
      }
      return preempted;
    }

    // Admits waiting requests strictly in order: no request overtakes a long one.
    admit() {
      if (this.running.length > 0 && !this.policy.admits_while_running) {
        return;
      }
      while (this.waiting.length > 0 && this.running.length < this.slots) {
        if (!this.within_budget([...this.running, this.waiting[0]])) {
          return;
        }
        this.running.push(this.waiting.shift());
        this.regroup = true;
      }
    }

    // Whether the requests fit the budget once each has one more token.
    within_budget(requests) {
      if (this.token_budget === null) {
        return true;
      }
      const held = sum(requests.map((request) => request.num_tokens + 1));
      return held <= this.token_budget;
    }

    // Back to the head of the queue: its prompt and answer so far will be prefilled again.
    preempt(request) {
      this.waiting.unshift(request);
      leave_all(request);
      this.free(request, true);
      this.running = this.running.filter((other) => other !== request);
    }

    // Takes the slot away from a request, and, with `reset`, empties it.
    free(request, reset) {
      if (reset) {
        this.resets.add(request.slot);
      }
      request.slot = null;
      request.num_computed_tokens = 0;
      request.decoding = false;
      this.regroup = true;
    }

    // Assigns the slots anew. Returns the moves that this takes.
    assign() {
      const [ordered, moves] = assign_slots(this.running);
      this.running = ordered;
      moves.forEach(({ source }) => this.resets.add(source));
      moves.forEach(({ target }) => this.resets.delete(target));
      const decoding = this.running.filter((request) => request.decoding);
      this.decoding = decoding.map((request) => ({ request, slot: request.slot }));
      this.regroup = false;
      return moves;
    }

    // What the running requests do, each in its slot. Changes nothing.
    plan(moves, preempted) {
      const copies = [];
      const prefill = [];
      const saves = [];
      const held_back = [];
      const sampled = this.decoding.map(({ request }) => request);
      const prefilling = this.running.slice(this.decoding.length);
      const begun = prefilling.filter((request) => request.num_computed_tokens > 0);
      // A request that shares one of these waits for its copy.
      const being_prefilled = new Set(begun.flatMap((request) => request.prefixes));
      for (const request of prefilling) {
        if (request.finish_reason !== null) {
          continue; // cancelled during its prefill
        }
        const { slot } = request;
        let start = request.num_computed_tokens;
        if (start === 0) {
          if (is_held_back(request, this.saved, being_prefilled)) {
            held_back.push({ request, slot });
            continue;
          }
          const prefix = longest_saved(request, this.saved);
          if (prefix !== null) {
            copies.push({ prefix, slot });
            start = prefix.length;
          }
        }
        longer_than(request, start).forEach((prefix) => being_prefilled.add(prefix));
        const end = this.prefill_end(request, start);
        prefill.push({ request, slot, start, end });
        if (end === request.num_tokens) {
          sampled.push(request);
        }
        for (const prefix of request.prefixes) {
          if (prefix.length === end && !this.saved.has(prefix) && prefix.users.size > 1) {
            saves.push({ slot, prefix });
          }
        }
      }
      const wasted = this.decoding.filter(({ request }) => request.finish_reason !== null);
      return new StepPlan({
        slots: this.slots,
        moves,
        resets: [...this.resets].sort((a, b) => a - b),
        copies,
        drops: [...this.saved].filter((prefix) => prefix.users.size === 0),
        decode: this.decoding,
        prefill,
        saves,
        sampled,
        held_back,
        wasted: new Set(wasted.map(({ slot }) => slot)),
        preempted,
      });
    }

    // A chunk beyond `start`, or to the end of a shared prefix, where it can be copied.
    prefill_end(request, start) {
      const end = Math.min(start + this.chunk, request.num_tokens);
      return Math.min(end, ...longer_than(request, start).map((prefix) => prefix.length));
    }

    // Its outcome.

    // Takes a plan back with what was sampled. Returns the requests whose output changed.
    update(plan, tokens, logprobs) {
      const at = now();
      for (const { request } of plan.decode) {
        request.num_computed_tokens += 1;
      }
      for (const { request, end } of plan.prefill) {
        request.num_computed_tokens = end;
        leave_held(request);
        if (end === request.num_tokens) {
          request.decoding = true;
          this.regroup = true;
        }
      }
      plan.sampled.forEach((request, i) => {
        if (request.finish_reason === null) {
          this.take_token(request, tokens[i], logprobs[i], at);
        }
      });
      plan.saves.forEach(({ prefix }) => this.saved.add(prefix));
      plan.drops.forEach((prefix) => this.saved.delete(prefix));
      plan.resets.forEach((slot) => this.resets.delete(slot));
      this.in_flight = false;
      return [...this.unreported.keys()];
    }

    // Records one sampled token, which may end the answer.
    take_token(request, token_id, logprob, at) {
      if (!this.unreported.has(request)) {
        this.unreported.set(request, request.logprobs.length);
      }
      if (Number.isNaN(logprob)) {
        const after = `after ${request.token_ids.length} new tokens`;
        this.finish(request, "error", `its logits are NaN ${after}`);
        return;
      }
      request.first_token_s ??= at - request.arrival_s;
      request.logprobs.push(logprob);
      if (request.stop_ids.has(token_id)) {
        request.stop_id = token_id;
        this.finish(request, "stop");
        return;
      }
      request.token_ids.push(token_id);
      if (request.token_ids.length === request.max_tokens) {
        this.finish(request, "length");
      }
    }

    // After an interruption: every request back to the queue, in order of arrival.
    preempt_all() {
      range(this.slots).forEach((slot) => this.resets.add(slot));
      for (const request of this.running) {
        leave_all(request);
        this.free(request, false);
      }
      const everybody = [...this.running, ...this.waiting];
      const unfinished = everybody.filter((request) => request.finish_reason === null);
      this.waiting = unfinished.sort((a, b) => a.arrival - b.arrival);
      this.running = [];
      this.decoding = [];
      this.in_flight = false;
    }
  }

  // --- runner.py -------------------------------------------------------------------------------

  // Carries out a step's plan on the model: `slots` rows of a state, made when the first plan
  // comes. A step that decodes and prefills is two calls of the model.
  class Runner {
    constructor(model, slots) {
      this.model = model;
      this.slots = slots;
      this.state = null;
      this.saved = new Map(); // a state of one row, by prefix
      this.token_ids = new Map(); // what was sampled last, by request
    }

    // Logits for the S requests of plan.sampled, one Float32Array each.
    execute(plan) {
      this.prepare(plan);
      const logits = plan.decode.length > 0 ? this.decode(plan) : [];
      return plan.prefill.length > 0 ? [...logits, ...this.prefill(plan)] : logits;
    }

    // Moves, empties and fills slots.
    prepare(plan) {
      if (this.state === null) {
        this.state = this.model.new_state(this.slots);
      }
      const sources = plan.moves.map(({ source }) => source);
      const targets = plan.moves.map(({ target }) => target);
      if (sources.length > 0) {
        this.state.move(sources, targets);
      }
      this.state.reset(plan.resets);
      plan.copies.forEach(({ prefix, slot }) => this.state.put([slot], this.saved.get(prefix)));
      plan.drops.forEach((prefix) => this.saved.delete(prefix));
    }

    // One token of each row, the one sampled last.
    decode(plan) {
      const pieces = plan.decode.map(({ request }) => [this.token_ids.get(request)]);
      return this.compute(pieces, plan.decode);
    }

    // The next piece of each row's text. Returns the logits of the rows that are done.
    prefill(plan) {
      const pieces = plan.prefill.map(({ request, start, end }) =>
        [...request.prompt, ...request.token_ids].slice(start, end),
      );
      const logits = this.compute(pieces, plan.prefill);
      for (const { slot, prefix } of plan.saves) {
        this.saved.set(prefix, this.state.select([slot]));
      }
      const is_done = ({ request, end }) => end === request.num_tokens;
      return logits.filter((_, row) => is_done(plan.prefill[row]));
    }

    compute(pieces, rows) {
      const num_tokens = pieces.map((piece) => piece.length);
      const slots = rows.map(({ slot }) => slot);
      const input_ids = qwenlab.right_pad(pieces);
      const batch = qwenlab.ForwardBatch.from_lengths(input_ids, num_tokens, this.state, slots);
      return this.model.compute(batch, true);
    }

    // Keeps what was sampled, as the input of the next decode.
    keep(token_ids, requests) {
      this.token_ids = new Map(requests.map((request, i) => [request, token_ids[i]]));
    }
  }

  // --- results.py ------------------------------------------------------------------------------

  // The cost of a run so far, counted from the plans of its steps.
  class Stats {
    constructor() {
      this.preempted = 0; // how often a request lost its slot to the token budget
      this.sampled_tokens = 0; // stop ids included
      this.prefill_tokens = 0; // real tokens read
      this.padded_tokens = 0; // pads computed beside them
      this.plans = [];
      this.kinds = { prefill: 0, decode: 0, wasted: 0, idle: 0 }; // slots times steps, by use
    }

    record(plan) {
      this.preempted += plan.preempted.length;
      if (!plan.computes) {
        return;
      }
      this.plans.push(plan);
      this.prefill_tokens += plan.prefill_tokens;
      this.padded_tokens += plan.padded_tokens;
      this.kinds.prefill += plan.prefill.length;
      this.kinds.decode += plan.decode.length - plan.wasted.size;
      this.kinds.wasted += plan.wasted.size;
      this.kinds.idle += plan.slots - plan.prefill.length - plan.decode.length;
    }

    get step_count() {
      return this.plans.length;
    }

    // What each slot did, step by step.
    get steps() {
      return this.plans.map((plan) => plan.slot_kinds());
    }
  }

  // --- engine.py -------------------------------------------------------------------------------

  // Answers requests as they come, at most `slots` at once. Each output equals that prompt's output
  // alone. token_budget: most tokens that the slots may hold together; chunk: most tokens of a
  // prompt that a slot reads per step.
  class Engine {
    constructor(model, slots = 64, options = {}) {
      const { strategy = "continuous", token_budget = null } = options;
      const policy = POLICIES[strategy];
      if (policy === undefined) {
        const known = Object.keys(POLICIES).join(", ");
        throw new Error(`strategy is ${strategy}, expected one of ${known}`);
      }
      if (!Number.isInteger(slots) || slots < 1) {
        throw new Error(`slots is ${slots}, expected a whole number of at least 1`);
      }
      if (token_budget !== null && !policy.frees_slots_early) {
        throw new Error(
          `token_budget needs a strategy that frees finished rows; ${strategy} does not`,
        );
      }
      const whole = model.config.max_position_embeddings; // others read prompts whole
      const chunk = policy.admits_while_running ? (options.chunk ?? 256) : whole;
      this.model = model;
      this.slots = Math.min(slots, policy.max_slots ?? slots);
      this.token_budget = token_budget;
      this.scheduler = new Scheduler(this.slots, strategy, token_budget, chunk);
      this.runner = new Runner(model, this.slots);
      this.stats = new Stats();
      this.plan = null; // that of the last step
    }

    // Queues a prompt; its answer grows in `token_ids` until it has a `finish_reason`.
    submit(prompt, options = {}) {
      const params = sampling_params(options);
      const request = new_request(this.model, prompt, params, this.token_budget);
      request.index = this.scheduler.num_arrived;
      request.rng_key = [params.seed, 0, 0];
      this.add_request(request);
      return request;
    }

    // Queues a request that was made elsewhere, by `make_requests`.
    add_request(request) {
      this.scheduler.add(request);
    }

    // Ends a request with "cancelled" and what it has so far.
    cancel(request) {
      if (request.finish_reason === null) {
        this.scheduler.finish(request, "cancelled");
      }
    }

    has_unfinished() {
      return this.scheduler.has_unfinished();
    }

    // One step for every running request. Returns the requests that it changed, if any.
    step() {
      const plan = this.scheduler.schedule();
      const logits = this.runner.execute(plan);
      const [tokens, logprobs] = this.sample(logits, plan.sampled);
      const outputs = this.scheduler.update(plan, tokens, logprobs);
      this.stats.record(plan);
      this.plan = plan;
      return this.report(outputs);
    }

    // One token per request, and its log-probability.
    sample(logits, requests) {
      const penalised = qwenlab.penalise(logits, requests);
      const token_ids = qwenlab.sample(penalised, requests);
      this.runner.keep(token_ids, requests);
      return [token_ids, qwenlab.logprobs_of(penalised, token_ids, requests)];
    }

    // Counts what is new.
    report(outputs) {
      for (const [request, had] of this.scheduler.unreported) {
        this.stats.sampled_tokens += request.logprobs.length - had;
      }
      this.scheduler.unreported.clear();
      return outputs;
    }

    // Steps until every request is finished.
    run() {
      while (this.has_unfinished()) {
        this.step();
      }
    }
  }

  // --- generation.py ---------------------------------------------------------------------------

  // Answers `prompts` (arrays of token ids): see the head of this file.
  function generate(model, prompts, options = {}) {
    const { n = 1, strategy, slots = 64, shared_prefix = null, ...own } = options;
    const requests = make_requests(model, prompts, n, own);
    const engine = new Engine(model, Math.min(slots, Math.max(1, requests.length)), { strategy });
    if (shared_prefix !== false) {
      share(requests, n, shared_prefix === true);
    }
    requests.forEach((request) => engine.add_request(request));
    engine.run();
    return { outputs: requests, stats: engine.stats };
  }

  Object.assign(qwenlab, { left_pad, position_ids, causal_mask, combined_mask });
  Object.assign(qwenlab, { Request, Prefix, share, Scheduler, StepPlan, Runner, Stats, Engine });
  Object.assign(qwenlab, { make_requests, generate });
})(globalThis.qwenlab);
