"""Pickled modules whose graph is known: those of torch.fx, and chains of PyTorch's own."""
