"""Files of torch.save, read without torch: checkpoints and pickled modules."""
