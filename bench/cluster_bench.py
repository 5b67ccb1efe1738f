"""Measure PostgreSQL and clusters: `python -m bench.cluster_bench` prints every figure and its bar as one table."""

from bench import engines_bench, features_bench, nodes_bench, search_bench, waits_bench
from bench.groups import Groups, run_groups

GROUPS: Groups = {
    "engines": engines_bench.run,
    "search": search_bench.run,
    "nodes": nodes_bench.run,
    "waits": waits_bench.run,
    "stop": waits_bench.stop,
    "talk": features_bench.on_postgres,
}

if __name__ == "__main__":
    run_groups("bench.cluster_bench", __doc__, GROUPS)
