"""Actors of Ray in the model's place, with a stand-in for Ray in this process: tests/scale has the
real one."""

import random
import sys
from types import ModuleType, SimpleNamespace

import pytest

from qwenlab.evaluation import evaluate, load_problems, ray_actors
from qwenlab.evaluation.ray_actors import RayActors, RayError
from qwenlab.loading import load_with_tokenizer
from qwenlab.run_folder import RunFolderError
from qwenlab.training import make_traces

PROBLEMS = 6
SAMPLED = {"samples": 2, "temperature": 1.0, "top_p": 0.95, "max_new_tokens": 40, "seed": 5}


class RayFailure(Exception):
    pass


class StandIn:
    """The part of Ray that is used. Shares are answered in another order; `fault` says what else
    happens to one of them."""

    def __init__(self) -> None:
        self.fault = ""
        self.resources = {"CPU": 8.0}
        self.options: list[dict] = []

    def from_items(self, items, override_num_blocks):
        assert override_num_blocks == len(items) > 0
        return SimpleNamespace(
            map_batches=lambda actor, **options: self.mapped(items, actor, options)
        )

    def mapped(self, items, actor, options):
        self.options.append(options)
        order = random.Random(0).sample(items, len(items))
        if self.fault == "twice":
            order.append(order[0])
        if self.fault == "lost":
            order.pop()
        return SimpleNamespace(
            iter_rows=lambda: self.rows(order, actor(**options["fn_constructor_kwargs"]))
        )

    def rows(self, items, worker):
        for place, item in enumerate(items):
            if self.fault == "gives up" and place == 1:
                raise RayFailure("the actor died\nand more")
            yield {"outputs": worker({"share": [item["share"]]})["outputs"][0]}

    def modules(self) -> dict[str, ModuleType]:
        ray, data = ModuleType("ray"), ModuleType("ray.data")
        data.from_items = self.from_items
        data.ActorPoolStrategy = lambda **options: options
        data.DataContext = SimpleNamespace(get_current=SimpleNamespace)
        ray.data = data
        ray.exceptions = SimpleNamespace(RayError=RayFailure)
        ray.is_initialized = lambda: False
        ray.init = lambda *address, **options: None
        ray.cluster_resources = lambda: self.resources
        ray.remote = lambda **needs: lambda function: SimpleNamespace(remote=function)
        ray.get = lambda value: value
        return {"ray": ray, "ray.data": data}


@pytest.fixture
def ray(monkeypatch):
    stand_in = StandIn()
    for name, module in stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ray_actors.QUIET:
        monkeypatch.setenv(name, "")
    return stand_in


@pytest.fixture(scope="module")
def problems():
    return load_problems("tiny-test", PROBLEMS)


@pytest.fixture(scope="module")
def loaded():
    return load_with_tokenizer("tiny", device="cpu")


@pytest.fixture(scope="module")
def expected(problems, loaded):
    return plain(evaluate(*loaded, problems, **SAMPLED).records)


def plain(records):
    return [{name: record[name] for name in record if name != "seconds"} for record in records]


def answered(problems, **options):
    actors = RayActors(2, "tiny", device="cpu")
    return evaluate(actors, actors.tokenizer, problems, **SAMPLED | options)


@pytest.mark.parametrize("fault", ["", "twice"])
@pytest.mark.parametrize("strategy, rows", [("continuous", "auto"), ("static", 3)])
def test_the_records_are_those_of_one_process(ray, problems, expected, fault, strategy, rows):
    ray.fault = fault
    result = answered(problems, strategy=strategy, batch_size=rows)
    assert plain(result.records) == expected and result.new_answers == len(expected)
    assert result.sampled_tokens == sum(record["tokens"] for record in expected)


def test_shares_are_whole_problems(problems):
    actors = object.__new__(RayActors)
    actors.size = 2
    for many, rows, samples, shares in (
        (3, 64, 2, [2, 2, 2]),
        (9, 64, 2, [4, 4, 4, 4, 2]),
        (100, 2, 4, [8] * 50),
        (5, 1, 9, [9] * 5),
    ):
        requests = [SimpleNamespace(index=index) for index in range(many * samples)]
        made = actors.shares(requests, rows, samples)
        assert list(map(len, made)) == shares
        assert [request for share in made for request in share] == requests


