"""ONNX models, quantized in any form → Model.

`reading` opens a file and refuses an invalid one. `importer` converts its nodes, with one function per ONNX operator
from the modules beside it. Quantization becomes explicit QuantizeLinear and DequantizeLinear nodes, which `convert`
has the passes fold.
"""
