"""The process behind a `VerifierPool`: workers that can be killed, and the one that watches them.

Runs `main` with the settings as its argument, requests on standard input and verdicts on standard output, one JSON
array a line. The watcher imports the verifier once and has a single thread, so that a grader is a fork of it, ready in
milliseconds, and so that the process that asks is never forked. It takes no signals: it waits on pipes, and kills a
grader whose time is over. A grader that takes much longer than is usual is taken to be stuck before that: it goes on
at low priority, and another takes its place, so that many stuck graders run out of time together.
"""

import collections
import dataclasses
import json
import os
import resource
import selectors
import signal
import sys
import time
import traceback
import zlib

from rlvr_jax.tasks.graders import WARM_UP, load_grader

_ITEMS_OF_A_LIFE = 2000
"""A grader ends itself after so many items, so that what libraries keep never adds up."""
_CPU_SECONDS_OF_A_LIFE = 600
"""A bound of the kernel's for a grader that outlived its watcher."""
_LONGEST = 80
"""Characters of a reason or an answer on its way back: verdicts that wait to be read must not fill the pipe."""
_LEAST_PATIENCE = 0.15
"""Seconds before a grader can be taken to be stuck."""
_PATIENCE = 8
"""Times the usual duration of a verdict before it is."""
_FIRST_GUESS = 0.25
"""Seconds that a verdict usually takes, until it is known; each verdict then moves the estimate by a sixteenth."""
_NICENESS = 10
"""Of a stuck grader."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the watcher is told when it starts."""

    grader: str
    graders: int
    """That are not stuck."""
    stuck: int
    """That may be, beside those."""
    seconds: float
    memory: int
    """Bytes that one grader may allocate beyond what it starts with."""


@dataclasses.dataclass
class _Grader:
    process: int
    requests: int
    verdicts: int
    item: int | None = None
    request: bytes = b""
    deadline: float = 0.0
    started: float = 0.0
    impatient: float = 0.0
    stuck: bool = False
    answer: bytes = b""


def _grade_forever(settings: Settings, requests: int, verdicts: int) -> None:
    """The grader's whole life: a request, its verdict, the next."""
    _limit(settings.memory)
    grade = load_grader(settings.grader)
    with os.fdopen(requests, "rb") as lines:
        for done, line in enumerate(lines, 1):
            gold, completion = json.loads(line)
            out_of_memory = False
            try:
                verdict = grade(completion, gold)
                answers = {name: _short(text) for name, text in verdict.answers.items()}
                answer = [verdict.outcome, verdict.reason[:_LONGEST], dict(verdict.scores), answers]
            except MemoryError:
                answer, out_of_memory = ["timed-out", "out of memory", {}, {}], True
            except Exception as error:
                answer = ["unparsable", f"the verifier raised {type(error).__name__}", {}, {}]
            last = out_of_memory or done == _ITEMS_OF_A_LIFE
            _write(verdicts, json.dumps([*answer, last]).encode() + b"\n")
            if last:
                return


def _short(text: str | None) -> str | None:
    """The text; of a long one the beginning with a checksum, so that different answers stay different."""
    if text is None or len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST - 9]}~{zlib.crc32(text.encode(errors='surrogatepass')):08x}"


