"""Trajectories: conversations of agents as lines of a file for training. A running daemon imports nothing of this.

A line is an object whose `conversations` are turns in the ShareGPT form, `{"from": "human", "value": "…"}`. Calls of
tools stand in `<tool_call>` and results in `<tool_response>`, as in the form of Hermes models. `TrajectoryCompressor`
replaces the middle of a long trajectory with a summary. `TrajectoryRunner` does this for a file and can be interrupted.
`export` makes trajectories of stored conversations, and shows them as people had them.

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
