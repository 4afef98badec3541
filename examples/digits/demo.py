"""Run the converted digits network where torch cannot be imported, and compare with the outputs of torch."""

import sys
from pathlib import Path

sys.modules["torch"] = None  # from here on `import torch` raises ImportError

import numpy as np

import qfmt

held_back = np.load(Path(__file__).with_name("heldback.npz"), allow_pickle=False)
model = qfmt.load(sys.argv[1])
(name,) = model.graph.outputs
outputs = model.run({"x": held_back["x"]})[name]

correct = outputs.argmax(axis=1) == held_back["labels"]
equal = outputs == held_back["outputs"]
print(f"accuracy on {len(correct)} held-back images: {correct.mean():.1%}")
print(f"equal to torch's outputs: {equal.sum()} of {equal.size}")
sys.exit(0 if equal.all() else 1)