@pytest.mark.parametrize(
    "fault, message", [("lost", "Ray lost 2 answers"), ("gives up", r"gave up \(the actor died\)")]
)
def test_what_was_answered_is_kept(ray, problems, expected, loaded, tmp_path, fault, message):
    """And goes on in one process as well as with actors: the run is the same."""
    ray.fault = fault
    with pytest.raises(RayError, match=f"{message}; run the same command again") as raised:
        answered(problems, folder=tmp_path / "run")
    assert raised.value.status == 1
    ray.fault = ""
    first = evaluate(*loaded, problems[:3], folder=tmp_path / "one", **SAMPLED)
    assert answered(problems, folder=tmp_path / "one").new_answers == 6
    resumed = evaluate(*loaded, problems, folder=tmp_path / "run", **SAMPLED)
    assert 0 < resumed.new_answers < len(expected)
    assert plain(resumed.records) == expected and plain(first.records) == expected[:6]
    with pytest.raises(RunFolderError, match="seed is 5 there, 6 now"):
        answered(problems, folder=tmp_path / "run", seed=6)


def test_an_actor_s_error_is_raised_here(ray):
    actors = RayActors(2, "tiny", device="cpu")
    requests = [SimpleNamespace(index=0)]
    with pytest.raises(RuntimeError, match="no memory"):
        list(actors.answer(requests, 1, "continuous", 1, SimpleNamespace(requests=0), fails))


def fails(model, requests, **options):
    yield from ()
    raise RuntimeError("no memory")


def test_traces_are_those_of_one_process(ray, problems, loaded, tmp_path):
    options = {"max_new_tokens": 60, "only_right": False}
    made = make_traces(*loaded, problems, tmp_path / "one", **options)
    actors = RayActors(3, "tiny", device="cpu")
    assert make_traces(actors, actors.tokenizer, problems, tmp_path / "ray", **options) == made
    one, two = (tmp_path / name / "traces.jsonl" for name in ("one", "ray"))
    assert one.read_bytes() == two.read_bytes()


def test_a_gpu_for_each_actor_where_there_are_gpus(ray):
    assert RayActors(2, "tiny", device="cpu", threads=3).needs == {"num_cpus": 3}
    ray.resources["GPU"] = 2.0
    assert RayActors(2, "tiny").needs == {"num_cpus": 1, "num_gpus": 1}
    with pytest.raises(RayError, match="3 actors need 3 GPUs, but Ray has 2; ask for fewer"):
        RayActors(3, "tiny")
    with pytest.raises(RayError, match="3 actors need 9 CPUs, but Ray has 8"):
        RayActors(3, "tiny", device="cpu", threads=3)


def test_the_commands_ask_the_actors(run, ray, problems):
    options = ["--data", "tiny-test", "--limit", PROBLEMS, "--max-new-tokens", 40]
    code, alone, _ = run("evaluate", *options, "--device", "cpu", "--threads", 1)
    ray_options = [*options, "--device", "cpu", "--ray", 2]
    code, out, err = run("evaluate", *ray_options, "--output", "run")
    assert code == 0 and out.splitlines()[:2] == alone.splitlines()[:2]
    assert err == "qwenlab: tiny, float32 on cpu, 2 actors of Ray, 6 problems\n"
    code, out, err = run("traces", *ray_options, "--temperature", 0, "--output", "traces")
    assert code == 0 and out.endswith("of 6 problems\n")
    for wrong, message in (
        (["--ray", 0], "--ray is 0, expected a whole number of at least 1"),
        (["--ray", 2, "--strategy", "no"], "strategy is 'no', expected one of"),
        (["--ray", 2, "--endpoint", "http://x"], "--ray is 2, but --endpoint leaves that"),
    ):
        code, out, err = run("vote", *options, *wrong, "--output", "wrong")
        assert (code, out) == (2, "") and err.splitlines()[-1].startswith(f"qwenlab: {message}")


def test_a_missing_ray_is_one_line(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, out, err = run("evaluate", "--data", "tiny-test", "--ray", 2)
    expected = "Ray is not installed, expected: pip install 'qwenlab[ray]'"
    assert (code, out, err) == (2, "", f"qwenlab: {expected}\n")
