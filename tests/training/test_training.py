"""What trainings share: log-probabilities in pieces, checkpoints, metrics, Ctrl-C, and a run that
is killed."""

import csv
import json
import random
import signal
from types import SimpleNamespace

import pytest
import torch
from forks import Forked, run_command
from helpers import FAMILIES, count, difference, random_prompts, rectangle
from small_checkpoint import write_small_checkpoint

import qwenlab
from qwenlab.fast import linear
from qwenlab.run_folder import RunFolder, RunFolderError
from qwenlab.training import trainer as training
from qwenlab.training.trainer import (
    Training,
    TrainingError,
    last_checkpoint,
    read_metrics,
    run_settings,
    token_logprobs,
)

# --- Log-probabilities -----------------------------------------------------------------------------------------------


def slow_logprobs(model, rows, said, temperature):
    """Of the last `said[i]` tokens of each row by itself, from all its logits."""
    found = []
    for row, many in zip(rows, said, strict=True):
        logs = (model(torch.tensor([row]))[0] / temperature).log_softmax(-1)
        found += [logs[place - 1, row[place]] for place in range(len(row) - many, len(row))]
    return torch.stack(found)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("piece", [None, 1, 4, 1000])
def test_token_logprobs_are_those_of_each_row_alone(model, side, piece):
    rng = random.Random(piece)
    rows = [row + row for row in random_prompts(rng, 5, 9)]
    said = [rng.randint(1, len(row) - 1) for row in rows]
    ids, mask = rectangle(rows, 20, side, pad=301)
    wanted = torch.zeros_like(mask)
    for row, many in enumerate(said):
        wanted[row, mask[row].nonzero()[-many:, 0]] = True
    learner = type(model)(model.config)
    learner.load_state_dict(model.state_dict())
    slow = slow_logprobs(learner, rows, said, 0.7)
    (slow**2).sum().backward()
    expected = [parameter.grad for parameter in learner.parameters()]
    learner.zero_grad()
    found = token_logprobs(learner, ids, mask, wanted, temperature=0.7, piece=piece)
    assert found.shape == ids.shape and (found[~wanted] == 0).all()
    assert difference(found[wanted].detach(), slow.detach()) <= 1e-5
    (found**2).sum().backward()
    for parameter, gradient in zip(learner.parameters(), expected, strict=True):
        assert difference(parameter.grad, gradient) <= 1e-4


def test_no_more_logits_than_a_piece_are_ever_held(dense, monkeypatch):
    """In training as well, where they are computed again; by itself a piece is so large that 2**25
    numbers fit."""
    sizes, real = [], dense.logits
    monkeypatch.setattr(dense, "logits", lambda hidden: sizes.append(len(hidden)) or real(hidden))
    ids = torch.randint(0, 300, (3, 11))
    wanted = torch.ones_like(ids, dtype=torch.bool)
    wanted[:, 0] = False
    dense.requires_grad_(True)
    token_logprobs(dense, ids, None, wanted, piece=7).sum().backward()
    dense.requires_grad_(False).zero_grad()
    assert sizes == [7, 7, 7, 7, 2, 2, 7, 7, 7, 7]
    sizes.clear()
    monkeypatch.setattr(training, "LOGITS", 320 * 12)
    token_logprobs(dense, ids, None, wanted)
    assert sizes == [12, 12, 6]


def test_a_model_that_is_sure_of_the_next_id_has_logprobs_of_0():
    """All its mass is on id + 1, so prompt [1] and completion [2, 3, 4] have log-probabilities
    0."""

    class Next(SimpleNamespace):
        def __call__(self, input_ids, attention_mask, hidden_only):
            return input_ids[..., None].float()

        def logits(self, hidden):
            return torch.nn.functional.one_hot(hidden[:, 0].long() + 1, 8) * 100.0

    model = Next(device="cpu", config=SimpleNamespace(vocab_size=8))
    ids, wanted = (
        torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]]),
        torch.tensor([[False, True, True, True]] * 2),
    )
    found = token_logprobs(model, ids, None, wanted)
    assert found.tolist() == [[0, 0, 0, 0], [0, 0, 0, -100]]


