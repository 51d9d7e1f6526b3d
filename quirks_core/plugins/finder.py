"""Finds plugins without importing them, loads them one by one, and sorts out those that do not fit together.

An entry point of the group ``model_quirks`` names a package whose files are quirks, a single `Quirk`, or an object with hooks.
A file of such a package declares the quirk of its own name (``foo_bar.py`` declares ``foo-bar``) as ``QUIRK``, or several, each
as a row ``NAME = Quirk(id="…", …)``. A file with neither is a helper, and so is one whose name begins with ``_`` or ends in
``_patches``.
"""

from __future__ import annotations

import ast
import keyword
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import EntryPoint, entry_points
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from quirks_core.base.errors import DeclarationError, shortened, shown, words
from quirks_core.declaration.flags import BUILT_IN, Kind, folder_of
from quirks_core.source.vllm_source import INSTALLED

if TYPE_CHECKING:  # a list of quirks needs neither pluggy nor pydantic
    import pluggy

    from quirks_core.declaration.quirk import Quirk
    from quirks_core.plan.records import Switch
    from quirks_core.plan.switches import Switches

_T = TypeVar("_T")
#: Name of the pluggy project and of the entry-point group.
PROJECT = "model_quirks"
#: The quirk of a file's own name; the id, if it stands first.
_OWN = re.compile(rb'\nQUIRK\b *(?::[^=\n]*)?= *(?:\w+\(\s*id="([^"\n]+)")?')
#: A row of a file with several quirks.
_ROW = re.compile(rb'\n([A-Za-z]\w*)\b *(?::[^=\n]*)?= *(?!dict\b)\w+\(\s*id="([^"\n]+)"')


# Find


@dataclass(frozen=True, slots=True)
class Discovered:
    """A plugin before loading: its metadata.

    Attributes:
        name: Name of the entry point; of a quirk that was found in a file, its id.
        distribution: The distribution that has it.
        version: The distribution's version.
        entry_point: The entry point, or the one that would name the quirk in the file.
        problem: Why it cannot be loaded; empty if it can.
        file: The file that it was found in, starting at its top-level package; empty if an entry point names it.
    """

    name: str
    distribution: str
    version: str
    entry_point: EntryPoint
    problem: str = ""
    file: str = ""

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.distribution} {self.version}"

    @property
    def module(self) -> str:
        """The module that loading would import."""
        return self.entry_point.value.partition(":")[0].strip()


def discover() -> list[Discovered]:
    """Finds every plugin from metadata and the names of files, sorted; imports none."""
    points = [(point, point.dist) for point in entry_points(group=PROJECT) if point.dist is not None]
    # The metadata file takes longer to read than everything else; so once per distribution.
    each = {id(dist): dist.metadata for dist in {id(dist): dist for _, dist in points}.values()}
    names = {key: (found["Name"] or "unknown", found["Version"] or "unknown") for key, found in each.items()}
    found = [item for point, dist in points for item in _discovered(Discovered(point.name, *names[id(dist)], point))]
    return sorted(found, key=lambda item: (item.distribution != BUILT_IN, item.distribution, item.name))


def file_name(quirk_id: str) -> str:
    """Returns the name, without ``.py``, of the file that declares a quirk: its id in underscores, without a distribution."""
    name = re.sub(r"[^a-z0-9]+", "_", quirk_id.rpartition("/")[2])
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"quirk_{name}"


def _discovered(item: Discovered) -> Iterable[Discovered]:
    """The quirks in the files of the package that an entry point names; the plugin itself if it names something else."""
    value = item.entry_point.value
    if not item.entry_point.pattern.match(value):
        return [replace(item, problem=f"{value!r} is not of the form package.module:attribute")]
    found: dict[str, Discovered] = {}
    for module, path in _modules(item.module) if ":" not in value else ():
        file, stem = f"{module.replace('.', '/')}.py", module.rpartition(".")[2]
        try:
            declared, problem = _declared_in(path, stem), ""
        except OSError as error:
            declared, problem = [("QUIRK", stem.replace("_", "-"))], f"{file} cannot be read: {error.strerror}"
        for name, quirk_id in declared:
            if other := found.get(quirk_id):
                problem = f"{other.file} and {file} both declare the quirk {quirk_id!r}: rename one of them"
            point = EntryPoint(quirk_id, f"{module}:{name}", PROJECT)
            found[quirk_id] = Discovered(quirk_id, item.distribution, item.version, point, problem, file)
    return found.values() or [item]


