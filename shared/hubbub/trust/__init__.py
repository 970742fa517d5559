"""Who is who: identities, the roster, what is signed and sealed, and the audit log."""
