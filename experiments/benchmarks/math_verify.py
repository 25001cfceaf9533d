"""Math-Verify's own verdict, as a yardstick for ours.

It reads plain text with SymPy's `parse_expr`, which evaluates it. So this is run only when asked for, in worker
processes with a time and a memory limit, on texts that the user trusts; our own verifiers never use it.
"""

import logging

from math_verify import parse, verify

from rlvr_jax.tasks import Verdict

logging.getLogger("math_verify").setLevel(logging.ERROR)


def grade(completion: str, gold: str) -> Verdict:
    """With its default settings, except that its time limits, which need signals, are left to the worker."""
    expected = parse(f"${gold}$", parsing_timeout=None)
    found = parse(completion, parsing_timeout=None)
    if not expected or not found:
        return Verdict("unparsable", "nothing found")
    same = verify(expected, found, timeout_seconds=None)
    return Verdict("correct" if same else "wrong", "verify")
