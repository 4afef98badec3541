"""The sources of PyTorch: each becomes a stream of calls, which one lifter turns into nodes."""
