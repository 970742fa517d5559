"""The plaintext federation of a manifest, with the very seeds that the demo's trainers derive."""

from hubbub.crypto.key_derivation import ClientSecret
from hubbub.messages.manifest import Manifest
from hubbub_trainer.learning.task import Task
from support.plain_federation import Method, PlainFederation


def run_plainly(manifest: Manifest, task: Task, *, demo_seed: int) -> PlainFederation:
    """Nobody has trained yet; every call of `play_round` is a round."""

    def batch_seed(index: int, number: int) -> int:
        secret = ClientSecret.for_demo(demo_seed, index)
        return secret.seed_for("batches", run=manifest.run_id, round_number=number)

    def marks_key(index: int, number: int) -> bytes:
        secret = ClientSecret.for_demo(demo_seed, index)
        return secret.key_for("strategy", run=manifest.run_id, round_number=number)

    def mask_key(number: int) -> bytes:
        return ClientSecret.for_demo(demo_seed, None).key_for("mask", run=manifest.run_id, round_number=number)

    return PlainFederation(
        task,
        clients=len(manifest.clients),
        rho=manifest.rho,
        local_steps=manifest.local_steps,
        seed=manifest.seed,
        alpha_max=manifest.alpha_max,
        batch_seed=batch_seed,
        method=Method(
            strategy=manifest.strategy,
            q=manifest.q,
            alpha_rule=manifest.alpha_rule,
            feedback=manifest.feedback,
            block=manifest.block,
            bits=manifest.bits,
            learning_rate=manifest.learning_rate,
            server_momentum=manifest.server_momentum,
            weights=manifest.weights,
            max_samples=manifest.max_samples,
            kappa=manifest.kappa,
            first_factor_bound=manifest.first_factor_bound,
            factor_floor=manifest.factor_floor,
        ),
        marks_key=marks_key,
        mask_key=mask_key,
    )
