"""What the guide to bulk embedding promises: its job scripts do every shard once, its snippets run."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

import nearkin as nk
from nearkin.models.bulk import embed_shards

PAGE = (Path(__file__).parents[3] / "docs/guide/bulk-embedding.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A command `nearkin` that writes down the shard it is given; the file it writes to."""
    command = tmp_path / "bin" / "nearkin"
    command.parent.mkdir()
    command.write_text('#!/bin/sh\necho "$*" "task=$SLURM_ARRAY_TASK_ID" >> "$TOLD"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    return tmp_path / "told"


@pytest.mark.skipif(shutil.which("xargs") is None, reason="there is no xargs")
def test_xargs_does_every_shard_once(told):
    script = next(block for block in blocks("bash") if "xargs" in block)
    subprocess.run(["bash", "-euc", script], check=True)
    shards = sorted(int(re.search(r"--shards 16 --shard (\d+)", line)[1]) for line in told.read_text().splitlines())
    assert shards == list(range(16))


def test_the_array_of_slurm_has_as_many_tasks_as_shards(told, monkeypatch):
    script = next(block for block in blocks("bash") if "#SBATCH" in block)
    first, last = map(int, re.search(r"--array=(\d+)-(\d+)", script).groups())
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(last))
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    subprocess.run(["bash", "-euc", script], check=True)
    assert first == 0
    assert f"--shards {last + 1} --shard auto" in told.read_text()


def test_the_job_of_kubernetes_has_as_many_pods_as_shards():
    (job,) = map(yaml.safe_load, blocks("yaml"))
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert command[command.index("--shards") + 1] == str(job["spec"]["completions"])
    assert command[command.index("--shard") + 1] == "auto"


def test_the_snippets_run(make_embedder, photos, tmp_path, monkeypatch, capsys):
    shutil.copytree(photos, tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    model = make_embedder(channels=3)
    monkeypatch.setattr(nk, "load", lambda _: model, raising=False)
    read, made = blocks("python")
    names: dict = {}
    exec(compile(made, "bulk-embedding.md", "exec"), names)
    assert names["reports"][0].rows == 3
    embed_shards(model, nk.open_data("photos/"), "vectors/", shards=16, progress=False)
    exec(compile(read, "bulk-embedding.md", "exec"), names)
    assert names["found"].vectors.shape == (48, 8)
    assert "part-00003-of-00016.parquet 3 ()" in capsys.readouterr().out
