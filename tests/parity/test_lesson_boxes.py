"""What the boxes "In transformers" of the lessons say happens in transformers itself."""

import pytest
import torch
from small_qwen3 import small_qwen3

transformers = pytest.importorskip("transformers")

PAD, STOP, NEW = 0, 1, 8
SHORT = [5, 6, 7]
LONG = [9, 8, 7, 6, 5, 4, 3, 2]


@pytest.fixture(scope="module")
def model():
    return small_qwen3()


@pytest.fixture
def warnings(monkeypatch):
    """What generate warns of."""
    told = []
    logger = transformers.generation.utils.logger
    for name in ("warning", "warning_once"):
        monkeypatch.setattr(logger, name, lambda text, *given: told.append(text))
    return told


def generated(model, rows, mask=None, stops=(STOP,)) -> list[list[int]]:
    model.generation_config.pad_token_id = PAD
    model.generation_config.eos_token_id = list(stops)
    given = torch.tensor(rows)
    options = {} if mask is None else {"attention_mask": torch.tensor(mask)}
    ids = model.generate(given, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, **options)
    return ids[:, given.shape[1] :].tolist()


def alone(model) -> list[list[int]]:
    answers = []
    for ids in (SHORT, LONG):
        answers += generated(model, [ids], [[1] * len(ids)])
    return answers


GAP = len(LONG) - len(SHORT)
LEFT = [[PAD] * GAP + SHORT, LONG]
LEFT_MASK = [[0] * GAP + [1] * len(SHORT), [1] * len(LONG)]
RIGHT = [SHORT + [PAD] * GAP, LONG]
RIGHT_MASK = [[1] * len(SHORT) + [0] * GAP, [1] * len(LONG)]


def test_pads_on_the_left_with_their_mask_give_the_answers_alone(model, warnings):
    assert generated(model, LEFT, LEFT_MASK) == alone(model)
    assert warnings == []


def test_pads_on_the_right_are_warned_of_and_spoil_the_short_row_only(model, warnings):
    short, long = alone(model)
    answers = generated(model, RIGHT, RIGHT_MASK)
    assert answers[1] == long and answers[0] != short
    message = "A decoder-only architecture is being used, but right-padding was detected!"
    assert any(text.startswith(message) for text in warnings)


def test_without_a_mask_a_pad_that_is_a_stop_token_is_read(model, warnings):
    short, long = alone(model)
    answers = generated(model, LEFT, stops=(STOP, PAD))
    assert answers[1] == long and answers[0] != short
    assert any(
        "cannot be inferred from input because pad token is same as eos" in w for w in warnings
    )


def test_without_a_mask_another_pad_is_hidden_by_its_id_and_real_tokens_with_it(model, warnings):
    assert generated(model, LEFT) == alone(model)
    with_pad_id = [[9, 8, PAD, *SHORT]]
    assert generated(model, with_pad_id) != generated(model, with_pad_id, [[1] * 6])
    assert warnings == []


def test_a_pipeline_answers_a_list_one_by_one_unless_it_has_a_batch_size(model, monkeypatch):
    pipe = transformers.TextGenerationPipeline(model=model, tokenizer=small_tokenizer())
    rows = []
    generate = model.generate

    def counted(*given, **options):
        rows.append(len(options["input_ids"]))
        return generate(*given, **options)

    monkeypatch.setattr(model, "generate", counted)
    texts = ["5 6 7", "9 8", "4", "3 2"]
    pipe(texts, max_new_tokens=1)
    assert rows == [1, 1, 1, 1]
    rows.clear()
    pipe(texts, max_new_tokens=1, batch_size=4)
    assert rows == [4]


def test_the_chat_template_takes_no_padding_side_and_does_not_say_so(recwarn):
    tokenizer = small_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    chats = [[{"role": "user", "content": text}] for text in ("5 6", "7 8 9 10")]

    def first_mask(**options) -> list[int]:
        return tokenizer.apply_chat_template(chats, padding=True, **options)["attention_mask"][0]

    tokenizer.padding_side = "right"
    assert (first_mask(padding_side="left")[0], first_mask(padding_side="left")[-1]) == (1, 0)
    tokenizer.padding_side = "left"
    assert (first_mask()[0], first_mask()[-1]) == (0, 1)
    assert len(recwarn) == 0


def test_generate_counts_real_tokens_and_a_call_of_the_model_counts_columns(model, monkeypatch):
    positions = []
    rotary = model.model.rotary_emb.forward

    def noted(x, position_ids):
        positions.append(position_ids.tolist())
        return rotary(x, position_ids)

    monkeypatch.setattr(model.model.rotary_emb, "forward", noted)
    columns = list(range(len(LONG)))
    model(torch.tensor(LEFT), attention_mask=torch.tensor(LEFT_MASK))
    assert positions.pop() == [columns]
    generated(model, LEFT, LEFT_MASK)
    assert positions[0] == [[0] * GAP + columns[: len(SHORT)], columns]


def own_loop(model, grow) -> list[list[int]]:
    """Cached steps by hand; grow(mask) is the mask of a step after that of the step before."""
    ids, mask = torch.tensor(LEFT), torch.tensor(LEFT_MASK)
    cache = transformers.DynamicCache()
    answers = []
    with torch.no_grad():
        for _ in range(NEW):
            ids = model(ids, attention_mask=mask, cache=cache).logits[:, -1:].argmax(-1)
            answers.append(ids)
            mask = grow(mask)
    return torch.cat(answers, dim=1).tolist()


def test_a_loop_of_ones_own_needs_the_mask_of_all_keys_at_every_step(model):
    short, long = own_loop(
        model, lambda mask: torch.cat([mask, torch.ones(2, 1, dtype=torch.int64)], dim=1)
    )
    forgot, unpadded = own_loop(model, lambda mask: None)
    assert forgot[0] == short[0] and forgot != short
    assert unpadded == long


