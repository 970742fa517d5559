"""What a client draws once, and that a share set is never of two contents."""

from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import LocalError
from hubbub.ids import RunId
from hubbub.machine.effects import Key
from hubbub.protocol.layout import Vector
from hubbub.store.state_file import Vault
from hubbub_trainer.round_jobs import digest_content
from hubbub_trainer.run_secrets import drop_outboxes, get_or_create_outbox

KEY = Key("round", RunId("a" * 64), 1)
CONTENT, OTHER_CONTENT = b"c" * 32, b"d" * 32


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path / "state.sqlite")


def test_a_set_that_is_sent_again_is_the_same(vault: Vault) -> None:
    first = get_or_create_outbox(vault, KEY, "signs", CONTENT)

    assert get_or_create_outbox(vault, KEY, "signs", CONTENT) == first
    assert get_or_create_outbox(vault, KEY, "union", CONTENT) != first


def test_a_set_is_never_sent_again_with_other_content(vault: Vault) -> None:
    get_or_create_outbox(vault, KEY, "signs", CONTENT)

    with pytest.raises(LocalError, match="begun with other values") as caught:
        get_or_create_outbox(vault, KEY, "signs", OTHER_CONTENT)
    assert CONTENT.hex() not in str(caught.value)


def test_what_is_drawn_after_an_outbox_was_dropped_is_new(vault: Vault) -> None:
    first = get_or_create_outbox(vault, KEY, "signs", CONTENT)
    drop_outboxes(vault, KEY, ["signs"], has_verdict=True)

    again = get_or_create_outbox(vault, KEY, "signs", OTHER_CONTENT)

    assert first[0] != again[0]
    assert first[1] != again[1]


def test_the_digest_is_of_all_that_a_set_says() -> None:
    vector, values = Vector("signs", 3, 11), np.array([1, 0, 10], dtype=np.uint8)
    said = digest_content([vector], [values], 1, "7a" * 32)

    assert digest_content([vector], [values.copy()], 1, "7a" * 32) == said
    others = [
        digest_content([vector], [np.array([1, 0, 9], dtype=np.uint8)], 1, "7a" * 32),
        digest_content([vector], [values], 2, "7a" * 32),
        digest_content([vector], [values], 1, "7b" * 32),
        digest_content([Vector("union", 3, 11)], [values], 1, "7a" * 32),
        digest_content([Vector("signs", 3, 13)], [values], 1, "7a" * 32),
        digest_content([vector, vector], [values, values], 1, "7a" * 32),
    ]
    assert len({said, *others}) == len(others) + 1
