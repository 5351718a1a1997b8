"""The demo models' weights as GGUF files of one block format: what llama.cpp is measured on."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FORMATS = {"q4": gguf.GGMLQuantizationType.Q4_0, "q8": gguf.GGMLQuantizationType.Q8_0}


@cache
def _demo() -> ModuleType:
    """web/demo/build_models.py as a module."""
    spec = importlib.util.spec_from_file_location("build_models", ROOT / "web" / "demo" / "build_models.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_models"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def cache_folder() -> Path:
    """Where the project keeps what is slow to get or to make."""
    folder: Path = _demo().cache_folder()
    return folder


def gguf_of(model_id: str) -> Path:
    """A demo model's weights in Q4_0 or Q8_0, as its own precision is; made once, from its source."""
    demo = _demo()
    model = next(m for m in demo.MODELS if m.id == model_id)
    kind = FORMATS[model.quant]
    path = cache_folder() / "gguf" / f"{model_id.rsplit('-', 1)[0]}-{kind.name}.gguf"
    if not path.exists():
        partial = path.with_suffix(".partial")
        requantize(demo.gguf_file(model.weights), partial, kind)
        partial.rename(path)
    return path


def requantize(source: Path, target: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Copy a GGUF file with every matrix in blocks of `kind` and all else in f32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        # The writer has set the first two itself; the file type would be a lie.
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], item)
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        x = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
        if x.ndim == 2:
            writer.add_tensor(tensor.name, gguf.quants.quantize(x, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
