"""The REST API: routes and their response models. No protocol decision is made here."""
