"""Checks of the web page: whether all of its files are there, and who is signed in."""

from corral.base.words import counted
from corral.frontend.api.route import AdminContext
from corral.frontend.api.web_page import missing_files
from corral.frontend.diagnosis.doctor import OK, PROBLEM
from corral.wire.nodes import Finding


async def check_web_page(context: AdminContext) -> Finding:
    missing = await missing_files()
    if missing is None:  # in a checkout, by people who know; nothing else needs the page
        return Finding(check="web page", level=OK, summary="not built: browsers see a placeholder, until `make ui`")
    if missing:
        return Finding(
            check="web page",
            level=PROBLEM,
            summary=f"the page lacks {counted(len(missing), 'file')}, {missing[0]} for one, and cannot start",
            remedy="Install Corral again, or run `make ui` in the checkout.",
        )
    count = len(await context.access.sessions.active())
    return Finding(check="web page", level=OK, summary=f"served at /ui/, {counted(count, 'session')}")