def _modules(name: str) -> Iterator[tuple[str, str]]:
    """Yields the modules of a package that may declare quirks; none if it is no package, or declares quirks by a hook."""
    package, *parts = name.split(".")
    for root in INSTALLED.places(package):
        init = Path(root, *parts, "__init__.py")
        if init.is_file() and b"quirks_declare" not in init.read_bytes():
            yield from _modules_in(str(init.parent), name)


def _modules_in(folder: str, package: str) -> Iterator[tuple[str, str]]:
    """Yields what can be imported and is no helper by its name; a folder without ``__init__.py`` is a leftover."""
    with os.scandir(folder) as entries:
        found = {entry.name: entry for entry in entries}
    for name in sorted(found) if "__init__.py" in found else ():
        stem, dot, suffix = name.partition(".")
        if stem.startswith("_") or stem.endswith("_patches") or not stem.isidentifier():
            continue
        if suffix == "py":
            yield f"{package}.{stem}", found[name].path
        elif not dot and found[name].is_dir():
            yield from _modules_in(found[name].path, f"{package}.{stem}")


def _declared_in(path: str, stem: str) -> list[tuple[str, str]]:
    """Returns the names that a file gives quirks, with their ids: ``QUIRK``, or rows."""
    with FileIO(path) as file:
        source = b"\n" + file.readall()
    if own := _OWN.search(source):
        written, plain = (own[1] or b"").decode(errors="replace"), stem.replace("_", "-")
        # A third party's id begins with its distribution.
        return [("QUIRK", written if written != plain and file_name(written) == stem else plain)]
    return [(name.decode(), quirk_id.decode(errors="replace")) for name, quirk_id in _ROW.findall(source)]


class About(NamedTuple):
    """What a declaration's source states about a quirk; None where it is no constant there."""

    title: str | None = None
    flag: str | None = None
    kind: str | None = None


