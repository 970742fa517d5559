import io
import json
import logging
from collections.abc import Iterator

import pytest

from hubbub.errors import RejectReason
from hubbub.runtime.telemetry import Counters, context, log_as_json

log = logging.getLogger("hubbub.test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, noisy = logging.getLogger(), [logging.getLogger(name) for name in ("aio_pika", "aiormq")]
    handlers, levels = root.handlers[:], [each.level for each in (root, *noisy)]
    out = io.StringIO()
    log_as_json("client-1", "info", out)
    yield out
    root.handlers[:] = handlers
    for logger, level in zip((root, *noisy), levels, strict=True):
        logger.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_that_names_the_party(stream: io.StringIO) -> None:
    log.info('two\nlines and a "quote"')

    (line,) = lines(stream)
    assert line["party"] == "client-1"
    assert line["level"] == "info"
    assert line["logger"] == "hubbub.test"
    assert line["message"] == 'two\nlines and a "quote"'
    assert str(line["time"]).endswith("+00:00")


def test_lines_inside_a_context_have_its_fields_and_lines_after_it_do_not(stream: io.StringIO) -> None:
    with context(run="r1", round=2):
        with context(phase="signs", round=3):
            log.info("inner")
        log.info("outer")
    log.info("none")

    inner, outer, none = lines(stream)
    assert (inner["run"], inner["round"], inner["phase"]) == ("r1", 3, "signs")
    assert (outer["run"], outer["round"]) == ("r1", 2)
    assert "phase" not in outer
    assert {"run", "round", "phase"}.isdisjoint(none)


def test_fields_without_a_value_are_left_out(stream: io.StringIO) -> None:
    with context(run="r1", round=0, phase=""):
        log.info("about the run")

    (line,) = lines(stream)
    assert {"round", "phase"}.isdisjoint(line)


def test_the_context_ends_with_an_exception_too(stream: io.StringIO) -> None:
    with pytest.raises(KeyError), context(run="r1"):
        raise KeyError

    log.info("after")
    assert "run" not in lines(stream)[0]


def test_a_refusal_has_its_reason_as_a_field(stream: io.StringIO) -> None:
    log.warning("refused", extra={"reason": RejectReason.SECOND_SET.value})

    assert lines(stream)[0]["reason"] == "second-set"


def test_a_traceback_stays_inside_its_line(stream: io.StringIO) -> None:
    try:
        int("what happened")
    except ValueError:
        log.exception("failed")

    (line,) = lines(stream)
    assert line["message"] == "failed"
    assert "ValueError: invalid literal" in str(line["traceback"])


def test_the_level_is_obeyed(stream: io.StringIO) -> None:
    log.debug("not wanted")

    assert lines(stream) == []


def test_every_reason_is_a_label_from_the_start() -> None:
    counters = Counters()

    for reason in RejectReason:
        labels = {"reason": reason.value}
        assert counters.registry.get_sample_value("hubbub_messages_rejected_total", labels) == 0


def test_counters_of_two_parties_in_one_process_are_apart() -> None:
    ours, theirs = Counters(), Counters()

    ours.rejected(RejectReason.MALFORMED)
    ours.rejected(RejectReason.MALFORMED)
    ours.received("share-chunk")
    ours.late("share-chunk")
    ours.broken()

    assert ours.rejections(RejectReason.MALFORMED) == 2
    assert ours.rejections(RejectReason.OVER) == 0
    assert theirs.rejections(RejectReason.MALFORMED) == 0
    for name in ("hubbub_messages_received_total", "hubbub_messages_late_total"):
        assert ours.registry.get_sample_value(name, {"kind": "share-chunk"}) == 1
        assert theirs.registry.get_sample_value(name, {"kind": "share-chunk"}) is None
    assert ours.registry.get_sample_value("hubbub_internal_errors_total") == 1
