"""People: who has access, who gave it to them, and sign-in links for the web chat."""

from collections.abc import Mapping

from gateway.access.pairing import revoke_pairing
from gateway.access.web_links import make_link
from gateway.console.registry import ConsoleContext, Page, field_of
from hermes_state.admin import browsers
from hermes_state.admin.pairings import PairingState, UserRole, list_pairings
from hermes_state.errors import CommandError
from hermes_state.store.sql import Connection
from hermes_state.values import LOCAL_OWNER, UserRef
from platforms.console import ConsolePage, Values, WebPerson


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    now, access = context.clock.now(), context.live.config.access

    def read(db: Connection) -> Values:
        paired = [one for one in list_pairings(db, now) if one.state is PairingState.APPROVED]
        return {"paired": paired, "browsers": list(reversed(browsers.load(db, now)))}

    configured = {
        **dict.fromkeys(access.allow, "user"),
        **dict.fromkeys(access.moderators, "moderator"),
        **dict.fromkeys(access.admins, "admin"),
        LOCAL_OWNER: "admin",
    }
    return {**await context.store.read(read), "configured": configured, "allows_all": access.allow_all}


async def revoke(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    ref = UserRef(field_of(form, "person"))
    if ref == person.ref:
        raise CommandError("You cannot revoke your own access. Ask another admin.")
    pairing = await context.store.write(revoke_pairing, ref, person.ref, context.clock.now())
    await context.access.load()
    await context.record(person, "revoke", ref)
    return f"{pairing.display_name} no longer has access."


async def invite(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    role = UserRole.ADMIN if form.get("role") == "admin" else None  # None keeps the role of a known person
    name, local = field_of(form, "name"), context.adapters.supervised.get("local")
    adapter, by = local.adapter if local is not None else None, person.ref
    made = make_link(context.store, context.access, adapter, context.clock, name=name, role=role, decided_by=by)
    if (url := await made) is None:
        raise CommandError(
            "This node does not serve the web chat. Run `hermes-gateway url --for` on the node that does."
        )
    await context.record(person, "invite", name)
    return f"Send this link to {name}. It signs in one browser and expires after 24 hours: {url}"


async def sign_out(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    if not await context.store.write(browsers.remove, field_of(form, "browser"), context.clock.now()):
        raise CommandError("This browser is no longer signed in. Reload the page.")
    return "The browser was signed out."


PEOPLE = Page(
    about=ConsolePage(name="people", title="People"),
    load=load,
    actions={"revoke": revoke, "invite": invite, "sign-out": sign_out},
)
