"""Measuring kernels on the device that JAX sees."""

from jaxscale.profiling.describe import describe_device
from jaxscale.profiling.measure import measure
from jaxscale.profiling.shapes import designed_shapes, network_shapes

__all__ = ["describe_device", "designed_shapes", "measure", "network_shapes"]
