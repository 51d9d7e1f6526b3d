"""Facts of a checkpoint's tokenizer and ``generation_config.json``, read as JSON when a quirk first needs them; no code runs.

``tokenizer.json`` can have tens of megabytes, nearly all of them vocabulary and merges. The rest is small and comes first, so
only that is parsed; of the vocabulary, the ids alone are read. Large files are read again only when they change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from quirks_core.base.errors import UsageError
from quirks_core.facts.model import checkpoint_file, read_config, text_config
from quirks_core.facts.unknown import UNKNOWN

_CONFIG, _FAST, _GENERATION = "tokenizer_config.json", "tokenizer.json", "generation_config.json"
#: Files of tokenizers that are not read here; where there is one of them, what the tokenizer does is unknown, not absent.
_OTHER_FORMATS = ("tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "vocab.txt")
#: Where the vocabulary begins, in the order in which the library tokenizers writes, and where it ends.
_MODEL = re.compile(rb'"model"\s*:\s*\{')
_VOCABULARY = re.compile(rb'"vocab"\s*:\s*\{')
_MERGES = re.compile(rb'"merges"\s*:\s*\[')
_ID = re.compile(rb'":\s*(\d+)')
#: Bytes of shards that are read at most: a gigabyte takes two seconds.
_MOST = 2_000_000_000
_PART = 1 << 26
#: By safetensors' name of a dtype, the bytes of a value; the last two are those of its bfloat16.
_WIDTHS = {"BF16": 2, "F32": 4}
#: Of a bfloat16 without its sign, the first byte has seven bits of the exponent: from 2**17 on, and below 2**-25, which float16
#: rounds to 0. From 2**16 to 2**17 the last bit of the exponent, which is the first one of the second byte, decides.
_LOST, _EDGE, _BEYOND = b"lm!"
_KINDS = bytes(_LOST if 0 < bits < 51 else _EDGE if bits == 71 else _BEYOND if bits > 71 else 0 for bits in range(128)) * 2


@dataclass(frozen=True, slots=True)
class _Fast:
    """What is read of a ``tokenizer.json``.

    Attributes:
        first: The special tokens that begin every encoded text.
        size: The largest id of vocabulary and added tokens, plus one.
        by_bytes: Text is split, or joined, in the manner of byte-level BPE.
        splits: The steps that split text into words, in order: the kind of each, and its regular expression or an empty text.
    """

    first: tuple[str, ...]
    size: int
    by_bytes: bool
    splits: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Checkpoint:
    """Where the files of a run's model, and of its tokenizer if that is another one, are; and its ``config.json``."""

    model: str
    revision: str | None
    tokenizer: str | None
    config: Mapping[str, Any]

    def fact(self, name: str) -> Any:
        """Returns one of `CHECKPOINT_FACTS`; None where it is known to be absent, `UNKNOWN` where the files do not show it."""
        try:
            if name.startswith("tokenizer.") and self.settings is None:
                return None
            return CHECKPOINT_FACTS[name][1](self)
        except (UsageError, OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
            return UNKNOWN  # a file that cannot be had, or whose content is not what it should be

    @cached_property
    def settings(self) -> Any:
        """``tokenizer_config.json``; None if there is no tokenizer, of which no fact is read then.

        Raises:
            UsageError: It cannot be read, or the tokenizer is of a form that is not read here.
        """
        if (file := self._file(_CONFIG)) is not None:
            return read_config(file)
        if self._file(_FAST) is None and not any(self._file(name) for name in _OTHER_FORMATS):
            return None
        raise UsageError(f"{self.tokenizer or self.model} has no {_CONFIG}")

    def fast(self) -> _Fast | None:
        """Returns what is read of ``tokenizer.json``; None if there is none."""
        if (file := self._file(_FAST)) is None:
            return None
        state = file.stat()
        return _fast(file, state.st_mtime_ns, state.st_size)

    def templates(self) -> list[str]:
        """Returns the chat templates."""
        given = self.settings.get("chat_template")
        found = [given] if isinstance(given, str) else [item["template"] for item in given or ()]
        if (file := self._file("chat_template.jinja")) is not None:
            found.append(file.read_text(encoding="utf-8"))
        return found

    def generation_config(self) -> Mapping[str, Any]:
        """Returns ``generation_config.json``; ``config.json`` where there is none, which vLLM takes in its place."""
        file = checkpoint_file(self.model, _GENERATION, self.revision)
        return read_config(file) if file is not None else self.config

    def _file(self, name: str) -> Path | None:
        if self.tokenizer in (None, self.model):
            return checkpoint_file(self.model, name, self.revision)
        return checkpoint_file(str(self.tokenizer), name)


@lru_cache(maxsize=8)
def _fast(file: Path, _changed: int, _size: int) -> _Fast:
    data = file.read_bytes()
    begin = _MODEL.search(data)
    vocabulary = _VOCABULARY.search(data, begin.end()) if begin else None
    if begin is None or vocabulary is None:  # a list (Unigram), or written by something else
        head = json.loads(data)
        tokens = head["model"]["vocab"]
        ids = list(tokens.values()) if isinstance(tokens, dict) else list(range(len(tokens)))
    else:
        head = json.loads(data[: begin.start()].rstrip().rstrip(b",") + b"}")
        end = _MERGES.search(data, vocabulary.end())
        found = _ID.findall(data, vocabulary.end(), end.start() if end else len(data))
        ids = [max(map(int, found), default=-1)]
    ids += [int(token["id"]) for token in head.get("added_tokens") or ()]
    by_bytes = any('"ByteLevel"' in json.dumps(head.get(name)) for name in ("pre_tokenizer", "decoder"))
    size = max(ids, default=-1) + 1
    return _Fast(tuple(_first(head.get("post_processor"))), size, by_bytes, _splits(head.get("pre_tokenizer")))


def _splits(step: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    steps = (step or {}).get("pretokenizers") or [step or {}]
    return tuple((str(one["type"]), (one.get("pattern") or {}).get("Regex", "")) for one in steps if "type" in one)


def _first(processor: Any) -> list[str]:
    """Returns the special tokens that a post-processor puts in front of every text."""
    if not isinstance(processor, dict):
        return []
    if processor.get("type") == "Sequence":
        return [token for one in processor["processors"] for token in _first(one)]
    first = (processor.get("single") or [{}])[0] if processor.get("type") == "TemplateProcessing" else {}
    return [first["SpecialToken"]["id"]] if "SpecialToken" in first else []


def _text(settings: Mapping[str, Any], name: str) -> str | None:
    token = settings.get(name)
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) and content else None


def _adds_bos(checkpoint: Checkpoint) -> bool:
    bos = _text(checkpoint.settings, "bos_token")
    if bos is None:
        return False
    if (fast := checkpoint.fast()) is not None:  # transformers 5 then leaves add_bos_token of the settings out
        return bos in fast.first[:1]
    return checkpoint.settings["add_bos_token"] is True


def _template_adds_bos(checkpoint: Checkpoint) -> bool:
    bos = _text(checkpoint.settings, "bos_token")
    return bos is not None and any("bos_token" in text or bos in text for text in checkpoint.templates())


def _splits_of(checkpoint: Checkpoint) -> tuple[tuple[str, str], ...]:
    return fast.splits if (fast := checkpoint.fast()) is not None else ()


def _size(checkpoint: Checkpoint) -> Any:
    listed = [int(number) + 1 for number in checkpoint.settings.get("added_tokens_decoder") or ()]
    return UNKNOWN if (fast := checkpoint.fast()) is None else max([fast.size, *listed])


def _unknown_ids(checkpoint: Checkpoint) -> Any:
    rows, size = text_config(dict(checkpoint.config)).get("vocab_size"), _size(checkpoint)
    return max(rows - size, 0) if isinstance(rows, int) and size is not UNKNOWN else UNKNOWN


def _stops(checkpoint: Checkpoint) -> list[int]:
    given = checkpoint.generation_config().get("eos_token_id")
    return sorted(set(given)) if isinstance(given, list) else [] if given is None else [int(given)]


def _outside_float16(checkpoint: Checkpoint) -> tuple[int, float]:
    """Returns how many weights are beyond 65 504, and the share that is not 0 and too small for float16.

    Raises:
        UsageError: There are no shards in safetensors' format, or more than 2 GB of them.
    """
    files = sorted(Path(checkpoint.model).expanduser().glob("*.safetensors"))
    states = [file.stat() for file in files]
    if not files or sum(state.st_size for state in states) > _MOST:
        raise UsageError(f"{checkpoint.model} has no weights that are counted")
    counts = [_of_shard(file, state.st_mtime_ns, state.st_size) for file, state in zip(files, states, strict=True)]
    beyond, lost, number = map(sum, zip(*counts, strict=True))
    return beyond, lost / max(number, 1)


@lru_cache(maxsize=64)
def _of_shard(file: Path, _modified: int, size: int) -> tuple[int, int, int]:
    beyond = lost = number = 0
    with file.open("rb") as stream:
        start = 8 + int.from_bytes(stream.read(8), "little")
        header: dict[str, Any] = json.loads(stream.read(min(start, size) - 8))
        for name, tensor in header.items():
            if name == "__metadata__" or (width := _WIDTHS.get(tensor["dtype"])) is None:
                continue
            begin, end = tensor["data_offsets"]
            if start + end > size:
                raise UsageError(f"{file} is cut off")
            stream.seek(start + begin)
            for left in range(end - begin, 0, -_PART):
                part = stream.read(min(left, _PART))
                kinds = part[width - 1 :: width].translate(_KINDS)
                number += len(kinds)
                beyond, lost = beyond + kinds.count(_BEYOND), lost + kinds.count(_LOST)
                if _EDGE in kinds:
                    pairs = zip(kinds, part[width - 2 :: width], strict=True)
                    beyond += sum(kind == _EDGE and second >= 0x80 for kind, second in pairs)
    return beyond, lost, number


#: The meaning of each fact, how it is read, and its type.
CHECKPOINT_FACTS: Mapping[str, tuple[str, Callable[[Checkpoint], Any], Any]] = {
    "tokenizer.adds_bos": ("encoding a text puts BOS in front of it", _adds_bos, bool),
    "tokenizer.template_adds_bos": ("the chat template writes BOS", _template_adds_bos, bool),
    "tokenizer.class": (
        "tokenizer_class of tokenizer_config.json",
        lambda checkpoint: _text(checkpoint.settings, "tokenizer_class"),
        str,
    ),
    "tokenizer.is_byte_level": (
        "tokenizer.json splits or joins text in the manner of byte-level BPE",
        lambda checkpoint: (fast := checkpoint.fast()) is not None and fast.by_bytes,
        bool,
    ),
    "tokenizer.pre_tokenizers": (
        "the steps by which tokenizer.json splits text into words, such as Split and ByteLevel",
        lambda checkpoint: [kind for kind, _ in _splits_of(checkpoint)],
        list[str],
    ),
    "tokenizer.split_patterns": (
        "the regular expressions by which tokenizer.json splits text into words",
        lambda checkpoint: [pattern for _, pattern in _splits_of(checkpoint) if pattern],
        list[str],
    ),
    "tokenizer.vocab_size": ("the largest id that the tokenizer knows, plus one", _size, int),
    "tokenizer.unknown_ids": (
        "ids of the model's vocabulary above all that the tokenizer knows: rows that only pad the embedding",
        _unknown_ids,
        int,
    ),
    "model.stop_token_ids": (
        "eos_token_id of generation_config.json, as a list; of config.json where there is no such file",
        _stops,
        list[int],
    ),
    "model.weights_beyond_float16": ("weights that float16 makes infinite", lambda one: _outside_float16(one)[0], int),
    "model.weights_below_float16": ("share of weights that float16 makes 0", lambda one: _outside_float16(one)[1], float),
}
