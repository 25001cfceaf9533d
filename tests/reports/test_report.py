"""A report of hand-made runs: its numbers against hand calculation, its page as a reader and a browser get it."""

import dataclasses
import html.parser
import inspect
import json
import os
import re
import shlex
import shutil

import jax
import numpy as np
import pytest

from experiments import report
from experiments import train as train_module
from experiments.command import parse_with_presets
from experiments.presets import PRESETS
from experiments.report import train_command
from rlvr_jax.errors import UserError
from rlvr_jax.evaluation import Evaluation
from rlvr_jax.evaluation.folder import write_completions
from rlvr_jax.objectives import OBJECTIVES, rollout_signals
from rlvr_jax.reports import find_runs, group_runs, report_numbers, sample_completions, write_report
from rlvr_jax.reports.samples import readable
from rlvr_jax.reports.series import RECORDED, run_advantages
from rlvr_jax.sampling import Precision
from rlvr_jax.sharding import MeshShape
from rlvr_jax.training import TrainConfig
from rlvr_jax.training.run_folder import write_json

EVIL = "<script>alert('x')</script><img src=http://evil.example/x.png> \x00 \u202e & </pre></details>"

COMMAND = f"python -m experiments.report {EVIL[:40]} --out report"

# Verdicts of two steps, two prompts, four samples each: a mixed group of 1/4 right, then a silent one; then 3/4, 4/4.
VERDICTS = (((1, 0, 0, 0), (0, 0, 0, 0)), ((1, 1, 1, 0), (1, 1, 1, 1)))


def evaluation(right):
    """Four questions of four samples, so many of them right."""
    rewards = (np.arange(4) < np.array(right)[:, None]).astype(np.float32)
    return Evaluation(
        rewards=rewards,
        scores={},
        answers={},
        truncated=np.zeros((4, 4), bool),
        lengths=np.full((4, 4), 3, np.int32),
        max_new_tokens=5,
        checksums=np.arange(4, dtype=np.uint32),
    )


def make_run(folder, after=(4, 2, 0, 1), reward_shift=0.0, steps=2, done=2, **settings):
    """A run folder of `done` steps of VERDICTS; evaluated before, and after if it is finished."""
    config = TrainConfig(steps=steps, prompts_per_step=2, output=folder, **settings)
    (folder / "completions").mkdir(parents=True)
    write_json(folder / "run.json", json.loads(json.dumps(dataclasses.asdict(config), default=str)))
    lines = []
    for step, groups in enumerate(VERDICTS[:done], 1):
        rewards = np.array(groups)
        uniform = (rewards.min(-1) == rewards.max(-1)).mean()
        lines.append(
            {
                "step": step,
                "reward": rewards.mean() + reward_shift,
                "degeneracy": uniform,
                "degeneracy_predicted": 0.25,
                "zero_advantage": uniform,
                "truncated": 0.0,
                "gradient_norm": 0.5 * step,
            }
        )
        rows = [
            {
                "step": step,
                "question_id": i,
                "sample": j,
                "question": f"question {i}",
                "gold": "7",
                "completion": f"{EVIL} {i} {j}",
                "tokens": 3,
                "truncated": False,
                "outcome": "correct" if correct else "wrong",
                "reason": "right" if correct else "wrong",
                "correct": bool(correct),
            }
            for i, group in enumerate(groups)
            for j, correct in enumerate(group)
        ]
        write_completions(folder / "completions" / f"step_{step:06d}.parquet", rows)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    timings = [{"step": i, "step_seconds": float(i), "compilations": 0} for i in range(1, done + 1)]
    (folder / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timings))
    evaluation((1, 1, 0, 0)).save(folder / "evaluations" / "step_000000.json")
    if done == steps:
        evaluation(after).save(folder / "evaluations" / f"step_{steps:06d}.json")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two seeds of Sign and of GRPO's advantage."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "sign-0", seed=0)
    make_run(folder / "sign-1", after=(4, 4, 0, 1), reward_shift=0.25, seed=1)
    make_run(folder / "z-0", after=(3, 1, 0, 0), objective="group_mean_std", seed=0)
    make_run(folder / "z-1", after=(3, 2, 0, 0), objective="group_mean_std", seed=1)
    return folder


@pytest.fixture(scope="module")
def numbers(folder):
    return report_numbers(group_runs(find_runs([folder])))


