"""Adapter that runs an unchanged Flower client as a Hubbub trainer.

    # my_flower.py
    from hubbub_trainer.flower import FlowerTask
    from my_project.client import client_fn

    task = FlowerTask("my-task", client_fn=client_fn)

Flower's client is kept, its server is not: aggregation, strategies and what a server would configure are Hubbub's
and the manifest's. docs/flower.md says what that means for a client.

`flwr` is imported when a `FlowerTask` is made, never with this package. pip finds no release of it that suits
Hubbub's own requirements: 1.33 to 1.42 ask for fastapi<0.139, and those before 1.40 for cryptography<47, which
has no ML-KEM. The client side of flwr imports far less than flwr requires, and runs with newer versions of it;
docs/flower.md has the two lines that install it so.
"""

from hubbub_trainer.flower.task import FlowerTask

__all__ = ["FlowerTask"]
