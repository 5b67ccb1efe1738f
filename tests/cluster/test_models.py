"""What a node learns of a model holds on every other."""

import pytest

from hermes_state.models.profiles import learn_context
from hermes_state.values import Millis, Tokens
from tests.cluster.nodes import Cluster
from tests.postgres import connect

pytestmark = pytest.mark.cluster


async def test_a_window_that_a_provider_stated_to_one_node_holds_on_the_others(cluster: Cluster) -> None:
    [one] = await cluster.start("one")
    await cluster.converse("hello")
    [(route, model)] = cluster.query("SELECT route, model FROM model_profiles")
    in_force = Tokens(int(cluster.environ["HERMES_MODEL__CONTEXT_LENGTH"]))
    seen = len(one.log_bytes())
    with connect(cluster.environ["HERMES_STORE__URL"]) as db:  # as another node does
        learn_context(db, route, model, Tokens(16_384), in_force, Millis(1))
    await cluster.converse("and now?")
    assert b"model.window_known" in one.log_bytes()[seen:]
    await cluster.say("/status")
    assert await cluster.replies(1, match=r"16,384 tokens \(reported by the provider when")