def test_a_cache_loses_the_rows_that_are_not_selected(model):
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model(torch.tensor(LEFT), attention_mask=torch.tensor(LEFT_MASK), cache=cache)
    keys = cache.layers[0].keys.clone()
    cache.batch_select_indices(torch.tensor([1]))
    assert torch.equal(cache.layers[0].keys, keys[1:])


def small_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({str(i): i for i in range(64)}, unk_token="2"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="0", eos_token="1", padding_side="left"
    )


# --- Lesson 12: samples that vote ---


def test_samples_need_do_sample_and_stand_together_by_prompt(model):
    given = torch.tensor([SHORT, SHORT[::-1]])
    options = {"attention_mask": torch.ones_like(given), "pad_token_id": PAD, "max_new_tokens": 2}
    with pytest.raises(ValueError, match="do not support `num_return_sequences`"):
        model.generate(given, num_return_sequences=3, **options)
    with pytest.raises(ValueError, match="seed"):
        model.generate(given, do_sample=True, seed=0, **options)
    rows = model.generate(given, do_sample=True, num_return_sequences=3, **options)
    assert rows[:, : len(SHORT)].tolist() == [SHORT] * 3 + [SHORT[::-1]] * 3


def test_a_seed_set_before_each_call_gives_one_sample_many_times(model):
    def samples(rows, n):
        transformers.set_seed(0)
        given = torch.tensor(rows)
        options = {"attention_mask": torch.ones_like(given), "pad_token_id": PAD}
        options |= {"max_new_tokens": NEW, "do_sample": True, "num_return_sequences": n}
        return model.generate(given, **options)[:, given.shape[1] :].tolist()

    assert samples([SHORT], 1) == samples([SHORT], 1)
    together = samples([SHORT], 4)
    assert together == samples([SHORT], 4) and len(set(map(tuple, together))) > 1
    assert samples([SHORT, SHORT[::-1]], 4)[:4] != together  # a neighbour draws, too


# --- Lesson 14: labels ---


def test_14_labels_are_shifted_by_the_model_and_minus_100_does_not_count(model):
    ids = torch.tensor([[9, 8, 7, 6, 5], [3, 4, 5, 6, 7]])
    labels = ids.clone()
    labels[:, :2] = -100  # prompts
    labels[1, 4] = -100  # a pad
    logits = model(input_ids=ids).logits.log_softmax(-1)
    chances = [logits[row, t - 1, ids[row, t]] for row in (0, 1) for t in range(2, 5 - row)]
    with torch.no_grad():
        loss = model(input_ids=ids, labels=labels).loss
        assert torch.allclose(loss, -torch.stack(chances).mean(), atol=1e-5)
        parts = []
        for how in ({}, {"num_items_in_batch": 5}):
            losses = []
            for row in ([0], [1]):
                losses.append(model(input_ids=ids[row], labels=labels[row], **how).loss)
            parts.append(torch.stack(losses))
    assert torch.allclose(parts[1].sum(), loss, atol=1e-5)
    assert not torch.allclose(parts[0].mean(), loss, atol=1e-4)  # a mean of means


def test_14_labels_made_from_ids_ignore_a_stop_that_is_the_pad():
    tokenizer = small_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    ids = [[5, 6, STOP], [5, 6, 7, 8, STOP]]
    given = [{"input_ids": row, "labels": [-100, -100, *row[2:]]} for row in ids]
    mine = transformers.DataCollatorForSeq2Seq(tokenizer)(given)["labels"]
    assert mine[0].tolist() == [-100, -100, STOP, -100, -100] and mine[1, -1] == STOP
    made = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    assert not (made([{"input_ids": row} for row in ids])["labels"] == STOP).any()


# --- Lesson 15: what generate's cache takes ---


def shapes_over_steps(model, monkeypatch, kind, **options):
    """(rows, tokens) that the first layer's keys have room for, after each pass."""
    layer = getattr(transformers.cache_utils, kind)
    update = layer.update
    seen = {}

    def noted(self, *given, **named):
        result = update(self, *given, **named)
        seen.setdefault(id(self), []).append(tuple(self.keys.shape[::2]))
        return result

    monkeypatch.setattr(layer, "update", noted)
    options |= {"pad_token_id": PAD, "eos_token_id": STOP, "do_sample": False}
    given = {"attention_mask": torch.tensor(LEFT_MASK), **options}
    model.generate(torch.tensor(LEFT), max_new_tokens=NEW, min_new_tokens=NEW, **given)
    return next(iter(seen.values()))


def test_15_every_row_s_cache_is_as_wide_as_the_longest_and_grows_at_each_step(model, monkeypatch):
    found = shapes_over_steps(model, monkeypatch, "DynamicLayer")
    assert found == [(2, len(LONG) + step) for step in range(NEW)]


def test_15_a_static_cache_is_made_whole_in_the_first_pass(model, monkeypatch):
    found = shapes_over_steps(model, monkeypatch, "StaticLayer", cache_implementation="static")
    assert set(found) == {(2, len(LONG) + NEW - 1)} and len(found) == NEW


# --- Lesson 16: bits ---


def test_16_deterministic_algorithms_change_no_bit_and_generate_has_no_option_for_it(model):
    """Whether a row's bits depend on its neighbours is the kernels' affair, before and after."""
    rows = torch.tensor([[5]] * 8)

    def logits():
        with torch.no_grad():
            return [model(rows[:count]).logits for count in (1, 8)]

    before = logits()
    torch.use_deterministic_algorithms(True)
    try:
        after = logits()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, before, after))
    assert not any("invarian" in option for option in vars(model.generation_config))
