"""The engines that qfmt knows by name. Nothing else lists them all."""

from __future__ import annotations

TORCH_ENGINES = ("fbgemm", "x86", "onednn", "qnnpack")
"""The quantized engines of PyTorch; the first is the default for its models."""

ENGINES = (*TORCH_ENGINES, "onnx", "pt2e")
"""The engines whose rules nodes may state: "onnx" is the default for ONNX models, and for programs of torch.export
"pt2e", which is what PT2E puts into them: dequantize, compute, quantize."""

RUNTIMES = ("onnxruntime", "onnxruntime:basic", "onnxruntime:extended", "onnxruntime:all", "reference")
"""What runs an ONNX model for `verify`: ONNX Runtime, without optimizations or with those of that level,
or the reference implementation of the onnx package. The first, or else the last, is the default."""


def engine_of(runs: str) -> str:
    """The one of ENGINES whose rules a program computes by: what runs an ONNX model computes by those of ONNX."""
    return "onnx" if runs in RUNTIMES else runs


FOR_RUNTIME = {"ORT_DISABLE_TELEMETRY": "1", "ORT_LOAD_CONFIG_FROM_MODEL": "0"}
"""The environment in which ONNX Runtime (1.32 and later) takes no options from a model, keeps no record of models, and
sends none away."""
