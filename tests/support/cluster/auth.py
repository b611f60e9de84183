"""Who asks, and may they."""

import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from tests.support.cluster.config import EVERYTHING, Rule, User
from tests.support.cluster.errors import ApiError
from tests.support.cluster.resources import RESOURCES
from tests.support.cluster.store import Store

USERS = "_users"
ACCOUNT = "system:serviceaccount:"


class Users:
    """Bearer tokens and their rules; they are kept with the objects, so that a restart knows rotated ones."""

    def __init__(self, store: Store, users: Iterable[User]) -> None:
        self._store = store
        for user in (EVERYTHING, *users):
            if store.find(USERS, "", user.name) is None:
                store.create(USERS, {"metadata": {"name": user.name}, "token": user.token})
        self._rules = {user.name: user.rules for user in (EVERYTHING, *users)}

    def who(self, authorization: str) -> str:
        """Return the user behind a header.

        Raises:
            ApiError: 401.
        """
        token = authorization.removeprefix("Bearer ")
        for user in self._store.each(USERS):
            if user["token"] == token:
                return str(user.get("user") or user["metadata"]["name"])
        raise ApiError(401, "Unauthorized")

    def rotate(self, name: str, token: str) -> None:
        """Let a user's old token end now."""
        user = self._store.find(USERS, "", name)
        if user is None:
            raise ApiError(404, f"no user {name}")
        self._store.put(USERS, user | {"token": token})

    def token(self, name: str) -> str:
        user = self._store.find(USERS, "", name)
        if user is None:
            raise ApiError(404, f"no user {name}")
        return str(user["token"])

    def issue(self, namespace: str, account: str) -> str:
        """Do a TokenRequest: a new token for a service account; older ones stay good."""
        self._store.get("serviceaccounts", namespace, account)
        token = f"{account}-{uuid.uuid4().hex}"
        name = f"{ACCOUNT}{namespace}:{account}"
        self._store.create(USERS, {"metadata": {"name": token}, "token": token, "user": name})
        return token

    def may(self, user: str, verb: str, resource: str, namespace: str) -> bool:
        """`resource` with its subresource, like pods/log; `namespace` is empty for cluster-wide requests."""
        if user.startswith(ACCOUNT):
            row = RESOURCES.get(resource.partition("/")[0])
            group = row.group if row else ""
            rules = self._bound_rules(user, namespace)
            return any(_grants(rule, verb, group, resource) for rule in rules)
        return any(_fits(rule, verb, resource, namespace) for rule in self._rules[user])

    def _bound_rules(self, user: str, namespace: str) -> Iterator[dict[str, Any]]:
        """The rules of the Roles that RoleBindings of a namespace give to a service account."""
        own_namespace, _, name = user.removeprefix(ACCOUNT).partition(":")
        for binding in self._store.each("rolebindings", namespace) if namespace else ():
            for subject in binding.get("subjects") or []:
                is_own = subject.get("namespace", namespace) == own_namespace
                if subject["kind"] == "ServiceAccount" and subject["name"] == name and is_own:
                    role = self._store.find("roles", namespace, binding["roleRef"]["name"])
                    yield from (role or {}).get("rules") or []

    def check(self, user: str, verb: str, resource: str, namespace: str) -> None:
        """Refuse.

        Raises:
            ApiError: 403, worded like the API's.
        """
        if self.may(user, verb, resource, namespace):
            return
        row = RESOURCES[resource.partition("/")[0]]
        scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        raise ApiError(
            403,
            f'{row.qualified} is forbidden: User "{user}" cannot {verb} resource "{resource}" '
            f'in API group "{row.group}" {scope}',
        )


def _fits(rule: Rule, verb: str, resource: str, namespace: str) -> bool:
    return (
        bool({verb, "*"} & set(rule.verbs))
        and bool({resource, "*"} & set(rule.resources))
        and rule.namespace in ("*", namespace or None)
    )


def _grants(rule: dict[str, Any], verb: str, group: str, resource: str) -> bool:
    """Match a rule of a Role; one that names objects is taken to fit none, which is the safe side."""
    return (
        bool({verb, "*"} & set(rule.get("verbs") or []))
        and bool({group, "*"} & set(rule.get("apiGroups") or []))
        and bool({resource, "*"} & set(rule.get("resources") or []))
        and not rule.get("resourceNames")
    )
