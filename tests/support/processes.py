"""Processes that tests start, and which others should end."""

from __future__ import annotations

import time
from pathlib import Path


def has_ended(process: int) -> bool:
    """Whether it ends within a minute. (Linux; nobody may have asked for its status.)"""
    status = Path(f"/proc/{process}/status")
    for _ in range(600):
        if not status.exists() or "State:\tZ" in status.read_text():
            return True
        time.sleep(0.1)
    return False
