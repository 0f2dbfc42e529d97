"""`nearkin hierarchy build` on a folder: a tree out of a table of species."""

from __future__ import annotations

import nearkin as nk
from nearkin.data.hierarchy import load_hierarchy


def test_the_command_builds_a_tree_for_data(nearkin, photos, tmp_path):
    classes = nk.open_data(photos).classes
    rows = "".join(f"{name},order{place % 2},family{place % 3},Genus{place} x\n" for place, name in enumerate(classes))
    table = tmp_path / "table.csv"
    table.write_text(f"common name,order,family,sci_name\n{rows}")
    for name in ("tree.nwk", "tree.json"):
        code, out, err = nearkin("hierarchy", "build", table, "--data", photos, "--out", tmp_path / name, "-q")
        assert code == 0, err
        assert f"{len(classes)} classes" in out
        assert set(load_hierarchy(tmp_path / name).classes) == set(classes)
    code, _, err = nearkin("hierarchy", "build", table, "--data", photos, "--out", tmp_path / "tree.txt", "-q")
    assert (code, ".nwk" in err) == (2, True)
    code, _, err = nearkin(
        "hierarchy", "build", table, "--data", photos, "--words", table, "--out", tmp_path / "t.nwk", "-q"
    )
    assert (code, "--is-a" in err) == (2, True)
