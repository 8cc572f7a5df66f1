"""Mutated specs, releases and records: each is run or refused in a sentence; no traceback, no hang, nothing spent."""

import copy
import gc
import heapq
import json
import random
import shutil
import signal
import time
import tomllib
import traceback
import warnings
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import polars as pl
import pytest
import tomli_w

from dpbayes.data import datasets
from dpbayes.errors import DPBayesError
from dpbayes.inference import sampling
from dpbayes.privacy import read_release, release_tables
from dpbayes.privacy.envelope import record_digest
from dpbayes.privacy.ledger import create_ledger, open_ledger
from dpbayes.runs import execute, execution, load_spec
from dpbayes.runs.execution import plan_lines

MODELS = Path(__file__).resolve().parents[2] / "models"
SECRET = "SECRET-4711"
LONGEST = 10.0  # seconds of processor time for a check, and for a run up to the sampler
LEDGERS = {"budget.db": "replace-one", "people.db": "add-remove"}

COUNTED = """
system = "latent-class"
title = "t"
[data]
microdata = "records.csv"
attribute_sets = [["age", "sex"], ["sex", "town"]]
[data.levels]
age = [0, 1, 2]
sex = ["f", "m"]
town = ["", "Île-d'Yeu", "$25k-$50k"]
[data.labels.age]
0 = "young"
[privacy]
epsilon = 1.0
ledger = "budget.db"
[model]
n_classes = 3
[sampling]
method = "nuts"
draws = 100
chains = 2
seed = 2
"""
VERIFIED = """
system = "verifier"
title = "t"
[data]
microdata = "records.csv"
levels = {sex = ["f", "m"]}
n_units = 300
[privacy]
epsilon = 2.0
n_partitions = 5
ledger = "budget.db"
[[questions]]
name = "gap"
formula = "weight ~ sex + age"
coefficient = "sex[T.m]"
threshold = 0.0
[[questions]]
name = "mean"
formula = "weight ~ sex"
coefficient = "sex[T.m]"
threshold = 0.0
answer_by = "mean"
lower = -1.0
upper = 1.0
[model]
draws = 50
chains = 2
"""
MOMENTS = """
system = "mvg"
title = "t"
[data]
file = "records.csv"
ranges = {age = [0.0, 2.0], weight = [0.0, 1.0]}
[privacy]
epsilon = 1.0
delta = 1e-5
ledger = "budget.db"
[regression]
predictors = ["age"]
response = "weight"
draws = 50
"""
PRIOR_AWARE = """
system = "ide"
title = "t"
[data]
public = "public.csv"
private = "records.csv"
by = "sex"
tables = "by-feature"
[data.levels]
age = ["0", "1", "2"]
sex = ["f", "m"]
[privacy]
epsilon = 2.0
ledger = "budget.db"
[estimation]
iterations = 50
[synthesis]
n_rows = 20
"""
GROUPED = """
system = "ide"
title = "t"
[data]
public = "public.csv"
private = "records.csv"
[data.levels]
age = ["0", "1", "2"]
sex = ["f", "m"]
[groups]
attribute = "place"
parent = {a = "x", b = "x", c = "y"}
[privacy]
epsilon = 2.0
ledger = "people.db"
[estimation]
iterations = 50
"""
AUDIENCE = """
system = "bloom"
title = "t"
[audience]
n_people = 500
shares = [0.4, 0.2]
[filters]
n_bits = 1000
[privacy]
epsilon = 1.0
delta = 1e-3
"""
SPECS = {
    "counted": COUNTED, "verified": VERIFIED, "moments": MOMENTS, "prior-aware": PRIOR_AWARE, "grouped": GROUPED,
    "audience": AUDIENCE,
    "reach": MODELS.joinpath("bloom_reach.toml").read_text(encoding="utf-8"),
    "designs": 'system = "verifier"\ntitle = "t"\n[surface]\nn_partitions = [5]\nepsilon = [1.0]\nr = [0.8]\n',
    "embedded": MODELS.joinpath("acs_latent_class.toml").read_text(encoding="utf-8"),
}  # fmt: skip
WITH_RECORDS = ("counted", "verified", "moments", "prior-aware", "grouped")

