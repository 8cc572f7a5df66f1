"""Assert that a run of models/acs_latent_class.toml left what it promises: check_run_folder.py FOLDER."""

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import xarray as xr

from dpbayes.privacy import read_release


def check(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    wanted = {"spec.toml", "release.json", "trace.nc", "synthetic", "facts.json", "report.html", "truth.json"}
    assert names == wanted, names ^ wanted

    release = read_release(folder / "release.json")
    assert (release.epsilon, release.sampler, release.n_counts) == (1.0, "opendp", 40)

    with xr.open_datatree(folder / "trace.nc") as trace:
        assert trace.attrs["release_digest"] == release.digest
        cells = trace["posterior"]["cell"]
        assert dict(cells.sizes) | {"draw": 0} == {"chain": 4, "draw": 0} | dict.fromkeys(release.domain.names, 2)
        # Four lines of 128 chains of 12 draws; each further round adds as many.
        assert cells.sizes["draw"] in {1728, 3456, 5184, 6912}
        np.testing.assert_allclose(cells.sum(release.domain.names), 1, rtol=1e-9)
        assert not np.isnan(cells).any()

    frames = [pl.read_parquet(path) for path in sorted((folder / "synthetic").iterdir())]
    assert len(frames) == 5
    assert all(frame.shape == (10_000, 5) for frame in frames)

    facts = json.loads((folder / "facts.json").read_text())
    assert facts["headline"]["epsilon"] == 1.0
    assert facts["about"]["headline"]["epsilon"] == "epsilon in total, replace-one"
    assert facts["privacy"] == {"adjacency": "replace-one", "unit": "row", "delta": 0.0}
    ours, _, raw = (row["mean_l1"] for row in facts["tables"]["margin_error"])
    # Raw noise of scale 20 on 40 counts gives .008.
    assert ours < 0.02, ours
    assert raw < 0.02, raw

    page = (folder / "report.html").read_text()
    assert page.count("<img") == page.count('src="data:image/png;base64,') >= 4
    assert "http://" not in page and "https://" not in page
    for title in ("What was released", "Did the sampler converge?", "The full table", "Provenance"):
        assert title in page, title
    print(f"{folder.name}: whole; mean L1 a table {ours:.4f} (released as is {raw:.4f})")


if __name__ == "__main__":
    check(Path(sys.argv[1]))
