"""The README's recording of the demo, and `tools/record_demo.py`, which makes it."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

from rich.text import Text

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "docs" / "img" / "demo.svg"
NAMESPACE = "http://www.w3.org/2000/svg"
animate = runpy.run_path(str(ROOT / "tools" / "record_demo.py"))["animate"]


def find(root: ET.Element, name: str) -> list[ET.Element]:
    return list(root.iter(f"{{{NAMESPACE}}}{name}"))


def test_the_recording_is_small_takes_nothing_from_elsewhere_and_stands_still_on_request() -> None:
    text = RECORDING.read_text("utf-8")

    assert len(text.encode()) < 500_000
    assert re.findall(r"[a-z]+://[^\s\"')]*", text) == [NAMESPACE]
    assert re.findall(r"@import|@font-face|url\(|<script|<image|<foreignObject", text) == []
    assert {used.attrib["href"][0] for used in find(ET.fromstring(text), "use")} == {"#"}  # noqa: S314  (Ours.)
    assert "prefers-reduced-motion: reduce" in text


def test_frames_are_shown_in_turn_and_a_line_that_they_share_is_stored_once() -> None:
    frames = [Text("first\nshared & kept"), Text("second\nshared & kept")]

    root = ET.fromstring(animate(frames, 20, 3))  # noqa: S314  (Ours.)

    lines = {group.attrib["id"]: "".join(group.itertext()) for group in find(root, "g") if "id" in group.attrib}
    shown = [
        [lines[used.attrib["href"][1:]].strip() for used in find(group, "use")]
        for group in find(root, "g")
        if "f" in group.attrib.get("class", "").split()
    ]
    assert [line.replace("\u00a0", " ").strip() for line in lines.values()] == ["first", "shared & kept", "second"]
    assert [[line.replace("\u00a0", " ") for line in frame] for frame in shown] == [
        ["first", "shared & kept"],
        ["second", "shared & kept"],
    ]
