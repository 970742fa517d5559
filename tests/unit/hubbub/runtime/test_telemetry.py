import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from hubbub.errors import RejectReason
from hubbub.runtime.telemetry import Counters, context, log_to_error_stream
from support.measured_run import logging_as_json

log = logging.getLogger("hubbub.test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    with logging_as_json("client-1", "info") as out:
        yield out


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_that_names_the_party(stream: io.StringIO) -> None:
    log.info('two\nlines and a "quote"')

    (line,) = lines(stream)
    assert str(line.pop("time")).endswith("+00:00")
    text = 'two\nlines and a "quote"'
    assert line == {"party": "client-1", "level": "info", "logger": "hubbub.test", "message": text}


def test_lines_inside_a_context_have_its_fields_and_lines_after_it_do_not(stream: io.StringIO) -> None:
    def fail() -> None:
        with context(run="r1", round=0, phase=""):
            log.info("about the run")
            raise KeyError

    with context(run="r1", round=2):
        with context(phase="signs", round=3):
            log.info("inner")
        log.info("outer")
    log.info("none")
    with pytest.raises(KeyError):
        fail()
    log.info("after an exception")

    places = [{name: line[name] for name in ("run", "round", "phase") if name in line} for line in lines(stream)]
    inner, outer = {"run": "r1", "round": 3, "phase": "signs"}, {"run": "r1", "round": 2}
    assert places == [inner, outer, {}, {"run": "r1"}, {}]


def test_a_reason_and_a_traceback_are_fields_and_the_level_is_obeyed(stream: io.StringIO) -> None:
    log.debug("not wanted")
    log.warning("refused", extra={"reason": RejectReason.SECOND_SET.value})
    try:
        int("what happened")
    except ValueError:
        log.exception("failed")

    refused, failed = lines(stream)
    assert refused["reason"] == "second-set"
    assert failed["message"] == "failed"
    assert "ValueError: invalid literal" in str(failed["traceback"])


def test_a_terminal_gets_text_and_a_pipe_gets_json(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*, is_terminal: bool) -> str:
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
        monkeypatch.setattr("sys.stderr", stream)
        log_to_error_stream("client-1", "info")
        with context(run="r1", round=3):
            log.info("round 3: trained 4.1 s")
            log.warning("refused")
        return stream.getvalue()

    with logging_as_json():
        assert re.sub(r"\d\d:\d\d:\d\d", "T", write(is_terminal=True)) == (
            "T  round 3: trained 4.1 s\nT  warning: refused\n"
        )
        assert [json.loads(line)["round"] for line in write(is_terminal=False).splitlines()] == [3, 3]


def test_counters_of_two_parties_in_one_process_are_apart_and_every_reason_is_a_label_from_the_start() -> None:
    ours, theirs = Counters(), Counters()

    ours.rejected.labels(RejectReason.MALFORMED).inc(2)
    ours.received("share-chunk").inc()

    for counters, refused, received in ((ours, 2, 1), (theirs, 0, None)):
        for reason in RejectReason:
            sample = counters.registry.get_sample_value("hubbub_messages_rejected_total", {"reason": reason.value})
            assert sample == (refused if reason is RejectReason.MALFORMED else 0)
        name, labels = "hubbub_messages_received_total", {"kind": "share-chunk"}
        assert counters.registry.get_sample_value(name, labels) == received
