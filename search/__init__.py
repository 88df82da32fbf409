"""Search over plans and hardware."""

from jaxscale.search.evaluate import Evaluation, evaluate, peak_memory, time_per_sample
from jaxscale.search.reductions import BestPer, TopK
from jaxscale.search.space import Space
from jaxscale.search.winners import Candidate

__all__ = [
    "BestPer",
    "Candidate",
    "Evaluation",
    "Space",
    "TopK",
    "evaluate",
    "peak_memory",
    "time_per_sample",
]
