"""The parts of scripts/bench, one file each."""
