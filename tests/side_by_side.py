"""Cases of a test that run at the same time: what each does is wait, for seconds, for what it is about."""

import asyncio
from collections.abc import Awaitable, Mapping


async def side_by_side(cases: Mapping[str, Awaitable[None]]) -> None:
    """Run all of them to their ends. Raises `ExceptionGroup` of what went wrong, with the name of each case."""
    found = await asyncio.gather(*cases.values(), return_exceptions=True)
    failures = [error for error in found if error is not None]
    for name, error in zip(cases, found, strict=True):
        if error is not None:
            error.add_note(f"in the case: {name}")
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {len(cases)} cases failed", failures)
