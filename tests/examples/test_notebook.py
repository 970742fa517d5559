"""The notebook, run from its first cell to its last by a kernel of its own."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from support.patience import HANG_S

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


class Counting(NotebookClient):
    """Counts how often a picture that is shown was drawn anew."""

    redrawn = 0

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        self.redrawn += msg["msg_type"] == "update_display_data"
        return super().process_message(msg, cell, cell_index)


def test_the_notebook_trains_draws_as_it_goes_and_uses_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]  # It declares no types.
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in cells if cell.outputs or cell.execution_count] == [], "it is kept without outputs"

    client = Counting(notebook, timeout=HANG_S, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    client.execute()

    printed = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    assert client.redrawn == 6
    assert float(printed.split("'r2': ")[1].split(",")[0]) > 0.45
    assert 140 < float(printed.split("An average patient: ")[1]) < 165
    pictures = ["image/png" in output.get("data", {}) for cell in cells for output in cell.outputs]
    assert sum(pictures) == 2
