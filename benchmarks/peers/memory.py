"""How much memory this process took at most since a moment, as Linux accounts for it."""

from __future__ import annotations

from pathlib import Path

_PROCESSES = Path("/proc")
_SELF = "self"
_RESET_PEAK = "5"
_KIB = 1024


class MemoryWatch:
    """Begins where the process is now. getrusage would not do: a child begins with its parent's peak."""

    def __init__(self) -> None:
        try:
            (_PROCESSES / _SELF / "clear_refs").write_text(_RESET_PEAK, "ascii")
        except OSError:
            self._began_bytes = None
        else:
            self._began_bytes = read_memory("VmRSS")

    def grown_bytes(self) -> int | None:
        """By how much the process has grown at most; None where the system does not tell."""
        peak = read_memory("VmHWM")
        return None if self._began_bytes is None or peak is None else max(0, peak - self._began_bytes)


def read_memory(name: str, process: int | str = _SELF) -> int | None:
    """A size that Linux gives of a process, VmRSS or VmHWM; None where it does not."""
    try:
        lines = (_PROCESSES / str(process) / "status").read_text("ascii").splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    kibibytes = next(found, None)
    return None if kibibytes is None else int(kibibytes) * _KIB
