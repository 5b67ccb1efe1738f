"""Trajectories: conversations of agents as lines of a training file. A running daemon does not import this package.

A line is a JSON object whose `conversations` are turns in the ShareGPT format, `{"from": "human", "value": "…"}`. Tool
calls are in `<tool_call>` tags and results in `<tool_response>` tags, as in the format of Hermes models.
`TrajectoryCompressor` replaces the middle of a long trajectory with a summary. `TrajectoryRunner` does this for a whole
file. An interrupted run can be continued. `export` makes trajectories from stored conversations, and prints them as
text.

>>> from agent.trajectories import TrajectoryCompressor, TrajectorySettings
>>> compressor = TrajectoryCompressor(TrajectorySettings(target_max_tokens=100))
>>> turns, metrics = compressor.compress([{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hello!"}])
>>> len(turns), metrics.skipped_under_target
(2, True)
"""

from agent.trajectories.compressor import TrajectoryCompressor, TrajectoryMetrics, TrajectorySettings, TrajectoryTotals
from agent.trajectories.files import TrajectoryRunner
from agent.trajectories.format import Trajectory, TrajectoryRejected, Turn, TurnRole
from agent.trajectories.summary import ModelSummary, RunLedger, deterministic_text

__all__ = [
    "ModelSummary",
    "RunLedger",
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