def test_tokens_without_a_past_are_refused(dense):
    ids = torch.ones(2, 4, dtype=torch.int64)
    mask = torch.tensor([[True] * 4, [False, True, True, True]])
    for row, column in ((0, 0), (1, 0), (1, 1)):
        wanted = torch.zeros(2, 4, dtype=torch.bool)
        wanted[row, column] = True
        with pytest.raises(ValueError, match=f"row {row}: the wanted token {column}"):
            token_logprobs(dense, ids, mask, wanted)
    with pytest.raises(ValueError, match="temperature is 0"):
        token_logprobs(dense, ids, mask, wanted & False, temperature=0)


@pytest.mark.parametrize("last_only", [False, True])
def test_hidden_only_is_what_logits_are_made_of(model, last_only):
    ids, mask = rectangle(random_prompts(random.Random(1), 3, 9), 10, "left", 301)
    state = model.new_state(3)
    calls = [(ids, mask), (ids, mask, state)]
    if "linear_attention" not in model.config.layer_types:
        calls.append((ids, torch.ones(3, 1, 10, 10, dtype=torch.bool).tril()))
    for call in calls:
        with torch.no_grad():
            hidden = model(*call, last_only=last_only, hidden_only=True)
            state.reset([0, 1, 2])
            logits = model(*call, last_only=last_only)
        real = slice(None) if last_only or call[1].dim() == 4 else mask
        assert hidden.shape == (*logits.shape[:-1], model.config.hidden_size)
        assert (
            difference(model.logits(hidden[real].flatten(0, -2)), logits[real].flatten(0, -2))
            <= 1e-5
        )


# --- Steps, checkpoints, metrics --------------------------------------------------------------------------------------


@pytest.fixture(params=FAMILIES)
def checkpoint(tmp_path, request):
    if request.param == "dense":
        return write_small_checkpoint(tmp_path / "model")
    linear_layers = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
    }
    linear_layers |= {
        "linear_value_head_dim": 12,
        "linear_conv_kernel_dim": 4,
        "tie_word_embeddings": False,
    }
    kinds = ["linear_attention", "full_attention"]
    return write_small_checkpoint(
        tmp_path / "model", model_type="qwen3_5_text", layer_types=kinds, **linear_layers
    )


def learn(checkpoint, folder, steps, fail=None, **options):
    """A training on random ids that follow from the step; `fail(step)` may do harm in the middle of
    one."""
    model, _ = qwenlab.load(checkpoint, torch.float32, "cpu")
    with RunFolder(folder, run_settings(model, [], 0)) as held:
        run = Training(model, held, lr=1e-2)

        def one_step(step):
            (answer,) = qwenlab.generate(
                model, [[1 + step, 2, 3]], max_new_tokens=6, temperature=1.0, seed=step, stop=()
            )
            ids = torch.tensor([answer.prompt + answer.token_ids])
            loss = -token_logprobs(model, ids, None, torch.arange(9)[None] > 2).mean()
            loss.backward()
            if fail:
                fail(step)
            return {"loss": loss.item(), "norm": run.update()}

        run.run(one_step, steps=steps, **options)
    return model


def same(model, other):
    return all(map(torch.equal, model.parameters(), other.parameters()))


def losses(folder):
    return [(record["step"], record["loss"]) for record in read_metrics(folder)]


def test_a_run_goes_on_bit_by_bit(checkpoint, tmp_path):
    whole = learn(checkpoint, tmp_path / "whole", 7, save_every=3)
    for steps in (2, 3, 3, 7):
        parts = learn(checkpoint, tmp_path / "parts", steps, save_every=2)
    assert same(whole, parts) and losses(tmp_path / "whole") == losses(tmp_path / "parts")
    assert last_checkpoint(tmp_path / "parts").name == "step-000007"
    loaded, _ = qwenlab.load(last_checkpoint(tmp_path / "parts"), torch.float32, "cpu")
    assert same(whole, loaded) and not same(
        whole, qwenlab.load(checkpoint, torch.float32, "cpu")[0]
    )
    kept = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert set(kept) - {"run.lock"} == {"metrics.csv", "metrics.jsonl", "run.json", "step-000007"}


def test_measured_kernels_change_nothing(checkpoint, tmp_path, monkeypatch):
    first = learn(checkpoint, tmp_path / "first", 3)
    monkeypatch.setattr(linear, "choose", lambda rows, weight: linear.forced() or "transposed")
    linear.known.clear()
    assert same(first, learn(checkpoint, tmp_path / "second", 3)) and not linear.known
    assert linear.forced() is None


