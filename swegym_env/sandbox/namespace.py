"""The back end "namespace": user namespaces and the kernel's overlay. No daemon, no installation, no privilege."""

from __future__ import annotations

from swegym_env.sandbox.local import LocalBackend

__all__ = ["NamespaceBackend"]


class NamespaceBackend(LocalBackend):
    """The supervisor makes the namespaces, mounts the layers and runs the command itself."""

    remedy = "user namespaces must be allowed (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)"
