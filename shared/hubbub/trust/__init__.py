"""Trust between parties: identities, the roster, signatures, seals, and the audit log."""
