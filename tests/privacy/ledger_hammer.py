"""Several processes write one book while a ninth kills them at random: run as a script by test_ledger_reliability.py.

Arguments: book, folder for the workers' logs, number of workers, least seconds, seed. A worker appends to its own log,
one write call a line, only what a call of the book has already returned. Prints the number of kills.
"""

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from dpbayes.errors import BudgetExceededError
from dpbayes.privacy import TwoSidedGeometric
from dpbayes.privacy.ledger import open_ledger

# Sensitivity 2 and scale 2000: epsilon is 1/1000 exactly.
REQUEST = {
    "mechanism": "two-sided-geometric",
    "law": TwoSidedGeometric(2000.0),
    "sensitivity": 2,
    "adjacency": "replace-one",
    "purpose": "hammer",
}


REFUSALS = 50  # that are waited for: most of the time is spent at the limit, with processes dying there


def work(path: str, log: int) -> None:
    book = open_ledger(path, head_file=f"{path}.head")
    while True:
        try:
            entry = book.reserve(**REQUEST)
        except BudgetExceededError:
            os.write(log, b"refused\n")
            time.sleep(0.005)
            continue
        os.write(log, f"reserved {entry}\n".encode())
        digest = random.randbytes(32).hex()
        book.confirm(entry, digest)
        os.write(log, f"confirmed {entry} {digest}\n".encode())


def start(path: str, log: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work(path, os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    except BaseException:
        with log.open("a") as file:
            file.write(f"failed {traceback.format_exc()!r}\n")
    os._exit(1)


def count(word: bytes, logs: list[Path]) -> int:
    return sum(log.read_bytes().count(word) for log in logs if log.exists())


def main(path: str, folder: str, workers: int, seconds: float, seed: int) -> None:
    rng = random.Random(seed)
    logs = [Path(folder) / f"{i}.log" for i in range(workers)]
    alive = [start(path, log) for log in logs]
    kills, lines, begin = 0, 0, time.monotonic()
    # A slow machine gets more time, and nobody is killed before something was written since the last kill: otherwise
    # processes that never get as far as the book would be all that is tested.
    while (elapsed := time.monotonic() - begin) < 20 * seconds:
        if elapsed > seconds and count(b"refused", logs) > REFUSALS:
            break
        patience = time.monotonic() + 2
        while (now := count(b"\n", logs)) == lines and time.monotonic() < patience:
            time.sleep(0.002)
        lines = now
        time.sleep(rng.expovariate(1 / 0.02))
        victim = rng.randrange(workers)
        os.kill(alive[victim], signal.SIGKILL)
        os.waitpid(alive[victim], 0)
        kills += 1
        alive[victim] = start(path, logs[victim])
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(kills + workers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