NUMBERS = [-1, 0, 1, 2, 3, 10**18, 2**63, 10**400, -0.5, 0.5, 1e-320, 1e308, 1e18]
WORDS = ["", " ", "\n", "a" * 20_000, "0", "nan", "../x", "~", "a/b", "#", '"', "é\u202e", "\0", "f", "x", "[", "`"]
WORDS += ["laplace", "gaussian", "discrete-gaussian", "add-remove", "replace-one", "nuts", "mean", "weight ~ (age)**9"]
OTHERS = [True, False, [], {}, [[]], [0.5, 0.5], ["age"], {"age": 1}, float("nan"), float("inf"), -float("inf")]


class _ReachedError(Exception):
    """The sampler was reached: everything that can be refused before it was let through."""


@pytest.fixture
def stopped(monkeypatch):
    """Stop where a model would be compiled for sampling; what comes before is what is tested."""

    monkeypatch.setattr(sampling, "callbacks", mock.Mock(side_effect=_ReachedError))
    monkeypatch.setattr(sampling, "batched_density", mock.Mock(side_effect=_ReachedError))


@pytest.fixture
def stopped_at_the_prior(stopped, monkeypatch):
    """Stop before draws from the prior too, of which a release has no part but its shape: they take seconds."""
    monkeypatch.setattr(sampling, "prior_predictive", mock.Mock(side_effect=_ReachedError))


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Return a folder with records, a ledger, and one spec of every kind."""
    folder = tmp_path_factory.mktemp("studies")
    lines = [f'{i % 3},{"fm"[i % 2]},0.{i % 7},{["", "Île-d" + chr(39) + "Yeu", "$25k-$50k"][i % 3]},{"abc"[i % 3]}'
             for i in range(300)]  # fmt: skip
    for name in ("records.csv", "public.csv"):
        (folder / name).write_text("\n".join(["age,sex,weight,town,place", *lines]), encoding="utf-8")
    shutil.copy(MODELS / "bloom_reach.csv", folder)
    for name, adjacency in LEDGERS.items():
        create_ledger(folder / name, epsilon=50.0, delta=1e-3, adjacency=adjacency)
    for name, text in SPECS.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder


@contextmanager
def deadline(seconds):
    """Raise after so many seconds of processor time: of a busy machine a clock on the wall says little."""

    def late(signum, frame):
        raise TimeoutError(f"still at work after {seconds:g} s")

    former = signal.signal(signal.SIGPROF, late)
    gc.disable()  # what is raised while garbage is collected is lost
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


def outcome(action):
    """Return how an action ends in a word, what is wrong with that, if anything, and its seconds of processor time."""
    started = time.process_time()
    ended, fault = ending(action)
    return ended, fault, time.process_time() - started


def ending(action):
    """Return how an action ends in a word, and what is wrong with that, if anything."""
    try:
        with deadline(LONGEST), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            action()
    except _ReachedError:
        return "sampler", None
    except TimeoutError as error:
        return "late", "".join(traceback.format_exception(error)[-3:])
    except (DPBayesError, OSError) as error:
        return "refused", fault_of(str(error), ours=isinstance(error, DPBayesError))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "traceback", "".join(traceback.format_exception(error)[-4:])
    return "done", None


def fault_of(message, ours):
    """Return what is wrong with the words of a refusal."""
    if SECRET in message:
        return f"shows a record: {message[:500]}"
    return f"too long: {message[:500]}" if ours and len(message) > 20_000 else None


def check_and_run(folder, name):
    """Check and run a spec as the commands do; return both endings, what is wrong with them, and the longer time."""
    path = folder / f"{name}.toml"
    checked, fault, first = outcome(lambda: plan_lines(load_spec(path)))
    faults = [f"check: {fault}"] if fault else []
    run = partial(execute, out=folder / "run", progressbar=False, echo=lambda line: None)
    ran, fault, second = outcome(lambda: run(load_spec(path)))
    faults += [f"run: {fault}"] if fault else []
    if ran == "refused":
        spent = [entry for name in LEDGERS for entry in open_ledger(folder / name).entries()]
        if spent or list(folder.glob("run*/release.json")):
            faults.append(f"run: refused after the release was drawn ({len(spent)} entries in the ledger)")
    return f"check {checked}, run {ran}", faults, max(first, second)


def paths_of(tree, path=()):
    """Yield the path of every node below the root."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from paths_of(value, (*path, key))


