"""Predict the time, memory and cost of one training step on a GPU cluster, and search for the best plan.

Four nouns and one verb: `predict(workload, cluster, plan) -> Prediction`. Every public name below is loaded
on first use, so `import jaxscale` costs nothing until something is computed.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxscale import zoo
    from jaxscale.hardware_db import cluster, device
    from jaxscale.kernels import Roofline
    from jaxscale.lower import lower
    from jaxscale.nouns import Cluster, Device, Links, Plan, Prediction, Workload
    from jaxscale.onnx_import import read_onnx
    from jaxscale.predict import compose, predict, price
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
    "lower": "jaxscale.lower",
    "compose": "jaxscale.predict",
    "predict": "jaxscale.predict",
    "price": "jaxscale.predict",
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


class _Package(ModuleType):
    """Keeps `jaxscale.predict` the function.

    The import system binds each submodule to its package under the submodule's name; that would hide the
    function `predict` as soon as anything imported the module `jaxscale.predict`.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and name in _HOME and name != "zoo":
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
