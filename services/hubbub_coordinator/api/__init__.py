"""The REST interface: routes and what they answer. No protocol decision is made here."""