def mutated(tree, rng, odd):
    """Return a copy of a tree with one node, or two, changed."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice([1, 1, 2])):
        paths = list(paths_of(tree))
        if not paths:
            return tree
        *above, last = rng.choice(paths)
        node = tree
        for key in above:
            node = node[key]
        kind = rng.randrange(10)
        if kind == 0:
            del node[last]
        elif kind == 1 and isinstance(node, dict):
            node[f"{last}{rng.choice(['', 's', '_', ' '])}"] = node.pop(last)
        elif kind == 2 and isinstance(node, list):
            node.insert(rng.randrange(len(node) + 1), copy.deepcopy(node[last]))
        elif kind in (3, 6, 7) and type(node[last]) in (int, float):
            node[last] = node[last] * rng.choice([-1, 0, 2, 10, 1000, 10**9])
        elif kind == 4:
            node[last] = [node[last]] * rng.choice([1, 2, 3000])
        elif kind == 5:
            source = tree
            for key in rng.choice(paths):
                source = source[key] if not isinstance(source, list) or key < len(source) else source
                if not isinstance(source, dict | list):
                    break
            node[last] = copy.deepcopy(source)
        else:
            node[last] = copy.deepcopy(rng.choice(odd))
    return tree


def scrambled(data, rng, secret="1"):
    """Return bytes with some of them changed."""
    for _ in range(rng.choice([1, 1, 1, 3])):
        place = rng.randrange(len(data) + 1)
        end = min(len(data), place + rng.choice([1, 3, 40]))
        odd = rng.choice([b'"', b"\n", b",", b"=", b"[", b"]", b"\xff", b"\0", b"\r", b"'", b"#", b";", b"\xef\xbb\xbf",
                          secret.encode(),
                          b"9" * 400, b"1e999", b"-1", b"x" * 20_000, "é".encode(), b"\t", b"{"])  # fmt: skip
        kind = rng.randrange(4)
        middle = {0: b"", 1: odd, 2: data[place:end] * 2, 3: odd + data[place:end]}[kind]
        data = data[:place] + middle + data[end:]
    return data


def mutated_spec(text, rng):
    """Return the bytes of a spec that was changed, mostly in its values."""
    if rng.random() < 0.25:
        return scrambled(text.encode(), rng)
    while True:
        try:
            written = tomli_w.dumps(mutated(tomllib.loads(text), rng, NUMBERS + WORDS + OTHERS))
        except (TypeError, ValueError):  # no TOML, such as a number of too many digits
            continue
        return written.encode()


def copied(studies, tmp_path, number):
    folder = tmp_path / str(number)
    shutil.copytree(studies, folder)
    return folder


class Tally:
    """How the cases of a seed ended, how long they took, and what was wrong."""

    def __init__(self, what, seed):
        self.what, self.seed, self.counts, self.times, self.faults = what, seed, Counter(), [], []

    def add(self, case, found, details=""):
        ended, wrong, seconds = found
        self.counts[f"{case[1]}: {ended}"] += 1
        self.note(case, ended, wrong, seconds, details)

    def accepted(self, case, action):
        """Return whether an action that reads a mutation comes to its end."""
        ended, fault, seconds = outcome(action)
        self.note(case, f"reading {ended}", [f"reading: {fault}"] if fault else [], seconds)
        return ended == "done"

    def note(self, case, ended, wrong, seconds, details=""):
        name = "case {}, {}".format(*case)
        self.times.append((seconds, f"{name}: {ended}"))
        self.faults += [f"{name} of seed {self.seed}: {fault}{details}" for fault in wrong]

    def tell(self):
        """Print the counts and the slowest cases, and fail with the first faults."""
        counts = "; ".join(f"{n} {key}" for key, n in sorted(self.counts.items()))
        print(f"\n{sum(self.counts.values())} {self.what} of seed {self.seed}: {counts}\nslowest, of processor time:")
        for seconds, name in heapq.nlargest(5, self.times):
            print(f"  {seconds:.1f} s, {name}")
        assert not self.faults, f"{len(self.faults)} faults\n" + "\n---\n".join(self.faults[:12])


def written_spec(folder, name, rng, accepted):
    """Write a mutated spec; half of them are ones that validate, so that later stages have something to refuse."""
    path = folder / f"{name}.toml"
    texts = [SPECS[name], load_spec(path).resolved, load_spec(path).resolved]  # with the keys that have a default
    validates = rng.random() < 0.5
    for _ in range(50):
        path.write_bytes(mutated_spec(rng.choice(texts), rng))
        if not validates or accepted(lambda: load_spec(path)):
            break
    return path.read_bytes()


def run_mutated_specs(studies, tmp_path, number, seed):
    rng, tally = random.Random(seed), Tally("mutated specs", seed)
    for case in range(number):
        name = rng.choice(list(SPECS))
        folder = copied(studies, tmp_path, case)
        written = written_spec(folder, name, rng, partial(tally.accepted, (case, name)))
        lines = [line[:200] for line in written.splitlines() if line not in SPECS[name].encode().splitlines()]
        tally.add((case, name), check_and_run(folder, name), f"\n{lines[:40]!r}")
        shutil.rmtree(folder)
    tally.tell()


# Releases


@pytest.fixture(scope="module")
def releases(studies):
    """Return the JSON of a release of every kind, and the spec of a run that reads it."""
    from dpbayes.bloom import read_reach_numbers

    rng = np.random.default_rng(5)
    found = {}
    for name in ("counted", "verified", "moments", "prior-aware", "grouped", "audience"):
        loaded = load_spec(studies / f"{name}.toml")
        found[name] = loaded.module.design(loaded.spec, studies).to_dict()
    found["reach"] = read_reach_numbers(studies / "bloom_reach.csv").to_dict()
    tables = datasets.acs_tables()
    for noise in ("laplace", "discrete-gaussian", "gaussian"):
        cost = {"rho": 0.5} if "gaussian" in noise else {"epsilon": 1.0}
        found[noise] = release_tables(tables[:3], noise=noise, rng=rng, **cost).to_dict()
    noisy_n = {"adjacency": "add-remove", "total_share": 0.1, "epsilon": 1.0}
    found["noisy number of records"] = release_tables(tables[:3], rng=rng, **noisy_n).to_dict()
    return json.loads(json.dumps(found))


READS = {
    "counted": 'system = "latent-class"\ntitle = "t"\n[data]\nrelease = "given.json"\n[model]\nn_classes = 3\n',
    "verified": 'system = "verifier"\ntitle = "t"\n[data]\nrelease = "given.json"\n[model]\ndraws = 50\n',
    "moments": 'system = "mvg"\ntitle = "t"\n[data]\nrelease = "given.json"\n[regression]\npredictors = ["age"]\n'
    'response = "weight"\ndraws = 50\n',
    "prior-aware": 'system = "ide"\ntitle = "t"\n[data]\npublic = "public.csv"\nrelease = "given.json"\nby = "sex"\n'
    '[data.levels]\nage = ["0", "1", "2"]\nsex = ["f", "m"]\n[estimation]\niterations = 50\n',
    "grouped": 'system = "ide"\ntitle = "t"\n[data]\npublic = "public.csv"\nrelease = "given.json"\n[data.levels]\n'
    'age = ["0", "1", "2"]\nsex = ["f", "m"]\n[groups]\nattribute = "place"\n[estimation]\niterations = 50\n',
    "audience": 'system = "bloom"\ntitle = "t"\n[data]\nrelease = "given.json"\n',
    "reach": 'system = "bloom"\ntitle = "t"\n[data]\nrelease = "given.json"\n[lattice]\npopulation = 5e6\n',
}


def mutated_release(data, rng):
    """Return the bytes of a damaged release file; half of them carry the digest of what they say now."""
    sealed = data | {"digest": record_digest(data)}
    if rng.random() < 0.3:
        return scrambled(json.dumps(sealed).encode(), rng)
    changed = mutated(data, rng, [*NUMBERS, *WORDS, *OTHERS, None])
    with suppress(ValueError):  # NaN has no canonical form
        changed = changed | {"digest": record_digest(changed)}
    return json.dumps({"digest": sealed["digest"]} | changed).encode()


def written_release(path, data, rng, accepted):
    """Write a mutated release; half of them are ones that read, so that later stages have something to refuse."""
    reads = rng.random() < 0.5
    for _ in range(30):
        path.write_bytes(mutated_release(data, rng))
        if not reads or accepted():
            break


def read_and_stated(path):
    """Read a spec and its release, and say of both what needs no model; return what `check_and_run` does.

    Every system builds its model from a release that was checked, which takes a thousand times as long as the check.
    """
    with mock.patch.object(execution, "_model_lines", lambda loaded, design: []):
        ended, fault, seconds = outcome(lambda: plan_lines(load_spec(path)))
    return ended, [f"reading: {fault}"] if fault else [], seconds


def run_mutated_releases(studies, releases, tmp_path, number, seed, fitted):
    """Check and run `number` releases of every kind that are refused; of those that read fit one in so many."""
    rng, tally = random.Random(seed), Tally("mutated releases", seed)
    for kind, data in releases.items():
        folder, read = copied(studies, tmp_path, kind), 0
        (folder / "reader.toml").write_text(READS.get(kind, READS["counted"]), encoding="utf-8")
        given = folder / "given.json"
        given.write_text(json.dumps(data | {"digest": record_digest(data)}), encoding="utf-8")
        reader = getattr(load_spec(folder / "reader.toml").module, "read_release", read_release)
        reader(given)  # what is not damaged reads
        for case in range(number):
            written_release(given, data, rng, partial(tally.accepted, (case, kind), partial(reader, given)))
            found = read_and_stated(folder / "reader.toml")
            if found[0] != "done" or read % fitted == 0:
                found = check_and_run(folder, "reader")
            read += found[0] != "check refused, run refused"
            tally.add((case, kind), found)
            for path in folder.glob("run*"):
                shutil.rmtree(path)
    tally.tell()


# Records


def run_mutated_records(studies, tmp_path, number, seed):
    rng, tally = random.Random(seed), Tally("mutated files of records", seed)
    plain = (studies / "records.csv").read_bytes()
    for case in range(number):
        name = WITH_RECORDS[case % len(WITH_RECORDS)]
        folder = copied(studies, tmp_path, case)
        if rng.random() < 0.2:
            pl.read_csv(plain).write_parquet(folder / "records.parquet")
            (folder / "records.parquet").write_bytes(scrambled((folder / "records.parquet").read_bytes(), rng, SECRET))
            (folder / f"{name}.toml").write_text(SPECS[name].replace("records.csv", "records.parquet"))
        else:
            (folder / "records.csv").write_bytes(scrambled(plain, rng, SECRET))
        found = check_and_run(folder, name)
        written = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("records")]
        if any(SECRET.encode() in path.read_bytes() for path in written):
            found[1].append("a file holds a value of the records")
        tally.add((case, name), found)
        shutil.rmtree(folder)
    tally.tell()


# A small slice of each by default; pytest -m slow -s prints the counts of the rest.


def test_a_few_mutated_specs(stopped, studies, tmp_path):
    run_mutated_specs(studies, tmp_path, 25, 1)


def test_a_few_mutated_releases(stopped_at_the_prior, studies, releases, tmp_path):
    run_mutated_releases(studies, releases, tmp_path, 4, 1, fitted=4)


def test_a_few_mutated_files_of_records(stopped, studies, tmp_path):
    run_mutated_records(studies, tmp_path, 10, 1)


@pytest.mark.slow
def test_a_thousand_mutated_specs(stopped, studies, tmp_path):
    run_mutated_specs(studies, tmp_path, 1000, 2)


@pytest.mark.slow
def test_five_hundred_mutated_releases_of_every_kind(stopped_at_the_prior, studies, releases, tmp_path):
    run_mutated_releases(studies, releases, tmp_path, 500, 2, fitted=20)


@pytest.mark.slow
def test_two_hundred_mutated_files_of_records(stopped, studies, tmp_path):
    run_mutated_records(studies, tmp_path, 200, 2)
