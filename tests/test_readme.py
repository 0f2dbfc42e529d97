"""What the README and the docs promise: the tables are complete, the wheel works."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from nearkin.objectives import losses

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/methods/index.md"])
def test_every_loss_is_listed_and_has_a_page(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in losses:
        assert f"[`{name}`]" in text
        assert (ROOT / "docs" / "methods" / f"{name}.md").exists()


def test_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


@pytest.mark.slow
def test_the_wheel_holds_recipes_and_templates_and_runs_elsewhere(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    # A fresh environment that borrows the dependencies of this one, so that nothing is downloaded again.
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    install = ["--python", python, "install", "--quiet", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    (packages,) = (tmp_path / "env" / "lib").glob("*/site-packages")
    ours = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    (packages / "borrowed.pth").write_text(f"{ours}\n")
    command = [tmp_path / "env" / "bin" / "nearkin", "recipes", "show", "cub-frozen"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "efficientnet-lite0" in shown.stdout
    code = (
        "import nearkin, numpy as np; print(nearkin.__file__);"
        "nearkin.audit(np.eye(8).repeat(3, 0), np.arange(8).repeat(3)).report('page.html')"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert str(tmp_path) in done.stdout
    assert (tmp_path / "page.html").exists()
