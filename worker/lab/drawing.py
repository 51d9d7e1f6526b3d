"""Figures of the lab's reports: as SVG in the colours of a page, and as PNG."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quirks_core.base.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours by role; the page has variables of these names. Blue and orange differ with every kind of colour blindness.
COLOURS = {
    "ink": "#1b1f24", "muted": "#5c6670", "line": "#d5dae0", "good": "#2a6f9e", "bad": "#c8500a", "paper": "#ffffff",
    "h0": "#f3f7fa", "h1": "#e3eef6", "h2": "#c6ddec", "h3": "#9fc7e1", "h4": "#fbdcbc", "h5": "#f2a766", "h6": "#b84708",
}  # fmt: skip


@contextmanager
def new_figure(size: tuple[float, float], text: float) -> Iterator[Figure]:
    """Yields an empty figure whose file is the same every time, whatever the user's matplotlibrc sets."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("the figures need matplotlib: pip install 'model-quirks[parity]'") from error
    style: Any = {
        # The backend stays as the caller has it.
        **{name: value for name, value in mpl.rcParamsDefault.items() if not name.startswith("backend")},
        "svg.hashsalt": "parity",
        "svg.fonttype": "none",
        "font.family": ["DejaVu Sans"],
        "font.size": text,
        "text.parse_math": False,
        "text.color": COLOURS["ink"],
        "axes.labelcolor": COLOURS["muted"],
        "axes.edgecolor": COLOURS["line"],
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": COLOURS["line"],
        "ytick.color": COLOURS["line"],
        "xtick.labelcolor": COLOURS["muted"],
        "ytick.labelcolor": COLOURS["muted"],
        "legend.frameon": False,
        "legend.labelcolor": COLOURS["muted"],
    }
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a missing glyph is drawn as a box
        yield Figure(figsize=size, layout="constrained")


def as_png(figure: Figure) -> bytes:
    """Returns the figure as a file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100, facecolor=COLOURS["paper"], metadata={"Software": None})
    return file.getvalue()


def as_svg(figure: Figure, name: str, label: str) -> str:
    """Returns the figure as an element of a page: in the page's colours, and with unique ids."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = file.getvalue().partition("<svg ")[2]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->\s*|xlink:", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|\bhref="#|url\(#)', rf"\g<1>{name}-", text)
    for role, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{role})")
    return f'<svg role="img" aria-label="{html.escape(label)}" {text.strip()}'
