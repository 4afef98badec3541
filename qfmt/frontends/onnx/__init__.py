"""ONNX models, in every form in which they are quantized → Model.

`reading` opens a file and refuses what is unsound; `importer` turns nodes into qfmt's, by the functions of the
modules beside it, each with explicit QuantizeLinear and DequantizeLinear; `convert` has the passes merge those.
"""
