"""Identity of a party: its name, its key and its password at the broker.

The private file never leaves the party's machine; the public one goes to whoever builds the roster. The private
file is unreadable to others from the moment it exists, and one that others could have read is not used.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from base64 import b64encode
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints, ValidationError

from hubbub.crypto.signing import SigningKey, bind
from hubbub.disk import create_file, is_open_to_others, make_secret_folder, sync_folder
from hubbub.errors import ConfigurationError
from hubbub.ids import PartyId, Role, is_party_id
from hubbub.messages.envelope import Claim
from hubbub.messages.manifest import Name, describe
from hubbub.trust.roster import PROOF_DOMAIN, PublicIdentity, read_claim, what_is_proven

PASSWORD_BYTES = 32
SALT_BYTES = 4
PRIVATE_MODE = 0o600
PUBLIC_MODE = 0o644
PRIVATE_SUFFIX = ".identity.json"
PUBLIC_SUFFIX = ".public.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a party, with the secrets that prove it."""

    name: PartyId
    role: Role
    organisation: PartyId
    key: SigningKey = field(repr=False)
    broker_password: str = field(repr=False)

    def public(self) -> PublicIdentity:
        """Return the public part of the identity; it is deterministic."""
        public_key = self.key.public.hex()
        password_hash = hash_password(self.broker_password, self._salt)
        proven = what_is_proven(self.name, self.role, self.organisation, public_key, password_hash)
        return PublicIdentity(
            name=self.name,
            role=self.role,
            organisation=self.organisation,
            public_key=public_key,
            broker_password_hash=password_hash,
            proof=self.key.sign(PROOF_DOMAIN, proven).hex(),
        )

    @property
    def _salt(self) -> bytes:
        """Salt derived from the password, which is random and used once, so that none need be stored."""
        return hashlib.sha256(bind("salt of the broker password", self.broker_password)).digest()[:SALT_BYTES]


def hash_password(password: str, salt: bytes) -> str:
    """Hash a password as RabbitMQ does."""
    return b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode("ascii")


def new_identity(name: str, role: Role, organisation: str) -> Identity:
    """Make an identity with a key and a password drawn from the operating system."""
    for what, text in (("a party", name), ("an organisation", organisation)):
        if not is_party_id(text):
            raise ConfigurationError(
                f"{text!r} cannot name {what}: use 1 to 40 lower-case letters, digits and hyphens, "
                "with no hyphen at either end"
            )
    return Identity(
        name=PartyId(name),
        role=role,
        organisation=PartyId(organisation),
        key=SigningKey.generate(),
        broker_password=secrets.token_urlsafe(PASSWORD_BYTES),
    )


class _PrivateFile(Claim):
    """Content of a private identity file. A short password could be guessed from its public hash."""

    model_config = ConfigDict(hide_input_in_errors=True)

    format: Literal[1] = 1
    name: Name
    role: Role
    organisation: Name
    private_key: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$"), Field(repr=False)]
    broker_password: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{43}$"), Field(repr=False)]

    @classmethod
    def of(cls, identity: Identity) -> _PrivateFile:
        return cls(
            name=identity.name,
            role=identity.role,
            organisation=identity.organisation,
            private_key=identity.key.to_bytes().hex(),
            broker_password=identity.broker_password,
        )

    def identity(self) -> Identity:
        return Identity(
            name=self.name,
            role=self.role,
            organisation=self.organisation,
            key=SigningKey.from_bytes(bytes.fromhex(self.private_key)),
            broker_password=self.broker_password,
        )


def write_identity(identity: Identity, folder: Path) -> tuple[Path, Path]:
    """Write the private and the public file, both or neither; existing files are never overwritten."""
    private = folder / f"{identity.name}{PRIVATE_SUFFIX}"
    public = folder / f"{identity.name}{PUBLIC_SUFFIX}"
    try:
        make_secret_folder(folder)
        with ExitStack() as undo:
            create_file(private, dump_identity(identity), PRIVATE_MODE)
            undo.callback(private.unlink)
            create_file(public, _dump(identity.public()), PUBLIC_MODE)
            undo.callback(public.unlink)
            sync_folder(folder)
            undo.pop_all()
    except FileExistsError as error:
        raise ConfigurationError(
            f"{error.filename} is there already and is never overwritten: choose another name or folder"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{error.filename or folder} cannot be written: {error.strerror}") from None
    return private, public


def dump_identity(identity: Identity) -> bytes:
    """Return the content of the private file, to write it elsewhere: only its owner may read it there."""
    return _dump(_PrivateFile.of(identity))


def _dump(content: Claim) -> bytes:
    return f"{content.model_dump_json(indent=2)}\n".encode()


def read_identity(path: Path) -> Identity:
    """Read a private file, unless others could have read or changed it."""
    try:
        return _PrivateFile.model_validate_json(_read_private(path)).identity()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigurationError(f"{path} is not an identity file: {describe(error)}") from None


def _read_private(path: Path) -> bytes:
    """Check the mode of the open file before reading it, so that it cannot be swapped in between."""
    with path.open("rb") as stream:
        if is_open_to_others(os.fstat(stream.fileno())):
            raise ConfigurationError(f"others than its owner may read or change {path}: chmod 600 {path}")
        return stream.read()


def read_public_identity(path: Path) -> PublicIdentity:
    """Read a public file and check its proof."""
    if path.name.endswith(PRIVATE_SUFFIX):
        raise ConfigurationError(
            f"{path} is a private file, never to be sent: take its party's {PUBLIC_SUFFIX} file"
        )
    identity = read_claim(path, PublicIdentity, "a public identity")
    try:
        identity.check_proof()
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return identity
