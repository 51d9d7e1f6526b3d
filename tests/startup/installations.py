"""What tests install without a network: the metadata of a distribution, and environments that see the packages of this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy_checkout(folder: Path, *names: str) -> Path:
    """Copies files and folders of this checkout, or all of it, as git has them or would; returns the folder."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *names]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in (name for name in found if name and os.path.lexists(ROOT / name)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def lay(site: Path, name: str, version: str, points: Mapping[str, str] | None = None, *, group: str = "model_quirks") -> None:
    """Writes the metadata of a distribution as pip would leave it, with its entry points."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    lines = [f"[{group}]", *(f"{key} = {value}" for key, value in (points or {}).items())]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def environment(folder: Path, *lines: str) -> Path:
    """Makes a virtual environment, with these lines in a ``.pth`` file; returns its interpreter."""
    venv.create(folder, symlinks=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(site, "seen.pth").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return folder / "bin" / "python"