def test_curves_are_means_over_seeds_with_the_band_from_lowest_to_highest(numbers):
    training = numbers["learning_curves"]["sign"]["training"]
    # Rewards 1/8 and 7/8, smoothed over both steps: 1/2; the second seed lies 1/4 higher.
    assert training == {"step": [1, 2], "mean": [0.625] * 2, "low": [0.5] * 2, "high": [0.75] * 2}
    observed = numbers["degeneracy"]["sign"]
    assert observed["observed"]["mean"] == [0.5, 0.5]
    assert observed["predicted"]["mean"] == [0.25, 0.25]
    held_out = numbers["learning_curves"]["sign"]["held_out"]
    assert [(point["step"], point["mean"]) for point in held_out] == [(0, 2 / 16), (2, 16 / 32)]


def test_pass_at_k_is_that_of_each_question_averaged_over_seeds(numbers):
    curve = numbers["pass_at_k"]["group_mean_std"]
    assert [point["k"] for point in curve["trained"]] == [1, 2, 4]
    # 1 - C(4 - c, k) / C(4, k): untrained 1, 1, 0, 0 of 4 right; trained 3, 1, 0, 0 and 3, 2, 0, 0.
    assert [point["mean"] for point in curve["untrained"]] == pytest.approx([1 / 8, 1 / 4, 1 / 2])
    assert [point["mean"] for point in curve["trained"]] == pytest.approx(
        [(3 / 4 + 3 / 8) / 4, (1 + (1 / 2 + 5 / 6) / 2) / 4, 1 / 2]
    )
    assert all(point["low"] <= point["mean"] <= point["high"] for point in curve["trained"])


def test_advantages_are_those_of_the_objective(folder, numbers):
    sign, _, z, _ = find_runs([folder])
    np.testing.assert_array_equal(run_advantages(sign), 2.0 * np.array(VERDICTS) - 1)
    advantages = run_advantages(z)
    # 1, 0, 0, 0: mean 1/4, unbiased deviation 1/2.
    np.testing.assert_allclose(advantages[0, 0], [1.5, -0.5, -0.5, -0.5], rtol=1e-5)
    np.testing.assert_array_equal(advantages[[0, 1], [1, 1]], 0.0)
    assert numbers["advantages"]["sign"]["zero"] == 0.0
    assert numbers["advantages"]["group_mean_std"]["zero"] == numbers["methods"]["group_mean_std"]["wasted_samples"]
    for figures in numbers["advantages"].values():
        assert sum(figures["shares"]) == pytest.approx(1)
        edges, middle = figures["edges"], len(figures["shares"]) // 2
        assert edges[middle] == pytest.approx(-edges[middle + 1]), "zero in the middle of its bin"


def test_an_objective_that_asks_more_than_a_run_keeps_says_so(tmp_path):
    arms = group_runs(find_runs([make_run(tmp_path / "run", objective="rl_zvp")]))
    reason = report_numbers(arms)["advantages"]["rl_zvp"]["reason"]
    assert reason == "needs completion_mask, entropies, which a run does not keep"


def test_gradient_norms(numbers):
    norms = numbers["gradient_norms"]["sign"]
    assert norms == {"norms": [0.5, 0.5, 1.0, 1.0], "not_finite": 0, "max_gradient_norm": 1.0, "clipped": 0.0}


def test_tests_are_over_questions_and_over_seeds(numbers):
    (row,) = numbers["contrasts"]
    assert row["methods"] == ["sign", "group_mean_std"]
    # By question 1, 3/4, 0, 1/4 against 3/4, 3/8, 0, 0.
    assert row["over_questions"]["difference"] == pytest.approx((1 / 4 + 3 / 8 + 0 + 1 / 4) / 4)
    assert row["over_questions"]["mcnemar"] == {"better": 3, "worse": 0, "p": 0.25}
    # By seed 7/16 - 4/16 and 9/16 - 5/16: both above zero, so half of the four choices of signs are as far out.
    assert row["over_seeds"]["permutation"] == {"difference": pytest.approx(3.5 / 16), "p": 0.5, "least_p": 0.5}
    assert row["over_seeds"]["welch"]["difference"] == pytest.approx(3.5 / 16)
    method = numbers["methods"]["sign"]
    assert method["accuracy"]["mean"] == 0.5
    assert method["accuracy_by_seed"] == [7 / 16, 9 / 16]
    assert method["gain"]["mean"] == method["over_questions"]["difference"] == 0.375


def test_one_seed_names_no_winner(folder):
    row = report_numbers(group_runs(find_runs([folder / "sign-0", folder / "z-1"])))["contrasts"][0]
    assert row["over_seeds"] == {"reason": "no seed in common: no method is the winner"}


def test_runs_that_differ_in_more_than_their_seed_are_methods_of_their_own(tmp_path):
    make_run(tmp_path / "a", learning_rate=1e-5)
    make_run(tmp_path / "b", learning_rate=1e-4, evaluate_every=3)
    assert list(group_runs(find_runs([tmp_path]))) == ["sign, learning_rate 1e-05", "sign, learning_rate 0.0001"]


