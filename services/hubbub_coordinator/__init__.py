"""The coordinator: proposes runs, opens rounds, closes phases. It never sees a share, a sum or a model."""
