"""Runs the cases of a test at the same time, because each of them mainly waits."""

import asyncio
from collections.abc import Awaitable, Mapping


async def side_by_side(cases: Mapping[str, Awaitable[None]]) -> None:
    """Run all cases to their end. Raises `ExceptionGroup` with all failures, each with the name of its case."""
    found = await asyncio.gather(*cases.values(), return_exceptions=True)
    failures = [error for error in found if error is not None]
    for name, error in zip(cases, found, strict=True):
        if error is not None:
            error.add_note(f"in the case: {name}")
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {len(cases)} cases failed", failures)