def test_an_unfinished_run_ends_the_curves_of_its_method(folder, tmp_path, call):
    make_run(tmp_path / "half", done=1, seed=2)
    code, out, err = call(report, folder, tmp_path / "half", "--out", tmp_path / "report", "--json")
    assert code == 0, err
    numbers = json.loads(out.splitlines()[-1])
    assert numbers["learning_curves"]["sign"]["training"]["step"] == [1]
    assert numbers["learning_curves"]["group_mean_std"]["training"]["step"] == [1, 2]
    assert numbers["methods"]["sign"]["accuracy"] is None
    assert numbers["contrasts"][0]["over_questions"] == {"reason": "not evaluated after the same step yet"}
    page = (tmp_path / "report" / "index.html").read_text()
    assert "sign, seed 2: 1 of 2 steps" in page
    assert "not yet" in page


def test_samples_show_each_kind_of_group_and_both_verdicts(folder):
    first, last = sample_completions(group_runs(find_runs([folder])), samples=2)["sign"]
    assert (first["step"], last["step"]) == (1, 2)
    assert [group["kind"] for group in first["groups"]] == ["mixed", "all wrong"]
    assert [group["kind"] for group in last["groups"]] == ["mixed", "all right"]
    assert [sample["correct"] for sample in first["groups"][0]["completions"]] == [True, False]
    assert [sample["text"][-1] for sample in last["groups"][0]["completions"]] == ["0", "3"]
    assert readable("a\x00\tb\n") == "a\u2400\tb\n"
    assert readable("a" * 3000 + "b" * 3000) == f"{'a' * 2000}\n[... 2000 characters left out ...]\n{'b' * 2000}"


@pytest.fixture(scope="module")
def page(folder, tmp_path_factory):
    """The report's folder."""
    out = tmp_path_factory.mktemp("page") / "report"
    write_report(group_runs(find_runs([folder])), out, COMMAND, train_command)
    return out


