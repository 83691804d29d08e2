"""The soak: two replicas for a long time under mixed load and faults. See scripts/soak."""
