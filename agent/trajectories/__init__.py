"""Trajectories: conversations of agents as files for training, a line each, made shorter and made from what was said.

A line is an object whose `conversations` are turns in the ShareGPT form, `{"from": "human", "value": "…"}`; tools are
called in `<tool_call>` and answer in `<tool_response>`, as Hermes models do. `TrajectoryCompressor` puts a summary in
place of the middle of one that is too long, `TrajectoryRunner` does so with a whole file, and can be interrupted.

>>> from agent.trajectories import TrajectoryCompressor, TrajectorySettings
>>> compressor = TrajectoryCompressor(TrajectorySettings(target_max_tokens=100))
>>> turns, metrics = compressor.compress([{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hello!"}])
>>> len(turns), metrics.skipped_under_target
(2, True)
"""

from agent.trajectories.compressor import CompressedLine, TrajectoryCompressor, TrajectorySettings
from agent.trajectories.files import TrajectoryRunner
from agent.trajectories.format import Trajectory, TrajectoryRejected, Turn, TurnRole
from agent.trajectories.metrics import TrajectoryMetrics, TrajectoryTotals
from agent.trajectories.summary import ModelSummary, deterministic_text

__all__ = [
    "CompressedLine",
    "ModelSummary",
    "Trajectory",
    "TrajectoryCompressor",
    "TrajectoryMetrics",
    "TrajectoryRejected",
    "TrajectoryRunner",
    "TrajectorySettings",
    "TrajectoryTotals",
    "Turn",
    "TurnRole",
    "deterministic_text",
]
