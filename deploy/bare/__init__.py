"""docker-compose.yml as bare processes on one machine, for scripts/demo and for tests that need a part of it."""
