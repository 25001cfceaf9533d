"""A user's log: what is read, and one clear line for what is not."""

import json

import numpy as np
import pytest

from rlvr_jax import starvation
from rlvr_jax.errors import UserError
from rlvr_jax.starvation import read_reward_log

LINES = (("x", 1), ("y", 0), ("x", 0.0), ("y", False), ("x", True))


def written(folder, name, text):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "prompt_id,reward\nx,1\ny,0\nx,0.0\ny,false\nx,True\n"),
        ("b.csv", "step,correct,id,answer\n1,1,x,\n1,0,y,7\n1,0,x,\n\n1,0,y,\n2,1.0,x,\n"),
        ("c.csv", "\ufeffquestion,score\r\nx,1\r\ny,0\r\nx,0\r\ny,0\r\nx,1\r\n"),
        ("d.jsonl", "".join(json.dumps({"prompt": p, "reward": r}) + "\n" for p, r in LINES)),
        ("e.JSONL", "\n\n".join(json.dumps({"more": [1], "score": str(r), "id": p}) for p, r in LINES)),
    ],
)  # fmt: skip
def test_logs_of_every_accepted_form(tmp_path, name, text):
    log = read_reward_log(written(tmp_path, name, text))
    assert log.ids == ("x", "y")
    np.testing.assert_array_equal((log.n, log.c), [[3, 2], [2, 0]])
    assert read_reward_log(str(tmp_path / name)).ids == log.ids


def test_prompt_texts_with_commas_and_newlines(tmp_path):
    log = read_reward_log(written(tmp_path, "a.csv", 'prompt,reward\n"2, or\n3?",1\n"2, or\n3?",0\n'))
    assert log.ids == ("2, or\n3?",)
    assert log.n == 2


def test_three_lines_give_the_degeneracy_of_a_log(tmp_path):
    path = written(tmp_path, "a.csv", "id,reward\n" + "".join(f"{i % 3},{int(i % 5 == 0)}\n" for i in range(30)))
    log = read_reward_log(path)
    estimate = starvation.degeneracy_at(log.n, log.c, 4).mean()
    assert 0 <= float(estimate) <= 1
    assert 0 <= starvation.fit_beta_binomial(log.n, log.c).degeneracy(4) <= 1


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "id,reward\nx,1\ny,0.5\n", r"a\.csv, line 3: reward is '0\.5', accepted are 0, 1"),
        ("a.jsonl", '{"id": 1, "reward": 2}\n', r"line 1: reward is 2, accepted"),
        ("a.jsonl", '{"id": 1, "reward": NaN}\n', r"line 1: reward is nan, accepted"),
        ("a.jsonl", '{"id": 1, "reward": null}\n', r"line 1: reward is None, accepted"),
        ("a.jsonl", '{"id": 1, "reward": [1]}\n', r"line 1: reward is \[1\], accepted"),
        ("a.jsonl", '{"id": 1}\n', r"line 1: no reward among 'id'; accepted names are reward, correct, score"),
        ("a.jsonl", '{"reward": 1}\n', r"line 1: no prompt among 'reward'; accepted names are prompt_id"),
        ("a.jsonl", '{"id": [1], "reward": 1}\n', r"line 1: id is \[1\], accepted is an id or a text"),
        ("a.jsonl", '{"id": true, "reward": 1}\n', "line 1: id is True"),
        ("a.jsonl", '{"id": 1, "reward": 1}\n[1]\n', r"line 2 is '\[1\]', accepted is one JSON object"),
        ("a.jsonl", '{"id": 1, "rew', "line 1 is .* accepted is one JSON object"),
        ("a.jsonl", "[" * 100_000, "line 1 is .* accepted is one JSON object"),
        ("a.csv", "id,reward\nx\n", "line 2: reward is None"),
        ("a.csv", "id,reward\n,1\n", "line 2: id is ''"),
        ("a.csv", "x,1\ny,0\n", "line 2: no prompt among 'x, 1'"),
        ("a.csv", "id,reward\n", "holds no rewards"),
        ("a.csv", "", "holds no rewards"),
        ("a.jsonl", b"\xff\xfe\x00", "is not UTF-8"),
        ("a.csv", "id,reward\n" + "x" * 200_000 + ",1\n", "not CSV"),
        ("a.txt", "1", r"accepted are \.csv and \.jsonl"),
    ],
)
def test_what_is_not_a_log_is_refused_in_one_line(tmp_path, name, text, said):
    with pytest.raises(UserError, match=said) as refused:
        read_reward_log(written(tmp_path, name, text))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value).replace(str(tmp_path), "")) < 250


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_reward_log(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        read_reward_log(tmp_path / "folder.csv")
