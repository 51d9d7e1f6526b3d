"""How many of a checkpoint's weights float16 cannot hold, counted in its safetensors shards without torch."""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

from quirks_core.facts.unknown import UNKNOWN, Unknown

#: Bytes of shards that are read at most: a gigabyte takes two seconds.
_MOST = 2_000_000_000
_PART = 1 << 26
#: By safetensors' name of a dtype, the bytes of a value; the last two are those of its bfloat16.
_WIDTHS = {"BF16": 2, "F32": 4}
#: Of a bfloat16 without its sign, the first byte has seven bits of the exponent: from 2**17 on, and below 2**-25, which float16
#: rounds to 0. From 2**16 to 2**17 the last bit of the exponent, which is the first one of the second byte, decides.
_LOST, _EDGE, _BEYOND = b"lm!"
_KINDS = bytes(_LOST if 0 < bits < 51 else _EDGE if bits == 71 else _BEYOND if bits > 71 else 0 for bits in range(128)) * 2


def outside_float16(folder: str) -> tuple[int, float] | Unknown:
    """Returns how many weights are beyond 65 504, and the share that is not 0 and too small for float16.

    Returns:
        `UNKNOWN` where there are no shards in safetensors' format, or more than 2 GB of them.

    Raises:
        OSError, ValueError: A shard cannot be read.
    """
    files = sorted(Path(folder).expanduser().glob("*.safetensors"))
    states = [file.stat() for file in files]
    if not files or sum(state.st_size for state in states) > _MOST:
        return UNKNOWN
    counts = [_of_shard(file, state.st_mtime_ns, state.st_size) for file, state in zip(files, states, strict=True)]
    beyond, lost, number = map(sum, zip(*counts, strict=True))
    return beyond, lost / max(number, 1)


@lru_cache(maxsize=64)
def _of_shard(file: Path, _modified: int, _size: int) -> tuple[int, int, int]:
    beyond = lost = number = 0
    with file.open("rb") as stream:
        length = struct.unpack("<Q", stream.read(8))[0]
        header: dict[str, Any] = json.loads(stream.read(length))
        for name, tensor in header.items():
            if name == "__metadata__" or (width := _WIDTHS.get(tensor["dtype"])) is None:
                continue
            begin, end = tensor["data_offsets"]
            stream.seek(8 + length + begin)
            for left in range(end - begin, 0, -_PART):
                part = stream.read(min(left, _PART))
                kinds = part[width - 1 :: width].translate(_KINDS)
                number += len(kinds)
                beyond, lost = beyond + kinds.count(_BEYOND), lost + kinds.count(_LOST)
                if _EDGE in kinds:
                    pairs = zip(kinds, part[width - 2 :: width], strict=True)
                    beyond += sum(kind == _EDGE and second >= 0x80 for kind, second in pairs)
    return beyond, lost, number