def about(item: Discovered) -> About:
    """Reads the call of `Quirk` that an entry point names; nothing is known of a plugin that declares its quirks by a hook."""
    module, _, name = (part.strip() for part in item.entry_point.value.partition(":"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python warns of in a third party's source
            found = INSTALLED.statement(f"{module}:{name}") if name else None
    except Exception:  # a file that cannot be read, or is nothing that Python can take
        return About()
    call = found.value if isinstance(found, ast.Assign | ast.AnnAssign) else None
    if not isinstance(call, ast.Call) or not call.keywords:
        return About()
    given = {word.arg: word.value for word in call.keywords}
    is_whole = not call.args and None not in given  # no * or ** hides a kind
    kind = _text(given["kind"]) if "kind" in given else Kind.WORKAROUND if is_whole else None
    flag = _text(given["flag"]) if "flag" in given else folder_of(module) or None if is_whole else None
    return About(_text(given.get("title")), flag, kind if kind in tuple(Kind) else None)


def _text(node: ast.expr | None) -> str | None:
    """The text that an argument is, or what ``ModelFlag.LOAD_FORMAT`` or ``Kind.RULE`` names."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Attribute(value=ast.Name(id="Kind" | "ModelFlag"), attr=name):
            return name.lower()
    return None


# Load


@dataclass(frozen=True, slots=True)
class Broken:
    """A plugin that did not load, and why."""

    plugin: Discovered
    error: str

    def __str__(self) -> str:
        return f"{self.plugin} ({self.plugin.entry_point.value}) is broken: {self.error}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A plugin that was not loaded because its distribution is switched off, or the quirk in its file."""

    plugin: Discovered
    switch: Switch

    @property
    def is_alone(self) -> bool:
        """The quirk is switched off by its name."""
        return self.switch.name == self.plugin.name

    def __str__(self) -> str:
        return f"{self.plugin} was not loaded: {self.switch}"


def load(
    manager: pluggy.PluginManager, found: Iterable[Discovered], switches: Switches | None
) -> tuple[list[tuple[Discovered, list[Quirk]]], list[Broken], list[Skipped]]:
    """Imports plugins one by one and registers their hooks; one with anything wrong, also beside others, stays unregistered.

    Returns:
        Those that loaded, with their quirks; those that did not; and those that are switched off, which are not even imported.
    """
    plugins: list[tuple[Discovered, list[Quirk]]] = []
    broken: list[Broken] = []
    skipped: list[Skipped] = []
    for item in found:
        if switches and (switch := switches.turns_off(item.distribution, item.name if item.file else "")):
            skipped.append(Skipped(item, switch))
            continue
        try:
            quirks = contained(item.module, lambda item=item: _load(manager, item))  # type: ignore[misc]  # no type of a default
            for quirk in quirks:  # a third party's own kind of match may raise
                contained(item.module, lambda quirk=quirk: (quirk.fact_names, quirk.model_types))  # type: ignore[misc]
            plugins.append((item, quirks))
        except DeclarationError as error:
            broken.append(Broken(item, shortened(str(error))))
    taken = taken_ids(plugins)
    for item, problem in taken.items():
        if manager.has_plugin(_plugin_name(item)):
            manager.unregister(name=_plugin_name(item))
        broken.append(Broken(item, shortened(problem)))
    return [(item, quirks) for item, quirks in plugins if item not in taken], broken, skipped


def _plugin_name(item: Discovered) -> str:
    """The name by which pluggy knows a plugin."""
    return f"{item.distribution}:{item.name}"


def _load(manager: pluggy.PluginManager, item: Discovered) -> list[Quirk]:
    from quirks_core.declaration.quirk import Quirk

    if item.problem:
        raise DeclarationError(item.problem)
    plugin = item.entry_point.load()
    if isinstance(plugin, Quirk):
        if plugin.id != item.name:
            where = f"{plugin.location}: the file" if item.file else "the entry point"
            raise DeclarationError(f"{where} is named {item.name!r} but the quirk's id is {plugin.id!r}")
        return [plugin]  # it has no hooks, so that pluggy need not know it
    name = _plugin_name(item)
    manager.register(plugin, name)
    own = [impl for impl in manager.hook.quirks_declare.get_hookimpls() if impl.plugin_name == name]
    try:
        manager.check_pending()  # a misspelt hook would never be called
        if not own:
            raise DeclarationError(f"{item.entry_point.value} is neither a Quirk nor a plugin with a quirks_declare hook")
        quirks: list[Any] = list(own[0].function())  # type: ignore[call-overload]  # pluggy types it as object
        if wrong := [quirk for quirk in quirks if not isinstance(quirk, Quirk)]:
            raise DeclarationError(f"quirks_declare returned {shown(wrong[0])}, which is no Quirk")
    except BaseException:
        manager.unregister(name=name)
        raise
    return quirks


def contained(module: str, function: Callable[[], _T]) -> _T:
    """Calls a plugin's code: its output goes to standard error, and an error becomes one line with its place in the plugin.

    Raises:
        DeclarationError: The code raised, or tried to end the program.
    """
    try:
        with redirect_stdout(sys.stderr):
            return function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: a plugin does not end the program
        text = str(error) if isinstance(error, DeclarationError) else words(error)
        raise DeclarationError(f"{_place(error, module.partition('.')[0])}{text}") from error


def _place(error: BaseException, package: str) -> str:
    """The last line of a package through which an error came, as ``acme_quirks/eager.py:12: ``; empty if there is none."""
    from quirks_core.declaration.quirk import from_package

    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)
              if frame.f_globals.get("__name__", "").partition(".")[0] == package]  # fmt: skip
    return f"{from_package(frames[-1][0].f_code.co_filename, package)}:{frames[-1][1]}: " if frames else ""


# Classify


def taken_ids(plugins: Iterable[tuple[Any, Iterable[Any]]]) -> dict[Any, str]:
    """Returns the plugins that are broken by an id: it is ours if we declare it; otherwise all that declare it are broken.

    Args:
        plugins: Each with a distribution and its version, and its quirks: an id and a location.
    """
    owners: dict[str, list[tuple[Any, Any]]] = {}
    for item, quirks in plugins:
        for quirk in quirks:
            owners.setdefault(quirk.id, []).append((item, quirk))
    found: dict[Any, str] = {}
    for quirk_id, claims in owners.items():
        if len(claims) > 1:
            for item, quirk in claims:
                if item.distribution == BUILT_IN:
                    continue
                others = [(other, same) for other, same in claims[:4] if same is not quirk or other is not item]
                owned = " and ".join(f"{other.distribution} {other.version} ({q.location})" for other, q in others) or "itself"
                found[item] = f"quirk id {quirk_id!r} is taken by {owned}: begin it with the distribution's name and a slash"
    return found


def find_circle(replaced: Mapping[str, Iterable[str]]) -> list[str]:
    """Returns the ids of a circle, each before one that it replaces, the first one again at its end; empty if there is none."""
    try:
        TopologicalSorter(replaced).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))  # the error lists them in reverse order
    return []
