"""Make layers quantized by each of torchao's configurations, in both file formats: tests/samples/torchao.*.

    python tools/make_torchao.py      (torch 2.13.0, torchao 0.18.0, safetensors)

`torchao.npz` contains torchao's own values of each: integers (`NAME/q`), real values (`NAME/real`). With torchao 0.9
installed, it makes `torchao-0.9.pt` and its `.npz`, with classes that torchao has since removed.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import nn

SAMPLES = Path(__file__).parents[1] / "tests/samples"


def layers() -> nn.ModuleDict:
    """A linear layer for each configuration, with the name of the configuration."""
    from torchao import quantization as ao
    from torchao.quantization import granularity as per

    asymmetric = ao.MappingType.ASYMMETRIC
    scale = torch.tensor([[0.02]])
    configurations = {
        "int8_row": ao.Int8WeightOnlyConfig(),
        "int8_tensor": ao.Int8WeightOnlyConfig(granularity=per.PerTensor()),
        "int8_group": ao.Int8WeightOnlyConfig(granularity=per.PerGroup(8)),
        "dynamic": ao.Int8DynamicActivationInt8WeightConfig(),
        "dynamic_tensor": ao.Int8DynamicActivationInt8WeightConfig(granularity=per.PerTensor()),
        "dynamic_asymmetric": ao.Int8DynamicActivationInt8WeightConfig(act_mapping_type=asymmetric),
        "static": ao.Int8StaticActivationInt8WeightConfig(act_quant_scale=scale, granularity=per.PerTensor()),
        "int4_group": ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=per.PerGroup(8)),
        "int3_row": ao.IntxWeightOnlyConfig(weight_dtype=torch.int3, granularity=per.PerAxis(0)),
        "int4_asymmetric": ao.IntxWeightOnlyConfig(
            weight_dtype=torch.int4, granularity=per.PerGroup(8), mapping_type=asymmetric
        ),
        "int4_dynamic": ao.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=per.PerGroup(8)
        ),
        "int4_bfloat16": ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=per.PerGroup(8)),
        "float8": ao.Float8WeightOnlyConfig(),
    }
    torch.manual_seed(0)
    network = nn.ModuleDict()
    for name, configuration in configurations.items():
        layer = nn.Linear(16, 4, bias=name == "dynamic").eval()
        if name.endswith("bfloat16"):
            layer = layer.bfloat16()
        ao.quantize_(layer, configuration)
        network[name] = layer
    return network


def write(folder: Path) -> None:
    """Write the three files."""
    from safetensors.torch import save_file
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    state = layers().state_dict()
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / "torchao.pt")
    tensors, metadata = flatten_tensor_state_dict(state)
    save_file(tensors, folder / "torchao.safetensors", metadata)
    expected = {}
    for name, tensor in state.items():
        if hasattr(tensor, "qdata"):
            expected[f"{name}/q"] = tensor.qdata.float().numpy()
            expected[f"{name}/real"] = tensor.dequantize().float().numpy()
    np.savez_compressed(folder / "torchao.npz", **expected)


def write_earlier(folder: Path) -> None:
    """Write the files of torchao 0.9, which has only one format."""
    from torchao import quantization as ao

    torch.manual_seed(0)
    network = nn.ModuleDict()
    for name, configuration in {
        "weight_only": ao.int8_weight_only(),
        "dynamic": ao.int8_dynamic_activation_int8_weight(),
        "int4": ao.int8_dynamic_activation_int4_weight(group_size=8),
    }.items():
        network[name] = nn.Linear(32, 4, bias=False).eval()
        ao.quantize_(nn.Sequential(network[name]), configuration)
    state = network.state_dict()
    torch.save(state, folder / "torchao-0.9.pt")
    weights = {name: getattr(weight, "original_weight_tensor", weight) for name, weight in state.items()}
    expected = {f"{name}/q": weight.tensor_impl.int_data.float().numpy() for name, weight in weights.items()}
    expected |= {f"{name}/real": weight.dequantize().numpy() for name, weight in weights.items()}
    np.savez_compressed(folder / "torchao-0.9.npz", **expected)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    logging.disable()
    warnings.simplefilter("ignore")
    (write_earlier if version("torchao").startswith("0.9.") else write)(SAMPLES)
