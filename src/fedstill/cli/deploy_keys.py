"""`fedstill deploy rotate` and `deploy revoke`: keys are replaced and revoked while the server and its sites run."""

from __future__ import annotations

from typing import Annotated

import typer

from fedstill.cli.deploy import Days, Folder, SiteNumber, deploy_renew, need_extra
from fedstill.cli.options import Json
from fedstill.cli.screen import console, print_json
from fedstill.core.errors import InputError


def deploy_rotate(
    folder: Folder,
    site: SiteNumber = None,
    server: Annotated[
        bool, typer.Option("--server", help="Replace the server's certificate and key, where the authority's key is.")
    ] = False,
    days: Days = 365,
    json: Json = False,
) -> None:
    """Replace a key while a run goes on.

    The key is that of a site, or with --server the server's, together with its certificate.
    """
    need_extra()
    if server:
        if site is not None:
            raise InputError("give either --site or --server: each has a key of its own")
        deploy_renew(folder, days=days, json=json)
        return
    from fedstill.deploy.deployment_folder import open_site
    from fedstill.deploy.key_rotation import begin_rotation, next_key_file
    from fedstill.deploy.private_files import in_use

    place = open_site(folder, site)
    running = in_use(place.path)
    begin_rotation(place)
    if json:
        print_json({"site": place.site, "next": str(next_key_file(place)), "running": running})
        return
    when = "within seconds" if running else "when it is next started"
    console.print(
        f"site {place.site} has a new key: {when} it sends it to the server, signed with the old one, and uses it from"
        " then on; the old one is valid until then",
        soft_wrap=True,
    )


def deploy_revoke(
    folder: Folder,
    site: Annotated[int, typer.Option(help="Number of the site whose key is revoked.")],
    json: Json = False,
) -> None:
    """Revoke a site's key at the server: its next request is refused."""
    need_extra()
    from fedstill.deploy.deployment_folder import open_server
    from fedstill.deploy.private_files import in_use
    from fedstill.deploy.site_keys import revoke

    place = open_server(folder)
    kept = revoke(place.registered, site)
    if json:
        print_json({"site": site, "revoked": str(kept), "running": in_use(place.path)})
        return
    console.print(
        f"the key of site {site} is revoked: the server refuses its next request; the key is kept in {kept} for the"
        f" record, and a new key file {place.registered / f'{site}.pub'} lets the site take part again",
        soft_wrap=True,
    )
