"""Who may use which route: the admin token opens all, the read token the reading ones, a rollout's key none."""

from fastapi import Depends, Request
from fastapi.params import Depends as Dependency

from proxy.control.edge import Wired
from proxy.errors import Forbidden, WrongKey
from proxy.keys import ROLLOUT_KEY_PREFIX, Right
from proxy.wiring import Wiring


def needs(right: Right) -> Dependency:
    """A dependency that lets a request pass only with a token of this right."""

    async def check(request: Request, wiring: Wired) -> None:
        held = right_held(request, wiring)
        if right == "admin" and held != "admin":
            raise Forbidden("the read token opens reading routes only: this one needs the admin token")

    dependency: Dependency = Depends(check)
    return dependency


def right_held(request: Request, wiring: Wiring) -> Right:
    """What the request's token may do; raises WrongKey where it may do nothing."""
    token = bearer_token(request)
    if token is None:
        raise WrongKey("no token: send the admin or the read token as `Authorization: Bearer …`")
    held = wiring.keys.right_of(token)
    if held is None and token.startswith(ROLLOUT_KEY_PREFIX):
        raise WrongKey("a rollout's key does not open control routes: send the admin or the read token")
    if held is None:
        raise WrongKey("this is neither the admin nor the read token")
    return held


def bearer_token(request: Request) -> str | None:
    """The token of the Authorization header, if that holds one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


ADMIN = needs("admin")
READ = needs("read")
