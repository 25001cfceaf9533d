"""The starvation lab: a small Llama from scratch, an on-device verifier, whole runs as one compiled function."""
