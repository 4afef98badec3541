"""Random float inputs and attributes for every operator, for tests of shape rules, references and witnesses.

case = CASES["Conv"](np.random.default_rng(7))
OPERATORS["Conv"].reference(*case.inputs, **case.attributes)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qfmt.model import Quantization
from qfmt.ops import OPERATORS, Operand, Result

from . import integer_inputs as integer_given
from . import onnx_inputs as onnx_given
from . import torch_inputs as given
from .torch_inputs import Case, Random

__all__ = ["CASES", "ON_INTEGERS", "Case", "compute"]

CASES: dict[str, Callable[[Random], Case]] = {
    **dict.fromkeys(("Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh", "Erf", "Sign", "Softsign"), given.unary),
    **dict.fromkeys(("Ceil", "Floor", "Round"), given.unary),
    **dict.fromkeys(("Asin", "Acos", "Atanh"), onnx_given.inside),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), onnx_given.bits),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), onnx_given.bits),
    **dict.fromkeys(("And", "Or", "Xor"), onnx_given.truths),
    "Acosh": onnx_given.from_one,
    "Shrink": lambda rng: given.unary(rng, bias=0.5, lambd=1.0),
    "Swish": lambda rng: given.unary(rng, alpha=1.25),
    "Not": lambda rng: onnx_given.truths(rng, 1),
    "BitwiseNot": lambda rng: onnx_given.bits(rng, 1),
    "IsNaN": onnx_given.is_nan,
    "IsInf": onnx_given.is_infinite,
    "BitShift": onnx_given.bit_shift,
    "Mod": onnx_given.modulo,
    "Where": onnx_given.where,
    "Hardmax": given.along_axis,
    "Gemm": onnx_given.gemm,
    "Einsum": onnx_given.einsum,
    "MatMulInteger": onnx_given.matmul_integer,
    "ConvInteger": onnx_given.conv_integer,
    "DynamicQuantizeLinear": lambda rng: Case([given.floats(rng, *given.sizes(rng, 3))], {}),
    **dict.fromkeys(("ArgMax", "ArgMin"), onnx_given.position),
    "CumSum": onnx_given.cumulative_sum,
    "TopK": onnx_given.top,
    "GatherElements": onnx_given.gather_elements,
    "ScatterElements": onnx_given.scatter_elements,
    "GatherND": onnx_given.gather_nd,
    "ScatterND": onnx_given.scatter_nd,
    "NonZero": onnx_given.non_zero,
    "Compress": onnx_given.compress,
    "OneHot": onnx_given.one_hot,
    "ReverseSequence": onnx_given.reverse_sequence,
    "Trilu": onnx_given.triangle,
    "EyeLike": onnx_given.eye,
    "Size": given.unary,
    "Sum": lambda rng: given.broadcast(rng, int(rng.integers(1, 4))),
    "Mean": lambda rng: given.broadcast(rng, int(rng.integers(1, 4))),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"), onnx_given.reduction),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"), onnx_given.reduction),
    "ReduceLogSum": onnx_given.positive_reduction,
    "Add": given.broadcast,
    "Sub": given.broadcast,
    "Mul": given.broadcast,
    "Div": given.broadcast,
    "Pow": given.power,
    "Min": lambda rng: given.broadcast(rng, int(rng.integers(1, 4))),
    "Max": lambda rng: given.broadcast(rng, int(rng.integers(1, 4))),
    "Sqrt": given.positive,
    "Log": given.positive,
    "Reciprocal": given.positive,
    "Exp": given.unary,
    "Neg": given.unary,
    "Abs": given.unary,
    "Identity": given.unary,
    "Cast": given.cast,
    "Relu": given.unary,
    "Clip": given.clip,
    "LeakyRelu": lambda rng: given.unary(rng, alpha=0.1),
    "Elu": lambda rng: given.unary(rng, alpha=1.3),
    "Celu": lambda rng: given.unary(rng, alpha=1.3),
    "Selu": lambda rng: given.unary(rng, alpha=1.6, gamma=1.1),
    "PRelu": given.prelu,
    "HardSigmoid": lambda rng: given.unary(rng, alpha=0.2, beta=0.4),
    "HardSwish": given.unary,
    "Sigmoid": given.unary,
    "Tanh": given.unary,
    "Softplus": given.unary,
    "Mish": given.unary,
    "ThresholdedRelu": lambda rng: given.unary(rng, alpha=0.7),
    "Gelu": lambda rng: given.unary(rng, approximate=str(rng.choice(["none", "tanh"]))),
    "Softmax": given.along_axis,
    "LogSoftmax": given.along_axis,
    "Conv": given.conv,
    "ConvTranspose": given.conv_transpose,
    "qfmt.Linear": given.linear,
    "qfmt.DynamicLinear": lambda rng: given.dynamic(given.linear(rng)),
    "qfmt.DynamicConv": lambda rng: given.dynamic(given.conv(rng)),
    "qfmt.DynamicConvTranspose": lambda rng: given.dynamic(given.conv_transpose(rng)),
    "qfmt.LSTM": lambda rng: given.recurrent(rng, 4, 2, cell=False),
    "qfmt.GRU": lambda rng: given.recurrent(rng, 3, 1, cell=False),
    "qfmt.LSTMCell": lambda rng: given.recurrent(rng, 4, 2, cell=True),
    "qfmt.GRUCell": lambda rng: given.recurrent(rng, 3, 1, cell=True),
    "qfmt.RNNCell": lambda rng: given.recurrent(rng, 1, 1, cell=True, activation=str(rng.choice(["tanh", "relu"]))),
    "Range": onnx_given.number_range,
    "GridSample": onnx_given.grid_sample,
    "RMSNormalization": onnx_given.rms_normalization,
    "MeanVarianceNormalization": lambda rng: Case([given.floats(rng, *given.sizes(rng, 4, 2))], {"axes": (0, 2, 3)}),
    "LpNormalization": onnx_given.lp_normalization,
    "LRN": onnx_given.local_response,
    "GlobalMaxPool": given.spatial,
    "LpPool": lambda rng: given.pool(rng, p=int(rng.integers(1, 4))),
    "GlobalLpPool": lambda rng: Case(given.spatial(rng).inputs, {"p": int(rng.integers(1, 4))}),
    "Attention": onnx_given.attention,
    "RotaryEmbedding": onnx_given.rotary,
    "RNN": lambda rng: onnx_given.onnx_recurrent(rng, 1, 1),
    "GRU": lambda rng: onnx_given.onnx_recurrent(rng, 3, 2, linear_before_reset=int(rng.integers(0, 2))),
    "LSTM": lambda rng: onnx_given.onnx_recurrent(rng, 4, 3, input_forget=int(rng.integers(0, 2))),
    "ai.onnx.QuantizeLinear": onnx_given.quantize,
    "qfmt.RequantShift": onnx_given.requant_shift,
    "qfmt.Requantize": integer_given.requantize,
    "qfmt.Table": integer_given.table,
    "qfmt.PairTable": integer_given.pair_table,
    "qfmt.WeightedSum": integer_given.weighted_sum,
    "ai.onnx.DequantizeLinear": onnx_given.dequantize,
    "qfmt.Embedding": given.embedding,
    "qfmt.EmbeddingBag": given.embedding_bag,
    "MatMul": given.matmul,
    "BatchNormalization": given.batch_normalization,
    "LayerNormalization": given.layer_normalization,
    "GroupNormalization": given.group_normalization,
    "InstanceNormalization": given.instance_normalization,
    "MaxPool": given.pool,
    "AveragePool": given.average_pool,
    "GlobalAveragePool": given.spatial,
    "qfmt.AdaptiveAveragePool": given.adaptive,
    "Resize": given.resize,
    "Reshape": given.reshape,
    "Flatten": given.flatten,
    "Transpose": given.transpose,
    "Squeeze": given.squeeze,
    "Unsqueeze": given.unsqueeze,
    "Concat": given.concat,
    "Split": given.split,
    "Slice": given.slice_,
    "Pad": given.pad,
    "Gather": given.gather,
    "Expand": given.expand,
    "Tile": given.tile,
    "Shape": given.shape,
    "DepthToSpace": given.depth_to_space,
    "SpaceToDepth": given.space_to_depth,
    "QuantizeLinear": given.unary,
    "DequantizeLinear": given.unary,
}


ON_INTEGERS = [name for name, operator in OPERATORS.items() if operator.takes_integers]
"""Operators on stored integers, which other formats and frameworks do not have."""

SOME_GRID = Quantization.per_tensor(0.5, 3, "int8")


def compute(name: str, case: Case) -> list[np.ndarray]:
    """The outputs of the operator's reference; if it needs a quantization, those of its first rule with some
    quantization."""
    operator = OPERATORS[name]
    if operator.takes_integers and operator.integer is not None:
        result = Result(np.dtype(np.int8), SOME_GRID, operator.rules[0])
        operands = [Operand(each, None) for each in case.inputs]
        operands += [None] * (len(operator.inputs) - len(operands))
        return [operator.integer(*operands, result=result, **operator.complete(case.attributes))]
    missing = [None] * (len([p for p in operator.inputs if not p.variadic]) - len(case.inputs))
    with np.errstate(all="ignore"):
        result = operator.reference(*case.inputs, *missing, **operator.complete(case.attributes))
    return [np.asarray(each) for each in (result if isinstance(result, list | tuple) else [result])]
