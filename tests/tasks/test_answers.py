"""Which passage of a completion commits to the answer."""

import time

import pytest

from rlvr_jax.tasks.answers import after_marked_line, after_marker, committed_passage, own_answer


@pytest.mark.parametrize(
    ("completion", "own"),
    [
        ("<think>It is 5.</think>It is 6.", "It is 6."),
        ("It is 6.\n\nQuestion: What else?\nIt is 7.", "It is 6.\n"),
        ("It is 6.\n**User:** What else?", "It is 6."),
        ("It is 6.<|im_start|>user", "It is 6."),
        ("A question: is it 6?", "A question: is it 6?"),
    ],
)
def test_own_answer_ends_where_another_question_begins(completion, own):
    assert own_answer(completion) == own


@pytest.mark.parametrize(
    ("text", "passage", "kind"),
    [
        (r"so \boxed{5}, no: \boxed{\frac{1}{2}}.", r"\frac{1}{2}", "box"),
        (r"so \boxed{5}, then \boxed{", "5", "box"),
        (r"into \boxed{}: \boxed 72", "72", "box"),
        (r"\fbox{7} \boxed{}", "7", "box"),
        (r"$\boxed{2}, \boxed{3} \text{ and } \boxed{5}$", "2, 3, 5", "box"),
        (r"\boxed{840}, let me explain why. All were counted. \boxed{840}", "840", "box"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}", "box"),
        ("#### 18\nThat is 9 * 2.", "18", "marker"),
        ("#### Step 2\nso \\boxed{18}", "18", "box"),
        ("\\boxed{9} eggs\n#### 18", "18", "marker"),
        ("<answer>18</answer>", "18", "tag"),
        ("The total is **18**.", "18", "prose"),
        ("Answer: 10\n\nAgain.\nAnswer: 12", "12", "prose"),
        ("**Answer:** 4.", "4.", "prose"),
        ("**The answer is 4**", "4", "prose"),
        ("Final Answer: The final answer is $(-6, 10)$. I hope it is correct.", None, "prose"),
        ("The answer is\n\\[ 9\n\\]\nIndeed.", "\\[ 9\n\\]", "prose"),
    ],
)
def test_most_explicit_passage_and_of_it_the_last(text, passage, kind):
    found = committed_passage(text)
    assert found.kind == kind
    assert found.text == passage or (passage is None and found.text.startswith("$(-6, 10)$"))


def test_nothing_committed():
    assert committed_passage("She has 4 apples.") is None
    assert committed_passage("The answer is unclear.", holding="[0-9]") is None
    assert after_marker("none") is None
    assert after_marker("a #### b #### c\nd") == "c"


def test_after_the_marked_line_comes_all_the_rest():
    assert after_marked_line("<think>a\nb</think>#### c\n#### d ") == ""
    assert after_marked_line("#### c\nd\nQ: e\n#### f") == "d\nQ: e\n#### f"
    assert after_marked_line("#### c<|im_start|>d\ne") == "<|im_start|>d\ne"


@pytest.mark.parametrize(
    "piece", ["\n", "\n*", " ", "*", "answer: ", "\\boxed{", "{", "<answer>", "####", "\\boxed{1}"]
)
def test_a_megabyte_takes_no_longer_than_its_length(piece):
    text = piece * (1_000_000 // len(piece))
    started = time.perf_counter()
    committed_passage(own_answer(text))
    assert time.perf_counter() - started < 10
