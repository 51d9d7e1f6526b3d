"""What a proof depends on: recorded with it, compared later, so that evidence is run anew only where it has become stale."""

from __future__ import annotations

import ast
import copy
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from quirks_core.base.json_values import sha256
from quirks_core.declaration.adjustments import Patch
from quirks_core.declaration.encoding import encode
from quirks_core.declaration.quirk import Quirk
from quirks_core.facts.packages import cpu_features, cpu_kind, device, installed_platform, installed_versions
from quirks_core.plan.loaded import Loaded
from quirks_core.source.vllm_source import INSTALLED
from worker.lab.kit import lab
from worker.lab.kit.proof import PACKAGES, Proof

#: The modules that a scenario runs with.
_KIT = ("checkpoints", "lab", "paired", "prove", "scenario")
#: The parts of a declaration that change no run, because the quirk is forced or disabled there. The fingerprints of a patch are
#: left out, too: a proof on one release stays when the quirk is examined on another.
_CHANGE_NO_RUN = ("affected", "examples", "kind", "references")
_DIGITS = 16
#: Set to 1, it makes the engines of proofs eager on a GPU, too.
_EAGER = "QUIRKS_LAB_EAGER"


def captures_graphs() -> bool:
    """Returns whether the engines of proofs run CUDA graphs, as vLLM does by default: on a GPU, unless `_EAGER` is set."""
    return installed_platform() == "cuda" and os.environ.get(_EAGER) != "1"


def set_mode() -> None:
    """Leaves graphs and compilation of the lab's engines to vLLM where they are to have them; before `set_environment`."""
    if captures_graphs():
        del lab._ENGINE["enforce_eager"], lab._ENVIRONMENT["TORCHDYNAMO_DISABLE"]


def dependencies(item: Loaded) -> dict[str, str]:
    """Returns everything that the evidence of a quirk depends on, by name: versions as they are, the rest as a digest.

    The worker is none of it: tests of its own run it on every change, and a proof that was right stays right with it.
    """
    quirk = item.quirk
    runs = [run.scenario for run in quirk.paired_runs]
    patches = [patch.source for patch in quirk.adjustments if isinstance(patch, Patch)]
    installed = installed_versions()
    scenarios = list(_reached(runs))
    found = {
        "declaration": _declaration(quirk),
        "scenario": digest_of(scenarios),
        "patches": digest_of(_reached(patches)),
        "kit": digest_of(_kit(scenarios)) if runs else "",
        "platform": installed_platform() or "",
        "cpu": cpu_kind(cpu_features()) if quirk.depends_on_cpu and installed_platform() == "cpu" else "",
        "device": device(),
        "mode": "graphs" if captures_graphs() else "",
        **{name: installed.get(name, "") for name in PACKAGES},
    }
    return {name: text for name, text in found.items() if text}


def stale(item: Loaded, proof: Proof | None) -> str:
    """Says what has changed since a quirk was proved, the kind of CPU or GPU excepted; empty if nothing has."""
    if proof is None:
        return "never proved"
    now = dependencies(item)
    names = (now.keys() | proof.depends.keys()) - {"cpu", "device"}
    return ", ".join(sorted(name for name in names if now.get(name) != proof.depends.get(name)))


def _declaration(quirk: Quirk) -> str:
    parts = {name: part for name, part in encode(quirk).items() if name not in _CHANGE_NO_RUN}
    for adjustment in parts["adjustments"]:
        adjustment.pop("expects", None)
    return sha256(parts)[:_DIGITS]


