// From logits to the next id of every row, as in src/qwenlab/engine/sampling.py: penalty,
// temperature, top-k, top-p, inverse CDF. One uniform number per row decides. It comes from the
// request's own stream, so a row's token depends on its own logits and its own stream only. The
// streams are this file's own: the same seed gives other random numbers than Python does.
//
// What a widget calls (logits: one Float32Array a row, as model.forward(..., {last_only}) gives
// them; requests: one a row, of which are read params {temperature, top_k, top_p,
// repetition_penalty}, rng_key [seed, request, sample], prompt, token_ids, logprobs):
//   qwenlab.sample(logits, requests)             ids (R,)
//   qwenlab.penalise(logits, requests)           logits after the repetition penalty
//   qwenlab.logprobs_of(logits, ids, requests)   log-probabilities (R,)
//   qwenlab.softmax(logits)                      probabilities of one row, as doubles
//   qwenlab.scale(logits, temperature)           (logits - maximum) / temperature, of one row
//   qwenlab.most_probable(scaled, top_k, top_p)  for one row, true at the ids that are kept
//   qwenlab.uniform(rng_key, place)              the number in [0, 1) that decides one token
//   qwenlab.inverse_cdf(probabilities, number)   the id in whose stretch the number falls

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const SMALLEST = 1.1754943508222875e-38; // the smallest normal float32

  // The default sampler. Temperature 0 takes the highest logit. Otherwise: top-k, then top-p over
  // what is left, then a draw.
  function sample(logits, requests) {
    return logits.map((row, r) => {
      const { params, rng_key, logprobs } = requests[r];
      if (params.temperature === 0) {
        return argmax(row);
      }
      const scaled = scale(row, params.temperature);
      const kept = most_probable(scaled, params.top_k, params.top_p);
      const left = scaled.map((value, id) => (kept[id] ? value : -Infinity));
      return inverse_cdf(softmax(left), uniform(rng_key, logprobs.length));
    });
  }

  // The first of equals.
  function argmax(values) {
    let best = 0;
    for (let id = 1; id < values.length; id++) {
      if (values[id] > values[best]) {
        best = id;
      }
    }
    return best;
  }

  function softmax(values) {
    const highest = values.reduce((a, b) => Math.max(a, b), -Infinity);
    const exponents = Float64Array.from(values, (value) => Math.exp(value - highest));
    const total = exponents.reduce((a, b) => a + b, 0);
    return exponents.map((value) => value / total);
  }

  // The number in [0, 1) that decides token `place` of an answer. `rng_key` is [seed, request,
  // sample]. The number belongs to the token's place: a hash of both, 53 bits.
  function uniform(rng_key, place) {
    let high = 0x9e3779b9;
    let low = 0x7f4a7c15;
    for (const number of [...rng_key, place]) {
      high = mixed(high ^ number);
      low = mixed(low ^ Math.floor(number / 2 ** 32) ^ high);
      high = mixed(high + low);
    }
    return ((high >>> 5) * 2 ** 26 + (low >>> 6)) / 2 ** 53;
  }

  // A bijection of 32 bits in which every bit depends on every other (MurmurHash3's last step).
  function mixed(bits) {
    bits = Math.imul(bits ^ (bits >>> 16), 0x85ebca6b);
    bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35);
    return bits ^ (bits >>> 16);
  }

  // Divides positive logits of ids already seen by the row's penalty, multiplies negative ones.
  // Prompt and generated ids count, pads never.
  function penalise(logits, requests) {
    return logits.map((row, r) => {
      const { params, prompt, token_ids } = requests[r];
      const penalty = params.repetition_penalty;
      if (penalty === 1) {
        return row;
      }
      const punished = row.slice();
      for (const id of new Set([...prompt, ...token_ids])) {
        punished[id] = row[id] > 0 ? row[id] / penalty : row[id] * penalty;
      }
      return punished;
    });
  }

  // Log-probability of each row's id under softmax(logits / temperature), 1 where greedy.
  function logprobs_of(logits, ids, requests) {
    return logits.map((row, r) => {
      const scaled = scale(row, requests[r].params.temperature || 1);
      const total = scaled.reduce((sum, value) => sum + Math.exp(value), 0);
      return scaled[ids[r]] - Math.log(total);
    });
  }

  // (logits - their maximum) / temperature. The maximum goes first, so that a tiny temperature
  // can't make the highest logit infinite.
  function scale(logits, temperature) {
    const highest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
    return logits.map((value) => (value - highest) / Math.max(temperature, SMALLEST));
  }

  // True at the ids that top-k and top-p keep; in a tie the lower id comes first.
  function most_probable(scaled, top_k, top_p) {
    const ids = Array.from(scaled.keys());
    const ordered = ids.sort((a, b) => scaled[b] - scaled[a] || a - b); // highest first
    const inside = ordered.slice(0, top_k || scaled.length);
    const probabilities = softmax(inside.map((id) => scaled[id]));
    const kept = new Array(scaled.length).fill(false);
    let before = 0; // what the ids above hold together
    inside.forEach((id, place) => {
      kept[id] = place === 0 || before < top_p || top_p >= 1;
      before += probabilities[place];
    });
    return kept;
  }

  // The id in whose stretch of the line [0, total) the number falls. An id of probability 0 has no
  // stretch, so it is never chosen.
  function inverse_cdf(probabilities, number) {
    const total = probabilities.reduce((a, b) => a + b, 0);
    const point = Math.min(number * total, total - total * Number.EPSILON);
    let end = 0;
    for (let id = 0; id < probabilities.length; id++) {
      end += probabilities[id];
      if (end > point) {
        return id;
      }
    }
    return probabilities.length - 1;
  }

  Object.assign(qwenlab, { sample, argmax, softmax, uniform, penalise, logprobs_of });
  Object.assign(qwenlab, { scale, most_probable, inverse_cdf });
})(globalThis.qwenlab);
