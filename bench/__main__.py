"""Run the performance suite: `python -m bench [GROUP…]` prints every figure and its bar as one table."""

import logging

import structlog

from bench import (
    agents_bench,
    compression_bench,
    console_bench,
    estimate_bench,
    features_bench,
    gateway_bench,
    hostile_bench,
    import_bench,
    life_bench,
    mcp_bench,
    model_bench,
    pages_bench,
    rendering_bench,
    schedules_bench,
    store_bench,
    stored_bench,
    tools_bench,
    trajectories_bench,
    turn_bench,
)
from bench.groups import Groups, run_groups

GROUPS: Groups = {
    "estimate": lambda _: estimate_bench.run(),
    "compression": compression_bench.run,
    "turn": turn_bench.run,
    "store": store_bench.run,
    "import": import_bench.run,
    "rendering": rendering_bench.run,
    "tools": tools_bench.run,
    "schedules": schedules_bench.run,
    "trajectories": trajectories_bench.run,
    "mcp": mcp_bench.run,
    "model": model_bench.run,
    "hostile": hostile_bench.run,
    "chats": gateway_bench.run,
    "pages": pages_bench.run,
    "crowd": gateway_bench.crowd,
    "streaming": gateway_bench.streaming,
    "discord": gateway_bench.discord,
    "agents": agents_bench.run,
    "features": features_bench.run,
    "full": stored_bench.full,
    "long": stored_bench.long,
    "start": life_bench.start,
    "growth": life_bench.growth,
    "half-open": life_bench.half_open,
    "console": console_bench.run,
}


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    run_groups("bench", __doc__, GROUPS)
