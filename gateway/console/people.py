"""People: who has access, who gave it to them, and sign-in links for the web chat."""

from collections.abc import Mapping

from gateway.access.pairing import revoke_pairing
from gateway.access.web_links import make_link
from gateway.console.registry import ConsoleContext, Page, field_of
from gateway.console.words import platform_name
from hermes_state.admin import browsers
from hermes_state.admin.pairings import PairingState, UserRole, list_pairings
from hermes_state.errors import CommandError
from hermes_state.store.sql import Connection
from hermes_state.values import LOCAL_OWNER, UserRef
from platforms.console import ConsolePage, Values, WebPerson


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    now, access = context.clock.now(), context.live.config.access

    def read(db: Connection) -> Values:
        return {
            "paired": [one for one in list_pairings(db, now) if one.state is PairingState.APPROVED],
            "browsers": list(reversed(browsers.load(db, now))),
        }

    values = await context.store.read(read)
    configured = {
        **dict.fromkeys(access.allow, "user"),
        **dict.fromkeys(access.moderators, "moderator"),
        **dict.fromkeys(access.admins, "admin"),
        LOCAL_OWNER: "admin",
    }
    return {
        **values,
        "configured": [(ref, role, platform_name(ref.partition(":")[0])) for ref, role in configured.items()],
        "allows_all": access.allow_all,
        "platform_name": platform_name,
    }


async def revoke(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    ref = UserRef(field_of(form, "person"))
    if ref == person.ref:
        raise CommandError("You cannot revoke your own access. Ask another admin.")
    pairing = await context.store.write(revoke_pairing, ref, person.ref, context.clock.now())
    await context.access.load()
    await context.record(person, "revoke", ref)
    return f"{pairing.display_name} no longer has access."


async def invite(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    role = UserRole.ADMIN if form.get("role") == "admin" else UserRole.USER
    local = context.adapters.supervised.get("local")
    name = field_of(form, "name")
    adapter = None if local is None else local.adapter
    url = await make_link(
        context.store, context.access, adapter, context.clock, name=name, role=role, decided_by=person.ref
    )
    if url is None:
        raise CommandError(
            "This node does not serve the web chat. Run `hermes-gateway url --for` on the node that does."
        )
    await context.record(person, "invite", name)
    return f"Send this link to {name}. It signs in one browser within 24 hours: {url}"


async def sign_out(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    count = await context.store.write(browsers.remove, field_of(form, "browser"), context.clock.now())
    if not count:
        raise CommandError("This browser is no longer signed in. Reload the page.")
    return "The browser was signed out."


PAGE = Page(
    about=ConsolePage(name="people", title="People"),
    load=load,
    actions={"revoke": revoke, "invite": invite, "sign-out": sign_out},
)