def _kit(scenarios: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The kit's modules; of the kinds of checkpoints and the lab's methods only those that the scenarios name."""
    scenarios = list(scenarios)
    constants = (part.value for node in scenarios for part in ast.walk(node) if isinstance(part, ast.Constant))
    named = {value for value in constants if isinstance(value, str)}
    trees = {name: ast.parse(Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")) for name in _KIT}
    _leave_out_records(trees["scenario"])
    _keep_kinds(trees["checkpoints"], named)
    _keep_methods(trees["lab"], [*scenarios, *(tree for name, tree in trees.items() if name != "lab")])
    yield from trees.values()


def _leave_out_records(tree: ast.Module) -> None:
    """Leaves out the statements that write further keys into a result (``result["runner"] = …``): they decide nothing.

    The mode is among the dependencies by its name.
    """
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [
                part
                for part in body
                if not (isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Subscript))
                and ast.unparse(part) != "set_mode()"
            ]


def _keep_methods(tree: ast.Module, users: Iterable[ast.AST]) -> None:
    """Leaves out the lab's methods that neither its users nor a method that is kept names."""
    (lab,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Lab")
    methods = {node.name: node for node in lab.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    waiting = {name for user in users for name in _attributes(user)} | {"__init__"}
    kept: set[str] = set()
    while waiting := waiting & methods.keys() - kept:
        kept |= waiting
        waiting = {name for method in waiting for name in _attributes(methods[method])}
    lab.body = [node for node in lab.body if getattr(node, "name", "") not in methods.keys() - kept]


def _attributes(node: ast.AST) -> set[str]:
    return {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def _keep_kinds(tree: ast.Module, named: set[str]) -> None:
    """Leaves out what only other kinds of checkpoints need; nothing if none of those that are named is one."""
    tables = {
        node.target.id: node for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    kinds = tables["_CONFIGS"].value
    pairs = zip(kinds.keys, kinds.values, strict=True) if isinstance(kinds, ast.Dict) else ()
    rows = [(key, value) for key, value in pairs if isinstance(key, ast.Constant) and key.value in named]
    if not rows or not isinstance(kinds, ast.Dict):
        return
    kinds.keys, kinds.values = [key for key, _ in rows], [value for _, value in rows]
    tree.body.remove(tables["NOT_ON_CPU"])
    while unused := [node for node in tree.body if isinstance(node, ast.FunctionDef) and not _is_used(node, tree)]:
        tree.body = [node for node in tree.body if node not in unused]


def _is_used(function: ast.FunctionDef, tree: ast.Module) -> bool:
    """A function is used if it is public, or another statement names it."""
    others = (part for node in tree.body if node is not function for part in ast.walk(node))
    names = {part.id for part in others if isinstance(part, ast.Name)}
    return not function.name.startswith("_") or function.name in names


def _reached(targets: Iterable[str]) -> Iterator[ast.AST]:
    """The definitions ``module:name``, and all that they name in turn, as far as it is in their own top-level package."""
    waiting, seen = sorted(set(targets)), set[str]()
    while waiting:
        target = waiting.pop(0)
        if target in seen:
            continue
        seen.add(target)
        module, _, name = target.partition(":")
        node = INSTALLED.statement(target) if name else INSTALLED.parsed(module)
        if node is not None:
            yield node
        waiting += sorted(_named(module, name, node) - seen)


def _named(module: str, name: str, node: ast.AST | None) -> set[str]:
    """What a definition names; of a name that is imported, where it comes from."""
    found: set[str] = set()
    if node is None:
        imported = INSTALLED.imported_from(module, name)
        found |= _imported(*imported) if imported else set()
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Name):
            found.add(f"{module}:{part.id}")
        elif isinstance(part, ast.ImportFrom) and part.module:
            found |= set().union(*(_imported(part.module, alias.name) for alias in part.names))
        elif isinstance(part, ast.Import):
            found |= {alias.name for alias in part.names}
    return {target for target in found if target.partition(".")[0].partition(":")[0] == module.partition(".")[0]}


def _imported(module: str, name: str) -> set[str]:
    """A name of a module; it may be a module itself."""
    return {f"{module}:{name}", f"{module}.{name}"} if name else {module}


def digest_of(nodes: Iterable[ast.AST]) -> str:
    """Digests code by what it does: comments, docstrings, layout and imports do not count. Empty if there is none."""
    dumps = [ast.dump(_essence(copy.deepcopy(node))) for node in nodes]
    return hashlib.sha256("\0".join(dumps).encode()).hexdigest()[:_DIGITS] if dumps else ""


def _essence(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [part for part in body if not isinstance(part, ast.Import | ast.ImportFrom)]
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:]
        for name in [name for name, value in ast.iter_fields(node) if value == []]:
            delattr(node, name)  # a later Python has fields that an earlier one has not, such as type_params
    return tree
