// The model, as in src/qwenlab/model: token ids in, logits out, for rows of unequal length. Dense
// Qwen3 and the hybrid Qwen3.5. Numbers are kept in float32, sums are added up in double.
//
// What a widget calls:
//   const [model, tokenizer] = qwenlab.load(name)
//       A checkpoint whose packed weights are in the page (qwenlab.packed[name]); made once.
//   model.config      config.json's own names, and layer_types; model.stop_ids: a Set of ids
//   model.softmax     how a query that may see nothing is answered: one of qwenlab.VARIANTS,
//                     "log-sum-exp" at first. It holds for calls without a state, too.
//   model.forward(input_ids, options)
//       input_ids: B arrays of T ids. Returns, for each row, T Float32Arrays of logits (zeros at
//       pads), or with `last_only` one, of the row's last real token. Options:
//         attention_mask  B arrays of T booleans (or 1 and 0), true = a real token of this call;
//                         pads stand left, right or inside. Or the caller's, B arrays that
//                         hold one array of T arrays of T booleans, mask[b][0][query][key], true =
//                         may attend: then nothing is moved and pads are computed as given. The
//                         hybrid takes no such mask.
//         position_ids    B arrays of T numbers, beside a mask of the caller's (else 0..T-1)
//         state, rows     what earlier calls left, and the slot of each row (else all, in order)
//         last_only       see above
//         watch           an object that the call fills, of tokens as the model has them inside:
//                         watch.attention[layer][b][head][query] is a Float32Array of weights over
//                         the row's keys (null for a linear layer);
//                         watch.finite[depth][b][t] says whether all features of a token are
//                         finite: depth 0 after the embedding, depth n after layer n.
//                         Inside, pads trail, unless the mask is the caller's.
//   model.new_state(batch_size) -> State
//       state.lengths[slot], state.batch_size, state.nbytes; state.layers[n], by slot: keys and
//       values (tokens * key heads * D, in this order), or conv_state ((taps - 1) * channels) and
//       recurrent_state (heads * Dk * Dv): Float32Arrays that a widget may read or zero.
//       select(rows), repeat(n), snapshot() -> new State; reset(rows), put(rows, other) and
//       move(sources, targets) change it in place.
// Rows don't depend on each other, so a widget that changes one row need compute that row alone.
// All calls return at once when they are done: split long work over requestAnimationFrame.
// Wrong input throws an Error with one line. No call touches the document.

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const VARIANTS = ["-inf", "finfo.min", "log-sum-exp", "pads-see-themselves"];
  const FLOAT32_MIN = -3.4028234663852886e38;

  const { range } = qwenlab;
  const sigmoid = (x) => 1 / (1 + Math.exp(-x));
  const silu = (x) => x * sigmoid(x);

  // --- weights.py ------------------------------------------------------------------------------

  // The packed tensors by name: bfloat16 is the upper half of a float32.
  function load_weights(packed) {
    const text = atob(packed.weights);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) {
      bytes[i] = text.charCodeAt(i);
    }
    const weights = {};
    let start = 0;
    for (const [name, dtype, shape] of packed.tensors) {
      const count = shape.reduce((product, size) => product * size, 1);
      if (dtype === "bfloat16") {
        const halves = new Uint16Array(bytes.slice(start, start + 2 * count).buffer);
        const words = new Uint32Array(count);
        for (let i = 0; i < count; i++) {
          words[i] = halves[i] << 16;
        }
        weights[name] = new Float32Array(words.buffer);
        start += 2 * count;
      } else {
        weights[name] = new Float32Array(bytes.slice(start, start + 4 * count).buffer);
        start += 4 * count;
      }
    }
    return weights;
  }

  // --- state.py --------------------------------------------------------------------------------

  const GROWING = ["keys", "values"]; // these have a place for every token

  // The memory of `batch_size` slots: how many tokens each holds, and each layer's tensors, one
  // Float32Array a slot. No pad is stored.
  class State {
    constructor(config, batch_size) {
      if (!Number.isInteger(batch_size) || batch_size < 1) {
        throw new Error(`batch_size is ${batch_size}, expected at least 1 row`);
      }
      this.config = config;
      this.lengths = new Array(batch_size).fill(0);
      const sizes = state_sizes(config);
      this.layers = config.layer_types.map((kind) => {
        const tensors = {};
        for (const [name, size] of Object.entries(sizes[kind])) {
          tensors[name] = this.lengths.map(() => new Float32Array(size));
        }
        return tensors;
      });
    }

    get batch_size() {
      return this.lengths.length;
    }

    // Bytes of all tensors held.
    get nbytes() {
      let sum = 0;
      for (const layer of this.layers) {
        for (const slots of Object.values(layer)) {
          sum += slots.reduce((total, tensor) => total + tensor.byteLength, 0);
        }
      }
      return sum;
    }

    // A new state of the rows named (repeats allowed).
    select(rows) {
      const chosen = new State(this.config, rows.length);
      rows.forEach((row, place) => copy_slot(this, row, chosen, place));
      return chosen;
    }

    // A new state in which row i has become rows i*n .. i*n+n-1.
    repeat(n) {
      return this.select(this.lengths.flatMap((_, row) => new Array(n).fill(row)));
    }

    // A copy that later calls leave as it is.
    snapshot() {
      return this.select(range(this.batch_size));
    }

    // Empties the rows in place (all, if null): nothing is left of the last request.
    reset(rows = null) {
      const empty = new State(this.config, 1);
      for (const row of rows ?? range(this.batch_size)) {
        copy_slot(empty, 0, this, row);
      }
    }

    // Copies the rows of `other`, in order, over the rows named here; a single row over all.
    put(rows, other) {
      const source = other === this ? other.snapshot() : other;
      const single = source.batch_size === 1;
      rows.forEach((row, place) => copy_slot(source, single ? 0 : place, this, row));
    }

    // Copies rows over others of the same state. What the sources held they still hold.
    move(sources, targets) {
      this.put(targets, this.select(sources));
    }

    // Makes sure that a slot can hold `length` tokens; it grows by doubling.
    make_room(length, slot) {
      const width = this.config.num_key_value_heads * this.config.head_dim;
      for (const layer of this.layers) {
        for (const name of GROWING) {
          if (name in layer && layer[name][slot].length < length * width) {
            const grown = new Float32Array(Math.max(length * width, 2 * layer[name][slot].length));
            grown.set(layer[name][slot]);
            layer[name][slot] = grown;
          }
        }
      }
    }
  }

  function copy_slot(source, row, target, place) {
    if (!(row in source.lengths) || !(place in target.lengths)) {
      const known = `0..${source.batch_size - 1}, 0..${target.batch_size - 1}`;
      throw new Error(`row ${row} or ${place} is not there: the states have rows ${known}`);
    }
    target.lengths[place] = source.lengths[row];
    source.layers.forEach((layer, number) => {
      for (const [name, slots] of Object.entries(layer)) {
        target.layers[number][name][place] = slots[row].slice();
      }
    });
  }

  // How many numbers an empty slot keeps for a layer of each kind.
  function state_sizes(config) {
    const { key_width, value_width } = linear_widths(config);
    const channels = 2 * key_width + value_width;
    return {
      full_attention: { keys: 0, values: 0 },
      linear_attention: {
        conv_state: (config.linear_conv_kernel_dim - 1) * channels,
        recurrent_state: value_width * config.linear_key_head_dim,
      },
    };
  }

  function linear_widths(config) {
    return {
      key_width: config.linear_num_key_heads * config.linear_key_head_dim,
      value_width: config.linear_num_value_heads * config.linear_value_head_dim,
    };
  }

  // --- batch.py --------------------------------------------------------------------------------

  // The rows of one forward pass. B rows, W = tokens of the widest row. Inside the model padding
  // always trails: a caller's pads are removed once, at the door (`from_mask`).
  //
  // input_ids: B arrays of W; num_new_tokens: real tokens of each row in this pass;
  // num_computed_tokens: those that its slot of the state held before.
  class ForwardBatch {
    constructor(input_ids, num_new_tokens, num_computed_tokens, state = null, slots = []) {
      this.input_ids = input_ids;
      this.num_new_tokens = num_new_tokens;
      this.num_computed_tokens = num_computed_tokens;
      this.state = state;
      this.slots = slots;
      this.custom_mask = null; // the caller's (B, 1, T, T)
      this.source_mask = null; // (B, T) where the caller's tokens stood; null: not moved
      this.watch = null;
      this.position_ids = this.positions(); // (B, W): earlier passes counted
    }

    // Rows whose padding trails already.
    static from_lengths(input_ids, num_new_tokens, state = null, slots = null) {
      if (state === null) {
        return new ForwardBatch(input_ids, num_new_tokens, num_new_tokens.map(() => 0));
      }
      slots = slots ?? range(state.batch_size);
      if (slots.length !== input_ids.length || new Set(slots).size !== slots.length) {
        throw new Error(`input_ids has ${input_ids.length} rows, rows names ${slots.join(", ")}`);
      }
      const lost = slots.find((slot) => !(slot in state.lengths));
      if (lost !== undefined) {
        throw new Error(`row ${lost} is not there: the state has rows 0..${state.batch_size - 1}`);
      }
      const held = slots.map((slot) => state.lengths[slot]);
      return new ForwardBatch(input_ids, num_new_tokens, held, state, slots);
    }

    // Rows with pads anywhere: moves each row's real tokens to its front, in order.
    static from_mask(input_ids, attention_mask = null, state = null, slots = null) {
      if (attention_mask === null) {
        const widths = input_ids.map((ids) => ids.length);
        return ForwardBatch.from_lengths(input_ids, widths, state, slots);
      }
      const real = input_ids.map((ids, b) => ids.filter((_, t) => attention_mask[b][t]));
      const num_new_tokens = real.map((ids) => ids.length);
      const front = right_pad(real);
      const moved = ForwardBatch.from_lengths(front, num_new_tokens, state, slots);
      moved.source_mask = attention_mask;
      return moved;
    }

    // A rectangle (B, T) computed as given, pads included, under the caller's mask.
    static from_rectangle(input_ids, attention_mask, position_ids) {
      const widths = input_ids.map((ids) => ids.length);
      const given = new ForwardBatch(input_ids, widths, widths.map(() => 0));
      given.custom_mask = attention_mask;
      given.position_ids = position_ids;
      return given;
    }

    get rows() {
      return this.input_ids.length;
    }

    get width() {
      return this.input_ids[0].length;
    }

    positions() {
      const starts = this.num_computed_tokens;
      return this.input_ids.map((ids, b) => ids.map((_, t) => starts[b] + t));
    }

    is_real(b, t) {
      return t < this.num_new_tokens[b];
    }

    // (K,) true = may attend, or null = all: a query at position p sees keys 0..p of its row.
    attention_mask(b, t, keys) {
      if (this.custom_mask !== null) {
        return this.custom_mask[b][0][t];
      }
      const position = this.position_ids[b][t];
      return position >= keys - 1 ? null : range(keys).map((key) => key <= position);
    }

    // Keeps this pass's keys and values (B, W, KVH, D) and returns each row's whole (K, KVH, D).
    // Only real tokens are kept, so no query of a later pass can see a pad.
    update_cache(layer, keys, values) {
      const row_size = keys.length / this.rows;
      const row_of = (x, b) => x.subarray(b * row_size, (b + 1) * row_size);
      if (this.state === null) {
        return range(this.rows).map((b) => [row_of(keys, b), row_of(values, b)]);
      }
      const cache = this.state.layers[layer];
      const width = row_size / this.width; // KVH * D
      return this.slots.map((slot, b) => {
        const start = this.num_computed_tokens[b] * width;
        const added = this.num_new_tokens[b] * width;
        cache.keys[slot].set(row_of(keys, b).subarray(0, added), start);
        cache.values[slot].set(row_of(values, b).subarray(0, added), start);
        const whole = (name) => cache[name][slot].subarray(0, start + added);
        return [whole("keys"), whole("values")];
      });
    }

    // Of a row's inputs (P + W, C), P older ones first, the P that end with its last real one.
    last_inputs(inputs, b, channels) {
      const older = inputs.length / channels - this.width;
      const first = this.num_new_tokens[b];
      return inputs.slice(first * channels, (first + older) * channels);
    }

    // x (B, W, F) at each row's last real token: (B, F). A row without one gets its first entry.
    last_token(x) {
      const features = x.length / (this.rows * this.width);
      const out = new Float32Array(this.rows * features);
      for (let b = 0; b < this.rows; b++) {
        const place = b * this.width + Math.max(this.num_new_tokens[b] - 1, 0);
        out.set(x.subarray(place * features, (place + 1) * features), b * features);
      }
      return out;
    }

    // x (B, F) as B arrays, with zeros in each row that has no real token in this pass.
    hide_empty_rows(x) {
      const counts = this.num_new_tokens;
      return rows_of(x, this.rows).map((row, b) => (counts[b] > 0 ? row : row.fill(0)));
    }

    // x (B, W, F) to where the caller's tokens stood: B arrays of T, zeros at pads.
    to_caller(x) {
      const features = x.length / (this.rows * this.width);
      const tokens = rows_of(x, this.rows * this.width);
      const source = this.source_mask ?? this.input_ids.map((ids) => ids.map(() => true));
      return source.map((mask, b) => {
        let next = b * this.width; // both list the real tokens row by row, in order
        return Array.from(mask, (real) => (real ? tokens[next++] : new Float32Array(features)));
      });
    }
  }

  function right_pad(sequences, pad_id = 0) {
    const width = Math.max(1, ...sequences.map((ids) => ids.length));
    return sequences.map((ids) => [...ids, ...new Array(width - ids.length).fill(pad_id)]);
  }

  // A flat tensor as views of its first dimension.
  function rows_of(x, count) {
    const size = x.length / count;
    return range(count).map((row) => x.subarray(row * size, (row + 1) * size));
  }

  // --- layers.py -------------------------------------------------------------------------------

  // x (N, in), weight (out, in): x W^T, (N, out). Several tokens and outputs at a time, so that a
  // number that has been fetched is used more than once. Each sum still runs over i in order.
  function linear(x, weight, inputs) {
    const count = x.length / inputs;
    const outputs = weight.length / inputs;
    const out = new Float32Array(count * outputs);
    let n = 0;
    for (; n + 4 <= count; n += 4) {
      four_tokens(x, weight, inputs, outputs, n, out);
    }
    for (; n < count; n++) {
      one_token(x, weight, inputs, outputs, n, out);
    }
    return out;
  }

  // Three outputs of four tokens at a time: twelve products for each seven numbers fetched. a to d
  // are where the tokens' features start, u to w where the outputs' weights do.
  function four_tokens(x, weight, inputs, outputs, n, out) {
    const a = n * inputs;
    const b = a + inputs;
    const c = b + inputs;
    const d = c + inputs;
    const in_threes = outputs - (outputs % 3);
    for (let o = 0; o < in_threes; o += 3) {
      const u = o * inputs;
      const v = u + inputs;
      const w = v + inputs;
      let [ua, ub, uc, ud] = [0, 0, 0, 0];
      let [va, vb, vc, vd] = [0, 0, 0, 0];
      let [wa, wb, wc, wd] = [0, 0, 0, 0];
      for (let i = 0; i < inputs; i++) {
        const first = weight[u + i];
        const second = weight[v + i];
        const third = weight[w + i];
        const xa = x[a + i];
        const xb = x[b + i];
        const xc = x[c + i];
        const xd = x[d + i];
        ua += first * xa;
        ub += first * xb;
        uc += first * xc;
        ud += first * xd;
        va += second * xa;
        vb += second * xb;
        vc += second * xc;
        vd += second * xd;
        wa += third * xa;
        wb += third * xb;
        wc += third * xc;
        wd += third * xd;
      }
      put_three(out, n * outputs + o, ua, va, wa);
      put_three(out, (n + 1) * outputs + o, ub, vb, wb);
      put_three(out, (n + 2) * outputs + o, uc, vc, wc);
      put_three(out, (n + 3) * outputs + o, ud, vd, wd);
    }
    for (let o = in_threes; o < outputs; o++) {
      for (let t = n; t < n + 4; t++) {
        out[t * outputs + o] = dot(x, t * inputs, weight, o * inputs, inputs);
      }
    }
  }

  function put_three(out, place, u, v, w) {
    out[place] = u;
    out[place + 1] = v;
    out[place + 2] = w;
  }

  // Eight outputs of one token at a time, whose weights start at a to h.
  function one_token(x, weight, inputs, outputs, n, out) {
    const start = n * inputs;
    const in_eights = outputs - (outputs % 8);
    for (let o = 0; o < in_eights; o += 8) {
      const a = o * inputs;
      const b = a + inputs;
      const c = b + inputs;
      const d = c + inputs;
      const e = d + inputs;
      const f = e + inputs;
      const g = f + inputs;
      const h = g + inputs;
      let [sum_a, sum_b, sum_c, sum_d] = [0, 0, 0, 0];
      let [sum_e, sum_f, sum_g, sum_h] = [0, 0, 0, 0];
      for (let i = 0; i < inputs; i++) {
        const feature = x[start + i];
        sum_a += feature * weight[a + i];
        sum_b += feature * weight[b + i];
        sum_c += feature * weight[c + i];
        sum_d += feature * weight[d + i];
        sum_e += feature * weight[e + i];
        sum_f += feature * weight[f + i];
        sum_g += feature * weight[g + i];
        sum_h += feature * weight[h + i];
      }
      const place = n * outputs + o;
      out[place] = sum_a;
      out[place + 1] = sum_b;
      out[place + 2] = sum_c;
      out[place + 3] = sum_d;
      out[place + 4] = sum_e;
      out[place + 5] = sum_f;
      out[place + 6] = sum_g;
      out[place + 7] = sum_h;
    }
    for (let o = in_eights; o < outputs; o++) {
      out[n * outputs + o] = dot(x, start, weight, o * inputs, inputs);
    }
  }

  // Of `count` numbers of a, from `i` on, and as many of b, from `j` on.
  function dot(a, i, b, j, count) {
    let sum = 0;
    for (let k = 0; k < count; k++) {
      sum += a[i + k] * b[j + k];
    }
    return sum;
  }

  // x + y, in the place of x.
  function add(x, y) {
    for (let i = 0; i < x.length; i++) {
      x[i] += y[i];
    }
  }

  // x / rms(x) * weight over the last dimension. Qwen3.5's norms are zero-centred: they store
  // weight - 1.
  class RMSNorm {
    constructor(weight, eps, zero_centred = false) {
      this.weight = weight;
      this.eps = eps;
      this.zero_centred = zero_centred;
    }

    forward(x) {
      const size = this.weight.length;
      const out = new Float32Array(x.length);
      for (let start = 0; start < x.length; start += size) {
        let sum = 0;
        for (let i = 0; i < size; i++) {
          sum += x[start + i] * x[start + i];
        }
        const scale = 1 / Math.sqrt(sum / size + this.eps);
        for (let i = 0; i < size; i++) {
          const weight = this.zero_centred ? 1 + this.weight[i] : this.weight[i];
          out[start + i] = x[start + i] * scale * weight;
        }
      }
      return out;
    }
  }

  // down(silu(gate(x)) * up(x)). (N, hidden) to the same.
  class MLP {
    constructor(config, weights, prefix) {
      this.hidden = config.hidden_size;
      this.intermediate = config.intermediate_size;
      this.gate_proj = weights[`${prefix}.gate_proj.weight`];
      this.up_proj = weights[`${prefix}.up_proj.weight`];
      this.down_proj = weights[`${prefix}.down_proj.weight`];
    }

    forward(x) {
      const gate = linear(x, this.gate_proj, this.hidden);
      const up = linear(x, this.up_proj, this.hidden);
      for (let i = 0; i < up.length; i++) {
        up[i] *= silu(gate[i]);
      }
      return linear(up, this.down_proj, this.intermediate);
    }
  }

  // Cosine and sine of every position's angles. R = config.rotary_dim of a head's features are
  // rotated, in pairs (i, i + R / 2). Rounded to float32 where PyTorch rounds.
  class Rotary {
    constructor(config) {
      const pairs = range(config.rotary_dim / 2);
      const exponents = pairs.map((i) => Math.fround((2 * i) / config.rotary_dim));
      this.frequencies = exponents.map((exponent) =>
        Math.fround(1 / Math.fround(Math.pow(Math.fround(config.rope_theta), exponent))),
      );
      this.known = new Map(); // by position
    }

    // [cos, sin] of one position, (R / 2,) each.
    angles(position) {
      if (!this.known.has(position)) {
        const angles = this.frequencies.map((frequency) => Math.fround(position * frequency));
        const cos = Float32Array.from(angles, Math.cos);
        const sin = Float32Array.from(angles, Math.sin);
        this.known.set(position, [cos, sin]);
      }
      return this.known.get(position);
    }
  }

  // Rotates, in place, the first R features of each head of x (B, W, heads, D) by its position.
  // Each pair (a, b) becomes (a cos - b sin, b cos + a sin).
  function apply_rotary(x, heads, head_dim, position_ids, rotary) {
    let start = 0;
    for (const positions of position_ids) {
      for (const position of positions) {
        const [cos, sin] = rotary.angles(position);
        const half = cos.length;
        for (let head = 0; head < heads; head++) {
          for (let i = 0; i < half; i++) {
            const a = x[start + i];
            const b = x[start + half + i];
            x[start + i] = a * cos[i] - b * sin[i];
            x[start + half + i] = b * cos[i] + a * sin[i];
          }
          start += head_dim;
        }
      }
    }
  }

  // --- softmax.py ------------------------------------------------------------------------------

  // Weights of one query over its keys: scores (K,) Float32Array, mask (K,) true = may attend,
  // null = all may. Returns (K,), of sum 1. `itself` is the query's own key. A query that may see
  // nothing gets, by `how`:
  //   "-inf"                 NaN: -inf minus the maximum of -inf is NaN
  //   "finfo.min"            1 / K everywhere, hidden keys included
  //   "log-sum-exp"          zeros: hidden keys are left out of the sum, and 0 divides as 1
  //   "pads-see-themselves"  1 at its own key, 0 elsewhere
  function masked_softmax(scores, mask, how = "log-sum-exp", itself = scores.length - 1) {
    if (!VARIANTS.includes(how)) {
      throw new Error(`softmax is ${how}, expected one of ${VARIANTS.join(", ")}`);
    }
    if (mask !== null && how === "pads-see-themselves" && !mask.some(Boolean)) {
      mask = mask.map((_, key) => key === itself);
    }
    const hidden = how === "finfo.min" ? FLOAT32_MIN : -Infinity;
    const weights = new Float32Array(scores.length);
    let highest = how === "log-sum-exp" ? FLOAT32_MIN : hidden;
    for (let key = 0; key < scores.length; key++) {
      weights[key] = mask === null || mask[key] ? scores[key] : hidden;
      highest = Math.max(highest, weights[key]); // NaN, where one is
    }
    let total = 0;
    for (let key = 0; key < scores.length; key++) {
      weights[key] = Math.exp(weights[key] - highest);
      total += weights[key];
    }
    const divisor = how === "log-sum-exp" && total === 0 ? 1 : total;
    for (let key = 0; key < scores.length; key++) {
      weights[key] /= divisor;
    }
    return weights;
  }

  // --- attention.py ----------------------------------------------------------------------------

  // Attention with fewer key than query heads, q and k normed and rotated. Qwen3.5's q_proj gives
  // each head its query and, right behind it, a gate: the head's output is multiplied by
  // sigmoid(gate).
  class Attention {
    constructor(config, weights, layer) {
      const prefix = `model.layers.${layer}.self_attn`;
      const norm = [config.rms_norm_eps, config.is_qwen3_5];
      this.layer = layer; // where the state keeps this layer's keys and values
      this.hidden = config.hidden_size;
      this.heads = config.num_attention_heads;
      this.kv_heads = config.num_key_value_heads;
      this.head_dim = config.head_dim;
      this.scale = Math.pow(config.head_dim, -0.5);
      this.gated = config.is_qwen3_5;
      this.q_proj = weights[`${prefix}.q_proj.weight`];
      this.k_proj = weights[`${prefix}.k_proj.weight`];
      this.v_proj = weights[`${prefix}.v_proj.weight`];
      this.o_proj = weights[`${prefix}.o_proj.weight`];
      this.q_norm = new RMSNorm(weights[`${prefix}.q_norm.weight`], ...norm);
      this.k_norm = new RMSNorm(weights[`${prefix}.k_norm.weight`], ...norm);
    }

    // x (B, W, hidden) to the same.
    forward(x, batch, rotary, how) {
      let q = linear(x, this.q_proj, this.hidden); // (B, W, H, D), or 2 D with a gate
      let k = linear(x, this.k_proj, this.hidden); // (B, W, KVH, D)
      const v = linear(x, this.v_proj, this.hidden);
      let gate = null;
      if (this.gated) {
        [q, gate] = chunk_heads(q, this.head_dim); // within each head
      }
      q = this.q_norm.forward(q);
      k = this.k_norm.forward(k);
      apply_rotary(q, this.heads, this.head_dim, batch.position_ids, rotary);
      apply_rotary(k, this.kv_heads, this.head_dim, batch.position_ids, rotary);
      const cache = batch.update_cache(this.layer, k, v); // each row's (K, KVH, D)
      const out = new Float32Array(q.length); // (B, W, H, D)
      cache.forEach(([keys, values], b) => this.attend(q, keys, values, b, batch, how, out));
      if (gate !== null) {
        for (let i = 0; i < out.length; i++) {
          out[i] *= sigmoid(gate[i]);
        }
      }
      return linear(out, this.o_proj, this.heads * this.head_dim);
    }

    // Row b's part of `out`, by `eager`. keys, values (K, KVH, D).
    attend(q, keys, values, b, batch, how, out) {
      const groups = this.heads / this.kv_heads;
      const size = this.head_dim;
      const num_keys = keys.length / (this.kv_heads * size);
      const seen = batch.watch?.attention[this.layer]?.[b];
      const scores = new Float32Array(num_keys);
      const mean = new Float64Array(size);
      for (let t = 0; t < batch.width; t++) {
        const mask = batch.attention_mask(b, t, num_keys);
        const itself = t + num_keys - batch.width;
        for (let head = 0; head < this.heads; head++) {
          const kv_head = Math.floor(head / groups); // each key head serves `groups` in a row
          const place = ((b * batch.width + t) * this.heads + head) * size;
          for (let key = 0; key < num_keys; key++) {
            const start = (key * this.kv_heads + kv_head) * size;
            scores[key] = dot(q, place, keys, start, size) * this.scale;
          }
          const weights = masked_softmax(scores, mask, how, itself);
          // A hidden key is multiplied too: its weight of 0 times NaN is NaN.
          mean.fill(0);
          for (let key = 0; key < num_keys; key++) {
            const start = (key * this.kv_heads + kv_head) * size;
            const weight = weights[key];
            for (let i = 0; i < size; i++) {
              mean[i] += weight * values[start + i];
            }
          }
          out.set(mean, place);
          seen?.[head].push(weights);
        }
      }
    }
  }

  // x (..., 2 D) to its halves, (..., D) each.
  function chunk_heads(x, size) {
    const halves = [new Float32Array(x.length / 2), new Float32Array(x.length / 2)];
    for (let start = 0; start < x.length; start += 2 * size) {
      halves[0].set(x.subarray(start, start + size), start / 2);
      halves[1].set(x.subarray(start + size, start + 2 * size), start / 2);
    }
    return halves;
  }

  // --- deltanet.py -----------------------------------------------------------------------------

  // Qwen3.5's linear attention: short convolution, gated delta rule, gated norm. Each head keeps a
  // matrix S that answers a key with a value:
  //   S <- e^g S;   d = beta (v - S^T k);   S <- S + k d^T;   o = S^T q
  class DeltaNet {
    constructor(config, weights, layer) {
      const prefix = `model.layers.${layer}.linear_attn`;
      this.layer = layer; // where the state keeps this layer's two tensors
      this.hidden = config.hidden_size;
      this.key_heads = config.linear_num_key_heads;
      this.value_heads = config.linear_num_value_heads;
      this.head_k_dim = config.linear_key_head_dim;
      this.head_v_dim = config.linear_value_head_dim;
      Object.assign(this, linear_widths(config)); // key_width, value_width
      this.channels = 2 * this.key_width + this.value_width;
      this.taps = config.linear_conv_kernel_dim;
      this.in_proj_qkv = weights[`${prefix}.in_proj_qkv.weight`];
      this.in_proj_z = weights[`${prefix}.in_proj_z.weight`];
      this.in_proj_b = weights[`${prefix}.in_proj_b.weight`];
      this.in_proj_a = weights[`${prefix}.in_proj_a.weight`];
      this.conv1d = weights[`${prefix}.conv1d.weight`];
      this.dt_bias = weights[`${prefix}.dt_bias`];
      this.A_log = weights[`${prefix}.A_log`];
      this.norm = new RMSNorm(weights[`${prefix}.norm.weight`], config.rms_norm_eps);
      this.out_proj = weights[`${prefix}.out_proj.weight`];
    }

    // x (B, W, hidden) to the same.
    forward(x, batch) {
      const qkv = linear(x, this.in_proj_qkv, this.hidden); // (B, W, channels)
      const z = linear(x, this.in_proj_z, this.hidden); // (B, W, value heads * Dv)
      const beta = linear(x, this.in_proj_b, this.hidden).map(sigmoid); // (B, W, value heads)
      const g = log_decay(linear(x, this.in_proj_a, this.hidden), this.A_log, this.dt_bias);
      hide_pads(g, batch, this.value_heads); // no decay ...
      hide_pads(beta, batch, this.value_heads); // ... and nothing written leaves S bit-identical
      const out = new Float32Array(z.length); // (B, W, value heads, Dv)
      for (let b = 0; b < batch.rows; b++) {
        this.compute_row(b, qkv, g, beta, batch, out);
      }
      const normed = this.norm.forward(out);
      for (let i = 0; i < normed.length; i++) {
        normed[i] *= silu(z[i]);
      }
      return linear(normed, this.out_proj, this.value_width);
    }

    // Row b's part of `out`, and its new state.
    compute_row(b, qkv, g, beta, batch, out) {
      const row_size = batch.width * this.channels;
      const [conv_state, recurrent_state] = this.read_state(batch, b);
      const inputs = new Float32Array(conv_state.length + row_size); // (taps - 1 + W, channels)
      inputs.set(conv_state);
      inputs.set(qkv.subarray(b * row_size, (b + 1) * row_size), conv_state.length);
      const [q, k, v] = this.split_heads(this.convolve(inputs));
      const served = this.value_heads / this.key_heads;
      const memory_size = this.head_k_dim * this.head_v_dim;
      for (let t = 0; t < batch.width; t++) {
        for (let head = 0; head < this.value_heads; head++) {
          const key_head = Math.floor(head / served); // each key head serves as many in a row
          const key_place = (t * this.key_heads + key_head) * this.head_k_dim;
          const value_place = (t * this.value_heads + head) * this.head_v_dim;
          const place = (b * batch.width + t) * this.value_heads + head;
          const read = delta_step(
            q.subarray(key_place, key_place + this.head_k_dim),
            k.subarray(key_place, key_place + this.head_k_dim),
            v.subarray(value_place, value_place + this.head_v_dim),
            g[place],
            beta[place],
            recurrent_state.subarray(head * memory_size, (head + 1) * memory_size),
          );
          out.set(read, place * this.head_v_dim);
        }
      }
      // The window ends at the row's last real token, so the convolution never sees a pad either.
      this.write_state(batch, b, batch.last_inputs(inputs, b, this.channels), recurrent_state);
    }

    // Causal depthwise convolution and silu: (taps - 1 + W, channels) to (W, channels).
    convolve(inputs) {
      const { channels, taps } = this;
      const mixed = new Float32Array(inputs.length - (taps - 1) * channels);
      for (let place = 0; place < mixed.length; place += channels) {
        for (let channel = 0; channel < channels; channel++) {
          let sum = 0;
          for (let tap = 0; tap < taps; tap++) {
            sum += this.conv1d[channel * taps + tap] * inputs[place + tap * channels + channel];
          }
          mixed[place + channel] = silu(sum);
        }
      }
      return mixed;
    }

    // mixed (W, channels) to q, k (W, key heads, Dk), of length 1, and v (W, value heads, Dv).
    split_heads(mixed) {
      const width = mixed.length / this.channels;
      const q = new Float32Array(width * this.key_width);
      const k = new Float32Array(width * this.key_width);
      const v = new Float32Array(width * this.value_width);
      for (let t = 0; t < width; t++) {
        const start = t * this.channels;
        const keys = start + this.key_width;
        const values = keys + this.key_width;
        q.set(mixed.subarray(start, keys), t * this.key_width);
        k.set(mixed.subarray(keys, values), t * this.key_width);
        v.set(mixed.subarray(values, start + this.channels), t * this.value_width);
      }
      l2norm(q, this.head_k_dim, 1 / Math.sqrt(this.head_k_dim));
      l2norm(k, this.head_k_dim);
      return [q, k, v];
    }

    // conv_state (taps - 1, channels) and recurrent_state (value heads, Dk, Dv), copies.
    read_state(batch, b) {
      if (batch.state === null) {
        const memory = this.value_width * this.head_k_dim;
        return [new Float32Array((this.taps - 1) * this.channels), new Float32Array(memory)];
      }
      const kept = batch.state.layers[this.layer];
      const slot = batch.slots[b];
      return [kept.conv_state[slot], kept.recurrent_state[slot].slice()];
    }

    write_state(batch, b, conv_state, recurrent_state) {
      if (batch.state !== null) {
        const kept = batch.state.layers[this.layer];
        kept.conv_state[batch.slots[b]] = conv_state;
        kept.recurrent_state[batch.slots[b]] = recurrent_state;
      }
    }
  }

  // Zeros at the pads of x (B, W, heads), in place.
  function hide_pads(x, batch, heads) {
    for (let b = 0; b < batch.rows; b++) {
      const start = b * batch.width;
      x.fill(0, (start + batch.num_new_tokens[b]) * heads, (start + batch.width) * heads);
    }
  }

  // x / |x| over the last dimension, times `scale`, in place; 1e-6 is added to the square of |x|.
  function l2norm(x, size, scale = 1) {
    for (let start = 0; start < x.length; start += size) {
      let sum = 1e-6;
      for (let i = start; i < start + size; i++) {
        sum += x[i] * x[i];
      }
      const factor = scale / Math.sqrt(sum);
      for (let i = start; i < start + size; i++) {
        x[i] *= factor;
      }
    }
  }

  // g = -e^A_log softplus(a + dt_bias), never above 0: a (..., heads) to the same.
  function log_decay(a, A_log, dt_bias) {
    const heads = A_log.length;
    return a.map((value, i) => {
      const x = value + dt_bias[i % heads];
      const softplus = x > 20 ? x : Math.log1p(Math.exp(x));
      return -Math.exp(A_log[i % heads]) * softplus;
    });
  }

  // The gated delta rule for one token and head: q, k (Dk,), k of length 1; v (Dv,); memory S
  // (Dk, Dv), changed in place. Returns S^T q (Dv,).
  function delta_step(q, k, v, g, beta, memory) {
    const decay = Math.exp(g);
    const size = v.length;
    const delta = new Float64Array(size);
    for (let row = 0; row < k.length; row++) {
      for (let i = 0; i < size; i++) {
        const place = row * size + i;
        memory[place] *= decay;
        delta[i] += k[row] * memory[place]; // S^T k
      }
    }
    for (let i = 0; i < size; i++) {
      delta[i] = beta * (v[i] - delta[i]);
    }
    const out = new Float64Array(size);
    for (let row = 0; row < k.length; row++) {
      for (let i = 0; i < size; i++) {
        const place = row * size + i;
        memory[place] += k[row] * delta[i]; // S + k d^T
        out[i] += q[row] * memory[place]; // S^T q
      }
    }
    return out;
  }

  // --- model.py --------------------------------------------------------------------------------

  // Attention or DeltaNet, then MLP, each on a normed input and added, in place, to what came in.
  class Layer {
    constructor(config, weights, number) {
      const prefix = `model.layers.${number}`;
      const norm = (name) =>
        new RMSNorm(weights[`${prefix}.${name}.weight`], config.rms_norm_eps, config.is_qwen3_5);
      this.is_linear = config.layer_types[number] === "linear_attention";
      this.input_layernorm = norm("input_layernorm");
      const Mixer = this.is_linear ? DeltaNet : Attention;
      this.mixer = new Mixer(config, weights, number);
      this.post_attention_layernorm = norm("post_attention_layernorm");
      this.mlp = new MLP(config, weights, `${prefix}.mlp`);
    }

    forward(x, batch, rotary, how) {
      add(x, this.mixer.forward(this.input_layernorm.forward(x), batch, rotary, how));
      add(x, this.mlp.forward(this.post_attention_layernorm.forward(x)));
    }
  }

  // A dense Qwen3 or the language model of a Qwen3.5, by its config's layers.
  class Model {
    constructor(config, weights, stop_ids) {
      this.config = config;
      this.stop_ids = new Set(stop_ids);
      this.softmax = "log-sum-exp";
      this.embed_tokens = weights["model.embed_tokens.weight"];
      this.rotary = new Rotary(config);
      this.layers = range(config.num_hidden_layers).map((n) => new Layer(config, weights, n));
      const norm = weights["model.norm.weight"];
      this.norm = new RMSNorm(norm, config.rms_norm_eps, config.is_qwen3_5);
      this.lm_head = config.tie_word_embeddings ? this.embed_tokens : weights["lm_head.weight"];
    }

    // An empty state for `batch_size` rows.
    new_state(batch_size) {
      return new State(this.config, batch_size);
    }

    // Logits for the next token after each real token of this call: see the head of this file.
    forward(input_ids, options = {}) {
      const { attention_mask = null, state = null, rows = null, last_only = false } = options;
      const custom_mask = check_call(input_ids, options, this.config);
      let batch;
      if (custom_mask) {
        const positions = options.position_ids ?? input_ids.map((ids) => range(ids.length));
        batch = ForwardBatch.from_rectangle(input_ids, attention_mask, positions);
      } else {
        batch = ForwardBatch.from_mask(input_ids, attention_mask, state, rows);
      }
      const empty = batch.num_new_tokens.indexOf(0);
      if (state === null && empty >= 0) {
        throw new Error(`row ${empty} has no real token and there is no state`);
      }
      batch.watch = options.watch ?? null;
      return this.compute(batch, last_only);
    }

    // One forward pass over `batch`, whose state it writes. Returns what `forward` returns.
    compute(batch, last_only = false) {
      if (batch.state !== null) {
        batch.slots.forEach((slot, b) => {
          const length = batch.num_computed_tokens[b] + batch.num_new_tokens[b];
          batch.state.make_room(length, slot);
        });
      }
      const hidden = this.hidden(batch); // (B, W, hidden)
      const out = this.logits(last_only ? batch.last_token(hidden) : hidden);
      if (batch.state !== null) {
        batch.slots.forEach((slot, b) => {
          batch.state.lengths[slot] += batch.num_new_tokens[b];
        });
      }
      return last_only ? batch.hide_empty_rows(out) : batch.to_caller(out);
    }

    // Embedding and layers: a batch's ids (B, W) to hidden (B, W, hidden), without the final norm.
    hidden(batch) {
      const size = this.config.hidden_size;
      const ids = batch.input_ids.flat();
      const x = new Float32Array(ids.length * size);
      ids.forEach((id, place) => {
        x.set(this.embed_tokens.subarray(id * size, (id + 1) * size), place * size);
      });
      start_watching(batch, this.config);
      note_finite(batch, x);
      for (const layer of this.layers) {
        layer.forward(x, batch, this.rotary, this.softmax);
        note_finite(batch, x);
      }
      return x;
    }

    // (N, hidden) to (N, vocab).
    logits(hidden) {
      return linear(this.norm.forward(hidden), this.lm_head, this.config.hidden_size);
    }
  }

  function start_watching(batch, config) {
    if (batch.watch === null) {
      return;
    }
    const heads = () => range(config.num_attention_heads).map(() => []);
    batch.watch.finite = [];
    batch.watch.attention = config.layer_types.map((kind) =>
      kind === "full_attention" ? batch.input_ids.map(heads) : null,
    );
  }

  function note_finite(batch, x) {
    if (batch.watch === null) {
      return;
    }
    const tokens = rows_of(x, batch.rows * batch.width);
    const finite = tokens.map((features) => features.every(Number.isFinite));
    const by_row = range(batch.rows).map((b) =>
      finite.slice(b * batch.width, (b + 1) * batch.width),
    );
    batch.watch.finite.push(by_row);
  }

  // Whether the mask is the caller's. Throws for arguments that don't fit each other.
  function check_call(input_ids, options, config) {
    const { attention_mask = null, state = null, position_ids = null } = options;
    const width = input_ids[0]?.length;
    if (!width || input_ids.some((ids) => ids.length !== width)) {
      throw new Error("input_ids is no rectangle, expected B arrays of T ids, T >= 1");
    }
    input_ids.forEach((ids, row) => {
      const wrong = ids.find((id) => !Number.isInteger(id) || id < 0 || id >= config.vocab_size);
      if (wrong !== undefined) {
        const known = `0 to ${config.vocab_size - 1}`;
        throw new Error(`row ${row}: token id ${wrong} is outside the vocabulary (${known})`);
      }
    });
    const custom_mask = attention_mask !== null && Array.isArray(attention_mask[0]?.[0]);
    if (attention_mask !== null) {
      const squares = custom_mask ? attention_mask.map((row) => row[0]) : [attention_mask];
      const tall = custom_mask ? width : input_ids.length;
      const fits = (square) => square.length === tall && square.every((r) => r.length === width);
      if ((custom_mask && squares.length !== input_ids.length) || !squares.every(fits)) {
        throw new Error("attention_mask does not fit input_ids: expected (B, T) or (B, 1, T, T)");
      }
    }
    if (custom_mask && state !== null) {
      throw new Error("a (B, 1, T, T) mask works without a state only: a state hides pads itself");
    }
    if (custom_mask && config.layer_types.includes("linear_attention")) {
      throw new Error("linear attention takes no (B, 1, T, T) mask: give the (B, T) mask");
    }
    if (position_ids !== null && !custom_mask) {
      throw new Error("position_ids needs a (B, 1, T, T) mask beside it");
    }
    return custom_mask;
  }

  // --- loading.py ------------------------------------------------------------------------------

  const loaded = new Map();

  // [model, tokenizer] of a checkpoint that is in the page.
  function load(name) {
    const packed = qwenlab.packed?.[name];
    if (packed === undefined) {
      throw new Error(`no model ${name} in this page: run the cell that shows page_model first`);
    }
    if (loaded.get(name)?.packed !== packed) {
      const model = new Model(packed.config, load_weights(packed), packed.stop_ids);
      loaded.set(name, { packed, pair: [model, new qwenlab.Tokenizer(packed.tokenizer)] });
    }
    return loaded.get(name).pair;
  }

  Object.assign(qwenlab, { VARIANTS, State, ForwardBatch, Model, Rotary, load, load_weights });
  Object.assign(qwenlab, { right_pad, masked_softmax, delta_step, log_decay, l2norm, linear });
})(globalThis.qwenlab);
