"""Models: one parametric decoder; families differ by configuration, not by copies."""
