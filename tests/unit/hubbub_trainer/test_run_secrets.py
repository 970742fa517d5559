"""Secrets of a run: each is drawn once, and a share set is never of two contents."""

from pathlib import Path

import pytest

from hubbub.errors import LocalError
from hubbub.ids import RunId
from hubbub.store.state_file import Vault
from hubbub_trainer.run_secrets import RunSecrets

CONTENT, OTHER_CONTENT = b"c" * 32, b"d" * 32


@pytest.fixture
def kept(tmp_path: Path) -> RunSecrets:
    return RunSecrets(Vault(tmp_path / "state.sqlite"), RunId("a" * 64))


def test_a_set_that_is_sent_again_is_the_same(kept: RunSecrets) -> None:
    first = kept.get_or_create_outbox(1, "signs", CONTENT)

    assert kept.get_or_create_outbox(1, "signs", CONTENT) == first
    assert kept.get_or_create_outbox(1, "union", CONTENT) != first


def test_a_set_is_never_sent_again_with_other_content(kept: RunSecrets) -> None:
    kept.get_or_create_outbox(1, "signs", CONTENT)

    with pytest.raises(LocalError, match="begun with other values") as caught:
        kept.get_or_create_outbox(1, "signs", OTHER_CONTENT)
    assert CONTENT.hex() not in str(caught.value)


def test_what_is_drawn_after_an_outbox_was_dropped_is_new(kept: RunSecrets) -> None:
    first = kept.get_or_create_outbox(1, "signs", CONTENT)
    kept.drop_outboxes(1, ["signs"], has_verdict=True)

    again = kept.get_or_create_outbox(1, "signs", OTHER_CONTENT)

    assert first[0] != again[0]
    assert first[1] != again[1]