class Elements(html.parser.HTMLParser):
    """Start tags with their attributes, and text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def test_the_page_holds_everything_and_asks_nobody(page):
    text = (page / "index.html").read_text()
    parsed = Elements(text)
    tags = [tag for tag, _ in parsed.elements]
    assert not {"script", "iframe", "object", "embed", "base", "form"} & set(tags)
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    sources = [x[name] for _, x in parsed.elements for name in ("src", "href", "srcset", "data") if name in x]
    assert all(source.startswith("data:") for source in sources)
    images = [attributes for tag, attributes in parsed.elements if tag == "img"]
    assert len(images) == 6
    assert all(len(image["src"]) > 1000 and image["alt"] for image in images)
    styles = re.search("<style>(.*?)</style>", text, re.S).group(1)
    assert not re.search(r"url\(|@import|//", styles)
    assert not re.search(r"[^-]width:\s*\d+(px|rem|em)", styles)
    metas = [attributes for tag, attributes in parsed.elements if tag == "meta"]
    assert any(x.get("name") == "viewport" and "width=device-width" in x["content"] for x in metas)
    assert any("default-src 'none'" in x.get("content", "") for x in metas)
    # What the model wrote is there to read, as text.
    assert parsed.text.count(EVIL.replace("\x00", "\u2400")) > 8
    assert "python -m experiments.report" in parsed.text


def test_figures_lie_beside_the_page_and_repeat_exactly(folder, page, tmp_path):
    files = sorted(file.name for file in (page / "figures").iterdir())
    assert len(files) == 12
    assert all((page / "figures" / name).read_bytes()[:4] in (b"\x89PNG", b"<?xm") for name in files)
    write_report(group_runs(find_runs([folder])), tmp_path, COMMAND, train_command)
    for file in (page / "index.html", *(page / "figures").iterdir()):
        assert file.read_bytes() == (tmp_path / file.relative_to(page)).read_bytes()
    assert not list(tmp_path.rglob("*.part"))


def broken(folder, file, text):
    (folder / file).write_text(text)
    return folder


MISTAKES = {
    "an empty folder": (lambda path: path, "it holds no run; accepted is a folder with run.json"),
    "no folder": (lambda path: path / "nowhere", "it is not a folder"),
    "no step": (lambda path: broken(make_run(path / "a"), "metrics.jsonl", ""), "has no finished step"),
    "no JSON": (lambda path: broken(make_run(path / "a"), "run.json", "{"), "is not a run's configuration"),
    "not a setting": (
        lambda path: broken(make_run(path / "a"), "run.json", '{"steps": 0}'),
        "configuration: steps is 0, accepted",
    ),
    "a broken line": (lambda path: broken(make_run(path / "a"), "metrics.jsonl", "x\n"), "cannot be read"),
    "a gap": (
        lambda path: broken(make_run(path / "a"), "metrics.jsonl", '{"step": 2}\n'),
        "line 1 of .* has no reward",
    ),
    "an evaluation of something else": (
        lambda path: broken(make_run(path / "a"), "evaluations/step_000002.json", "{}"),
        "cannot be read: KeyError",
    ),
    "a completion file of something else": (
        lambda path: broken(make_run(path / "a"), "completions/step_000001.parquet", "PAR1"),
        "step_000001.parquet holds no completions",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_said_in_one_line(name, tmp_path, call):
    prepare, message = MISTAKES[name]
    code, _, err = call(report, prepare(tmp_path), "--out", tmp_path / "report")
    assert code == 2
    assert re.search(message, err), err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "report").exists()


def test_runs_that_do_not_go_together(folder, tmp_path, call):
    make_run(tmp_path / "other", task="svamp")
    for runs, message in (
        ((folder, tmp_path / "other"), r"task is 'svamp' in .* and 'arithmetic' in .*: accepted are runs of one task"),
        ((folder, folder / "z-0"), "z-0' is named twice"),
        ((folder / "z-0", shutil.copytree(folder / "z-0", tmp_path / "copy")), "seed is 0 in .* and in .*copy"),
    ):
        with pytest.raises(UserError, match=message):
            group_runs(find_runs(runs))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("my own page")
    code, _, err = call(report, folder, "--out", tmp_path / "mine")
    assert (code, "its index.html is not a report; accepted is another folder" in err) == (2, True)
    assert (tmp_path / "mine" / "index.html").read_text() == "my own page"


def test_a_run_without_completions_or_timings_still_makes_a_page(tmp_path, call):
    run = make_run(tmp_path / "run", objective="group_mean_std")
    shutil.rmtree(run / "completions")
    (run / "timings.jsonl").unlink()
    code, _, err = call(report, run, "--out", tmp_path / "report")
    assert code == 0, err
    text = Elements((tmp_path / "report" / "index.html").read_text()).text
    assert "the run keeps no completions" in text
    assert "No figure of advantages: group_mean_std completions of some steps are missing" in " ".join(text.split())
    assert not (tmp_path / "report" / "figures" / "advantages.svg").exists()


@pytest.fixture(scope="module")
def browser():
    """Chromium: playwright's own, or the one on the path."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as driver:
        path = shutil.which("chromium") or driver.chromium.executable_path
        if not os.path.exists(path):
            pytest.skip("playwright is here, but no Chromium")
        with driver.chromium.launch(executable_path=path) as browser:
            yield browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_in_a_browser(browser, page, width, scheme):
    """Nothing scrolls sideways, every figure is drawn, no request leaves the page and the console stays empty."""
    tab = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    requests, complaints = [], []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    address = (page / "index.html").as_uri()
    tab.goto(address)
    tab.evaluate("for (const x of document.querySelectorAll('details')) x.open = true")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("[...document.images].every(x => x.complete && x.naturalWidth > 0)")
    assert [url for url in requests if not url.startswith("data:")] == [address]
    assert complaints == []
    tab.close()


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(),
        PRESETS["gsm8k"],
        TrainConfig(
            task="gsm8k",
            model="/a folder/model",
            steps=7,
            stop=("a b", "\n"),
            fused_attention=False,
            drop_truncated=True,
            rollout=Precision(int8_cache=True),
            importance_cap=2.0,
            mesh=MeshShape(data=1, fsdp=-1),
            learning_rate=3e-6,
        ),
    ],
)
def test_the_command_of_a_run_gives_its_configuration_again(config, monkeypatch):
    words = shlex.split(train_command(config))
    assert words[:3] == ["python", "-m", "experiments.train"]
    monkeypatch.setattr("sys.argv", words[2:])
    presets = {name: train_module.Train(preset) for name, preset in PRESETS.items()}
    assert parse_with_presets(presets, "").config == config


def test_no_objective_takes_what_a_report_does_not_know_to_be_missing():
    """An advantage with an optional signal that a run does not keep would be recomputed wrongly, without a word."""
    ones = jax.numpy.ones((2, 4, 3))
    signals = set(rollout_signals(ones[..., 0], ones, ones, ones > 0)) - {"rewards"} - RECORDED
    for name, objective in OBJECTIVES.items():
        parameters = set(inspect.signature(objective.advantage).parameters)
        assert parameters & signals <= set(objective.needs), name