def test_steps_behind_the_checkpoint_are_taken_back(checkpoint, tmp_path):
    def die(step):
        if step == 4:
            raise RuntimeError("as if killed")

    with pytest.raises(RuntimeError):
        learn(checkpoint, tmp_path / "run", 6, fail=die, save_every=3)
    for name in (
        "step-000006.part",
        "step-000001",
    ):  # what a kill leaves of one half written, and of one half removed
        (tmp_path / "run" / name).mkdir()
    assert (
        last_checkpoint(tmp_path / "run").name == "step-000003"
        and len(read_metrics(tmp_path / "run")) == 4
    )
    again = learn(checkpoint, tmp_path / "run", 6, save_every=3)
    assert same(again, learn(checkpoint, tmp_path / "whole", 6)) and losses(
        tmp_path / "run"
    ) == losses(tmp_path / "whole")


def test_metrics_are_written_as_it_goes_twice_over(checkpoint, tmp_path):
    seen = []
    learn(
        checkpoint,
        tmp_path / "run",
        3,
        fail=lambda step: step and seen.append(len(read_metrics(tmp_path / "run"))),
    )
    assert seen == [1, 2]
    with (tmp_path / "run" / "metrics.csv").open(newline="", encoding="utf-8") as file:
        table = [
            {name: float(value) for name, value in record.items()}
            for record in csv.DictReader(file)
        ]
    assert table == read_metrics(tmp_path / "run") and list(table[0]) == [
        "step",
        "loss",
        "norm",
        "seconds",
    ]


def test_a_full_disk_leaves_the_checkpoint_before(checkpoint, tmp_path, monkeypatch):
    real = training.save_checkpoint

    def full(model, folder):
        if "000004" in folder.name:
            (folder / "model.safetensors").write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(model, folder)

    monkeypatch.setattr(training, "save_checkpoint", full)
    with pytest.raises(
        RunFolderError, match=r"step-000004: can't be written \(No space left on device\)"
    ):
        learn(checkpoint, tmp_path / "run", 6, save_every=2)
    assert [path.name for path in (tmp_path / "run").glob("step-*")] == ["step-000002"]
    monkeypatch.setattr(training, "save_checkpoint", real)
    assert same(learn(checkpoint, tmp_path / "run", 6), learn(checkpoint, tmp_path / "whole", 6))


def test_minutes_count_what_was_spent_before(checkpoint, tmp_path):
    learn(checkpoint, tmp_path / "run", 9, minutes=1e-9)
    assert len(read_metrics(tmp_path / "run")) == 1
    learn(checkpoint, tmp_path / "run", 9, minutes=1e-9)
    assert len(read_metrics(tmp_path / "run")) == 1
    learn(checkpoint, tmp_path / "run", 3, minutes=10)
    assert len(read_metrics(tmp_path / "run")) == 3


def test_a_gradient_that_is_not_finite_changes_no_weight(checkpoint, tmp_path):
    model, _ = qwenlab.load(checkpoint, torch.float32, "cpu")
    before = [parameter.clone() for parameter in model.parameters()]
    run = Training(model, None, lr=1.0)
    model.requires_grad_(True)
    (model(torch.tensor([[1, 2]])).sum() * float("inf")).backward()
    with pytest.raises(TrainingError, match="step 0: the gradient's norm is"):
        run.update()
    assert all(map(torch.equal, before, model.parameters()))


def test_gradients_are_clipped_and_the_rate_may_change(checkpoint):
    model, _ = qwenlab.load(checkpoint, torch.float32, "cpu")
    run = Training(model, None, lr=1e-3, clip=1.0)
    model.requires_grad_(True)
    (model(torch.tensor([[1, 2]])).sum() * 1e3).backward()
    seen = []
    run.optimiser.register_step_pre_hook(
        lambda *_: seen.append(
            torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
        )
    )
    assert run.update(lr=5e-4) > 1 and seen == [pytest.approx(1.0, rel=1e-3)]
    assert run.optimiser.param_groups[0]["lr"] == 5e-4 and all(
        p.grad is None for p in model.parameters()
    )


def test_settings_change_with_any_weight_and_any_problem(checkpoint):
    model, _ = qwenlab.load(checkpoint, torch.float32, "cpu")
    before = run_settings(model, [[1, "2"]], 1, lr=1)
    assert before == run_settings(model, [[1, "2"]], 1, lr=1) and before["lr"] == 1
    assert before["problems"] != run_settings(model, [[1, "3"]], 1)["problems"]
    with torch.no_grad():
        next(iter(model.parameters())).view(-1)[-1] += 1
    assert before["model"] != run_settings(model, [], 0)["model"]
    with pytest.raises(TrainingError, match="bfloat16"):
        run_settings(model.bfloat16(), [], 0)


