"""One worker per engine, on Ray: started together, checked together, and used as one."""

from __future__ import annotations