def _limit(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS_OF_A_LIFE, _CPU_SECONDS_OF_A_LIFE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm") as pages:
            size = int(pages.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


class _Watcher:
    """Hands items to graders, one each at a time, and kills what does not come back."""

    def __init__(self, settings: Settings, requests: int, verdicts: int):
        self.settings, self.requests, self.verdicts = settings, requests, verdicts
        self.selector = selectors.DefaultSelector()
        self.selector.register(requests, selectors.EVENT_READ)
        self.waiting: collections.deque[tuple[int, bytes]] = collections.deque()
        self.graders: list[_Grader] = []
        self.usual = _FIRST_GUESS
        # A large process takes its time to die, and nobody should wait for it.
        self.dying: list[int] = []
        self.bereaved: set[int] = set()
        self.incoming = b""

    def run(self) -> None:
        """Until standard input ends."""
        while True:
            self._assign()
            for key, _ in self.selector.select(self._until_next()):
                if key.fd == self.requests:
                    if not self._read_requests():
                        return
                else:
                    self._read_verdict(key.data)
            self._check_clocks()

    def _until_next(self) -> float | None:
        times = [g.deadline if g.stuck else g.impatient for g in self.graders if g.item is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _read_requests(self) -> bool:
        data = os.read(self.requests, 1 << 20)
        *lines, self.incoming = (self.incoming + data).split(b"\n")
        for line in lines:
            item, rest = line.split(b" ", 1)
            self.waiting.append((int(item), rest))
        return bool(data)

    def _assign(self) -> None:
        while self.waiting:
            free = next((grader for grader in self.graders if grader.item is None), None)
            if free is None:
                responsive = sum(not grader.stuck for grader in self.graders)
                most = self.settings.graders + self.settings.stuck
                if responsive >= self.settings.graders or len(self.graders) >= most:
                    return
                free = self._fork()
            item, request = self.waiting.popleft()
            now = time.monotonic()
            free.item, free.request, free.started, free.deadline = item, request, now, now + self.settings.seconds
            free.impatient = now + max(_LEAST_PATIENCE, _PATIENCE * self.usual)
            try:
                _write(free.requests, request + b"\n")
            except BrokenPipeError:
                self._died(free)

    def _fork(self) -> _Grader:
        requests, own_requests = os.pipe()
        own_verdicts, verdicts = os.pipe()
        process = os.fork()
        if process == 0:
            try:
                for file in (own_requests, own_verdicts, self.requests, self.verdicts):
                    os.close(file)
                for grader in self.graders:
                    os.close(grader.requests)
                    os.close(grader.verdicts)
                _grade_forever(self.settings, requests, verdicts)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(requests)
        os.close(verdicts)
        grader = _Grader(process, own_requests, own_verdicts)
        self.graders.append(grader)
        self.selector.register(own_verdicts, selectors.EVENT_READ, grader)
        return grader

    def _read_verdict(self, grader: _Grader) -> None:
        data = os.read(grader.verdicts, 1 << 16)
        grader.answer += data
        if not data:
            self._died(grader)
        elif grader.answer.endswith(b"\n"):
            *verdict, last = json.loads(grader.answer)
            self.usual += (time.monotonic() - grader.started - self.usual) / 16
            self._send(grader, verdict)
            if last or grader.stuck:
                self._end(grader, "")

    def _died(self, grader: _Grader) -> None:
        """A grader that was killed from outside is no verdict on its item; a second one that dies of it is."""
        item = grader.item
        if item is not None and item not in self.bereaved:
            self.bereaved.add(item)
            self.waiting.appendleft((item, grader.request))
            grader.item = None
        self._end(grader, "the grader died")

    def _check_clocks(self) -> None:
        now = time.monotonic()
        for grader in list(self.graders):
            if grader.item is None:
                continue
            if now >= grader.deadline:
                self._end(grader, f"no verdict within {self.settings.seconds:g} s")
            elif now >= grader.impatient and not grader.stuck:
                grader.stuck = True
                os.setpriority(os.PRIO_PROCESS, grader.process, os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)
        self.dying = [process for process in self.dying if os.waitpid(process, os.WNOHANG) == (0, 0)]

    def _send(self, grader: _Grader, verdict: list) -> None:
        _write(self.verdicts, json.dumps([grader.item, *verdict]).encode() + b"\n")
        self.bereaved.discard(grader.item)
        grader.item, grader.answer = None, b""

    def _end(self, grader: _Grader, reason: str) -> None:
        """Kills a grader; the item that it was at, if any, timed out for this reason."""
        self.selector.unregister(grader.verdicts)
        self.graders.remove(grader)
        os.kill(grader.process, signal.SIGKILL)
        self.dying.append(grader.process)
        os.close(grader.requests)
        os.close(grader.verdicts)
        if grader.item is not None:
            self._send(grader, ["timed-out", reason, {}, {}])

    def close(self) -> None:
        for grader in list(self.graders):
            grader.item = None
            self._end(grader, "")


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    # What a library prints must not look like a verdict.
    verdicts = os.dup(1)
    os.dup2(2, 1)
    # Loaded before any fork, once for all graders, with what its libraries load at first use.
    grade = load_grader(settings.grader)
    for completion, gold in WARM_UP.get(settings.grader, ()):
        grade(completion, gold)
    _write(verdicts, b"[]\n")
    watcher = _Watcher(settings, 0, verdicts)
    try:
        watcher.run()
    finally:
        watcher.close()


if __name__ == "__main__":
    main()
