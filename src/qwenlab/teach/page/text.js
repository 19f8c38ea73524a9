// Byte-level BPE and the chat format, as in src/qwenlab/text: text in, token ids out, and back.
//
// What a widget calls (`tokenizer` comes from `qwenlab.load`; ids are plain arrays of numbers):
//   tokenizer.encode(text)                   ids of plain text; "<|im_end|>" in it stays text
//   tokenizer.chat(messages, thinking=true)  ids that end where the assistant's answer starts;
//                                            messages: [{role, content}, ...], role one of
//                                            system, user, assistant, tool
//   tokenizer.next_turn(text, thinking=true) ids that continue a conversation behind an answer
//   tokenizer.decode(ids, skip_control=false)   text; bytes that are not UTF-8 become U+FFFD
//   tokenizer.stream(skip_control=false)     .push(id) and .end() return text as it is certain
//   tokenizer.pad_id, .eos_id (or null), .vocab_size; .control: Map of each control token's id
// Wrong input throws an Error with one line. Names are those of the Python library.

globalThis.qwenlab = globalThis.qwenlab || {};

(function (qwenlab) {
  "use strict";

  const ROLES = ["system", "user", "assistant", "tool"];
  const OPEN = "<think>"; // around what a model thinks before it answers
  const CLOSE = "</think>";

  // --- vocabulary.py ---------------------------------------------------------------------------

  // The table of byte-level BPE: each of the 256 bytes has a printable character that stands for
  // it. Printable bytes stand for themselves, the others take the characters from 256 upwards.
  function byte_of_character() {
    const printable = (byte) =>
      (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    const byte_of = new Map();
    let next = 256;
    for (let byte = 0; byte < 256; byte++) {
      byte_of.set(String.fromCharCode(printable(byte) ? byte : next++), byte);
    }
    return byte_of;
  }

  const BYTE_OF = byte_of_character();
  const CHARACTER_OF = new Map([...BYTE_OF].map(([character, byte]) => [byte, character]));

  // --- chat_template.py ------------------------------------------------------------------------

  function check_messages(messages) {
    if (!Array.isArray(messages) || messages.length === 0) {
      throw new Error("messages is empty or no array, expected at least one {role, content}");
    }
    messages.forEach(({ role, content }, index) => {
      if (!ROLES.includes(role)) {
        throw new Error(`messages[${index}]: role is ${role}, expected one of ${ROLES.join(", ")}`);
      }
      if (typeof content !== "string") {
        throw new Error(`messages[${index}]: content is a ${typeof content}, expected a string`);
      }
    });
  }

  // The template of the shipped models, as pieces: strings are text, {control} a control token.
  function render(messages, thinking) {
    const pieces = [];
    for (const { role, content } of messages) {
      pieces.push({ control: "<|im_start|>" }, `${role}\n`);
      pieces.push(...(role === "assistant" ? answer_pieces(content) : [content]));
      pieces.push({ control: "<|im_end|>" }, "\n");
    }
    pieces.push({ control: "<|im_start|>" }, "assistant\n");
    if (!thinking) {
      pieces.push({ control: OPEN }, "\n\n", { control: CLOSE }, "\n\n");
    }
    return pieces;
  }

  // An earlier answer: what it thought is dropped, and a mark that is left over is no text.
  function answer_pieces(content) {
    if (content.includes(CLOSE)) {
      content = content.split(CLOSE).at(-1).replace(/^\n+/, "");
    }
    const pieces = [];
    content.split(OPEN).forEach((text, number) => {
      if (number > 0) {
        pieces.push({ control: OPEN });
      }
      pieces.push(text);
    });
    return pieces;
  }

  // --- tokenizer.py ----------------------------------------------------------------------------

  // `spec` is what qwenlab.teach.in_page packs: tokens by id, merges in order, control tokens, and
  // the pattern that splits text, with the character classes that it names.
  class Tokenizer {
    constructor(spec) {
      this.text_of = spec.tokens; // by id; null for an id that the tokenizer doesn't have
      this.control = new Map(Object.entries(spec.control));
      this.special = new Set(spec.special);
      this.pad_id = spec.pad_id;
      this.eos_id = spec.eos_id;
      this.vocab_size = spec.vocab_size;
      this.has_template = spec.chat;
      this.normal_form = spec.normal_form; // "NFC", or null
      this.literal = new Set(this.control.values()); // spelled as they are, not byte by byte
      this.id_of = new Map();
      spec.tokens.forEach((text, id) => {
        if (text !== null && !this.literal.has(id)) {
          this.id_of.set(text, id);
        }
      });
      this.rank_of = new Map(spec.merges.map((pair, rank) => [pair, rank]));
      this.pattern = split_pattern(spec.split, spec.classes);
      this.known = new Map(); // ids of each piece that was met before
    }

    // Ids of plain text: "<|im_end|>" in it gives the ids of its letters.
    encode(text) {
      if (typeof text !== "string") {
        throw new Error(`encode takes a string, not a ${typeof text}`);
      }
      if (!text.isWellFormed()) {
        throw new Error("text holds half a surrogate pair");
      }
      const ids = [];
      for (const piece of this.split(this.normal_form ? text.normalize(this.normal_form) : text)) {
        ids.push(...this.ids_of_piece(piece));
      }
      return ids;
    }

    // Ids of a conversation, ending where the assistant's answer starts.
    chat(messages, thinking = true) {
      check_messages(messages);
      return this.ids_of_pieces(this.rendered(messages, thinking));
    }

    // Ids that continue a conversation behind an answer: the answer's end, a user's `text`, the
    // start of the next answer.
    next_turn(text, thinking = true) {
      const turn = { role: "user", content: text };
      check_messages([turn]);
      const start = [{ control: "<|im_end|>" }, "\n"];
      return this.ids_of_pieces([...start, ...this.rendered([turn], thinking)]);
    }

    rendered(messages, thinking) {
      if (!this.has_template) {
        throw new Error("this checkpoint has no chat template");
      }
      return render(messages, thinking);
    }

    // Ids of what a template wrote. Text that nothing separates is encoded as one.
    ids_of_pieces(pieces) {
      const ids = [];
      let text = "";
      for (const piece of pieces) {
        if (typeof piece === "string") {
          text += piece;
        } else {
          ids.push(...this.encode(text), this.control.get(piece.control));
          text = "";
        }
      }
      ids.push(...this.encode(text));
      return ids;
    }

    // Text of `ids`. Bytes that are not UTF-8 become U+FFFD, as do ids without a token.
    decode(ids, skip_control = false) {
      const stream = this.stream(skip_control);
      let text = "";
      for (const id of ids) {
        text += stream.push(id);
      }
      return text + stream.end();
    }

    stream(skip_control = false) {
      return new Stream(this, skip_control);
    }

    // The bytes that one id stands for: often a word, sometimes a part of a character.
    bytes_of(id, skip_control = false) {
      if (!Number.isInteger(id) || id < 0 || id >= this.vocab_size) {
        throw new Error(`token id ${id} is outside the vocabulary of ${this.vocab_size}`);
      }
      if (skip_control && this.special.has(id)) {
        return new Uint8Array();
      }
      const text = this.text_of[id] ?? null;
      if (text === null || this.literal.has(id)) {
        return new TextEncoder().encode(text ?? "\ufffd");
      }
      return Uint8Array.from(text, (character) => BYTE_OF.get(character));
    }

    // Words, digits, newlines and so on, each by itself: tokens never reach across.
    split(text) {
      const pieces = [];
      let end = 0;
      for (const match of text.matchAll(this.pattern)) {
        if (match.index > end) {
          pieces.push(text.slice(end, match.index));
        }
        pieces.push(match[0]);
        end = match.index + match[0].length;
      }
      if (end < text.length) {
        pieces.push(text.slice(end));
      }
      return pieces;
    }

    ids_of_piece(piece) {
      if (!this.known.has(piece)) {
        const bytes = new TextEncoder().encode(piece);
        const characters = Array.from(bytes, (byte) => CHARACTER_OF.get(byte));
        const ids = this.merged(characters).map((text) => this.id_of.get(text));
        this.known.set(piece, ids);
      }
      return this.known.get(piece);
    }

    // Joins neighbours, always the pair that was learned first and the leftmost of equals.
    merged(parts) {
      for (;;) {
        let lowest = Infinity;
        let place = -1;
        for (let i = 0; i + 1 < parts.length; i++) {
          const rank = this.rank_of.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
          if (rank < lowest) {
            lowest = rank;
            place = i;
          }
        }
        if (place < 0) {
          return parts;
        }
        parts.splice(place, 2, parts[place] + parts[place + 1]);
      }
    }
  }

  // Ids in, text out, as soon as it is certain: the first bytes of a character wait for the last.
  class Stream {
    constructor(tokenizer, skip_control) {
      this.tokenizer = tokenizer;
      this.skip_control = skip_control;
      this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    }

    push(id) {
      const bytes = this.tokenizer.bytes_of(id, this.skip_control);
      return this.decoder.decode(bytes, { stream: true });
    }

    end() {
      return this.decoder.decode();
    }
  }

  // The tokenizer's pattern for a browser. What counts as white space, letter or number is packed
  // with it: JavaScript's \s differs, and its Unicode tables are of another year.
  function split_pattern(source, classes) {
    for (const [name, ranges] of Object.entries(classes)) {
      source = source.replaceAll(name, `[${ranges}]`);
      source = source.replaceAll(name.replace("\\s", "\\S").replace("\\p", "\\P"), `[^${ranges}]`);
    }
    return new RegExp(source, "gv");
  }

  Object.assign(qwenlab, { Tokenizer, Stream, byte_of_character });
})(globalThis.qwenlab);