def test_a_folder_without_steps_says_so(tmp_path):
    with pytest.raises(TrainingError, match=r"metrics\.jsonl"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(TrainingError, match="no step was finished"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\nx\n', encoding="utf-8")
    with pytest.raises(TrainingError, match="line 2"):
        read_metrics(tmp_path)


# --- Ctrl-C and kill --------------------------------------------------------------------------------------------------


def test_ctrl_c_lets_the_step_end_and_saves(checkpoint, tmp_path, caplog):
    def interrupt(step):
        if step == 1:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        learn(checkpoint, tmp_path / "run", 5, fail=interrupt)
    said = "\n".join(caplog.messages)
    assert (
        "saved after 2 steps; the same settings resume from there" in said
        and "finishing this step" in said
    )
    assert (
        signal.getsignal(signal.SIGINT) is before
        and last_checkpoint(tmp_path / "run").name == "step-000002"
    )
    assert same(learn(checkpoint, tmp_path / "run", 5), learn(checkpoint, tmp_path / "whole", 5))


def test_a_second_ctrl_c_stops_at_once(checkpoint, tmp_path):
    def interrupt(step):
        if step == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        learn(checkpoint, tmp_path / "run", 5, fail=interrupt, save_every=2)
    assert last_checkpoint(tmp_path / "run").name == "step-000002"
    assert same(learn(checkpoint, tmp_path / "run", 5), learn(checkpoint, tmp_path / "whole", 5))


COMMAND = "--data tiny-train --lr 1e-3 --num-rollouts 4 --prompts-per-step 3 --batch-size 12 --max-new-tokens 40"
COMMAND += " --steps 6 --save-every 2 --threads 1 --device cpu"


def grpo(folder, **options) -> Forked:
    """The command, begun in a process of its own."""
    arguments = ["grpo", "--model", "tiny-base", "--output", folder, *COMMAND.split()]
    streams = (None, folder.with_name("said"), folder.with_name("told"))
    return Forked(run_command, *arguments, folder=folder, streams=streams, **options)


def written(folder):
    """All that a run leaves behind but its times."""
    records = [{k: v for k, v in r.items() if "second" not in k} for r in read_metrics(folder)]
    checkpoint = last_checkpoint(folder)
    return records, {path.name: path.read_bytes() for path in checkpoint.iterdir()}, checkpoint.name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run that nobody stopped has written, and its operations on files."""
    run = grpo(tmp_path_factory.mktemp("whole") / "run")
    assert run.end() == 0
    expected = written(run.folder)
    assert len(expected[0]) == 6 and expected[2] == "step-000006"
    return expected, run.places


@pytest.mark.parametrize("trial", range(count(2, 20)))
def test_a_killed_run_ends_with_the_same_weights(whole, tmp_path, trial):
    """`qwenlab grpo`, killed before a place or halfway through writing a file, then the same
    command."""
    expected, places = whole
    rng = random.Random(trial)
    torn = rng.randrange(1, rng.choice([500, 500_000])) if trial % 2 else None
    # A file is torn only if one that large is still to come: the second half has a checkpoint.
    until = len(places) - 1 if torn is None else len(places) // 2
    killed = grpo(tmp_path / "run", signal_at=rng.randrange(until), torn=torn)
    assert killed.end() == (-signal.SIGKILL if torn is None else -signal.SIGXFSZ)
    assert grpo(tmp_path / "run").end() == 0
    assert written(tmp_path / "run") == expected, f"killed after {killed.places}"


def test_ctrl_c_of_the_command_is_status_130(whole, tmp_path):
    removal = whole[1].index("os.rmdir")  # of the first checkpoint, after the second, of step 4
    run = grpo(tmp_path / "run", signal_at=removal, signal_number=signal.SIGINT)
    assert run.end() == 130
    err = (tmp_path / "told").read_text(encoding="utf-8")
    assert "resume from there" in err and "Traceback" not in err
    done = len(read_metrics(tmp_path / "run"))
    assert last_checkpoint(tmp_path / "run").name == f"step-{done:06}" and done < 6
    assert json.loads(
        (last_checkpoint(tmp_path / "run") / "training.json").read_text(encoding="utf-8")
    ) == {"step": done}
