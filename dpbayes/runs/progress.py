"""Signs of life of a command that takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable


class Progress:
    """What a run is at: plain lines, or on a terminal one line that is rewritten; never ten seconds of silence."""

    def __init__(self, echo: Callable[[str], None], stage: str = "preparing") -> None:
        self.echo, self.terminal = echo, sys.stderr.isatty()
        self.lock, self.ended = threading.RLock(), threading.Event()
        self.spoke, self.finished = time.monotonic(), ""
        self.at(stage)

    def at(self, stage: str) -> None:
        """Enter a stage without a word; `tick` speaks of it where it takes long."""
        with self.lock:
            self.stage, self.share, self.tenth, self.started = stage, 0.0, 0, time.monotonic()

    def say(self, line: str) -> None:
        """Print a line."""
        with self.lock:
            if self.terminal:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
            self.echo(line)
            self.spoke = time.monotonic()

    def __call__(self, stage: str, share: float) -> None:
        """Say how far a stage is; only a new stage or another tenth makes a line."""
        with self.lock:
            if stage == self.finished:
                return
            if stage != self.stage:
                self.finished = ""
                self.at(stage)
                if not self.terminal:
                    self.say(f"{stage} ...")
            self.share = share
            if int(10 * share + 1e-9) > self.tenth:
                self.tenth = int(10 * share + 1e-9)
                if not self.terminal:
                    self.say(self._line(10 * self.tenth))
            if share >= 1.0:
                self.finished = stage
                self.at("working up the draws")

    def tick(self) -> None:
        """Say that a stage goes on, if nothing was said for nine seconds; on a terminal, show where it is."""
        with self.lock:
            line = self._line(int(100 * self.share))
            if self.terminal:
                bar = ("█" * int(20 * self.share)).ljust(20, "░") + " " if self.share else ""
                sys.stderr.write(f"\r\x1b[K{bar}{line}")
                sys.stderr.flush()
            elif time.monotonic() - self.spoke >= 9.0:
                self.say(line)

    def _line(self, percent: int) -> str:
        elapsed = time.monotonic() - self.started
        if not self.share:
            return f"{self.stage}: {_elapsed(elapsed)} so far"
        left = "" if self.share >= 1.0 else f", about {_duration(elapsed * (1.0 - self.share) / self.share)} left"
        return f"{self.stage}: {percent} %{left}"

    def __enter__(self) -> Progress:
        threading.Thread(target=self._tick_on, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        if self.terminal:
            sys.stderr.write("\r\x1b[K")

    def _tick_on(self) -> None:
        while not self.ended.wait(1.0):
            self.tick()


def _elapsed(seconds: float) -> str:
    """Return a time that goes on, so that no two lines say the same.

    >>> _elapsed(89.4), _elapsed(131.0)
    ('89 s', '2 min 11 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if seconds >= 90 else f"{rest + 60 * minutes} s"


def _duration(seconds: float) -> str:
    """Return a time in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
