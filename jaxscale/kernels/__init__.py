"""Time of one kernel on one device: what it computes and moves, and models that turn that into seconds."""

from jaxscale.kernels.counts import COUNTS, DIRECT, IM2COL, MATRIX_FAMILIES, Count
from jaxscale.kernels.learned import Learned
from jaxscale.kernels.roofline import KernelModel, Roofline

__all__ = ["COUNTS", "DIRECT", "IM2COL", "MATRIX_FAMILIES", "Count", "KernelModel", "Learned", "Roofline"]
