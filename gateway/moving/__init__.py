"""Import of conversations, notes, skills, the persona and schedules from other gateways.

job = ImportJob(source=HermesSource(folder), home=home, notes=notes, zone="Europe/Vienna", is_per_user=False)
report = await job.run(store, chat_id, now)     # without a store, only counts
"""

from gateway.moving.hermes import HermesSource
from gateway.moving.openclaw import OpenClawSource
from gateway.moving.run import ImportJob, ImportReport

__all__ = ["HermesSource", "ImportJob", "ImportReport", "OpenClawSource"]
