"""Predict the time, memory and cost of one training step on a GPU cluster, and search for the best plan.

Four nouns and one verb: `predict(workload, cluster, plan) -> Prediction`. Every public name below is loaded
on first use, so `import jaxscale` costs nothing until something is computed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxscale import zoo
    from jaxscale.engine import compose, predict, price
    from jaxscale.hardware_db import cluster, device
    from jaxscale.kernels import Roofline
    from jaxscale.lowering import lower
    from jaxscale.nouns import Cluster, Device, Links, Plan, Prediction, Workload
    from jaxscale.onnx_import import read_onnx
    from jaxscale.search import Space, evaluate

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "Device",
    "Links",
    "Plan",
    "Prediction",
    "Roofline",
    "Space",
    "Workload",
    "cluster",
    "compose",
    "device",
    "evaluate",
    "lower",
    "predict",
    "price",
    "read_onnx",
    "zoo",
]

_HOME = {
    "Cluster": "jaxscale.nouns",
    "Device": "jaxscale.nouns",
    "Links": "jaxscale.nouns",
    "Plan": "jaxscale.nouns",
    "Prediction": "jaxscale.nouns",
    "Workload": "jaxscale.nouns",
    "Space": "jaxscale.search",
    "evaluate": "jaxscale.search",
    "cluster": "jaxscale.hardware_db",
    "device": "jaxscale.hardware_db",
    "Roofline": "jaxscale.kernels",
    "lower": "jaxscale.lowering",
    "compose": "jaxscale.engine",
    "predict": "jaxscale.engine",
    "price": "jaxscale.engine",
    "read_onnx": "jaxscale.onnx_import",
    "zoo": "jaxscale.zoo",
}
"""The module that defines each public name; `zoo` is a module itself."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(_HOME[name])
    value = globals()[name] = home if name == "zoo" else getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
