"""Chooses servers for containers and the next client of the queue: pure functions without clock or network.

A container goes to a server that has its image, if one has capacity, else to the least loaded. The waiting client with
the fewest containers is next, then the one that waits longest. The length of the queue is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["Candidate", "Ticket", "best", "next_ticket"]


@dataclass
class Candidate:
    """A server as placement sees it.

    Attributes:
        url: its address.
        capacity: largest number of containers.
        held: containers, including those that are starting.
        usable: whether it responds and accepts containers.
        images: the images that are ready there.
        prepared: repositories that it has prepared before.
    """

    url: str
    capacity: int = 0
    held: int = 0
    usable: bool = False
    images: frozenset[str] = frozenset()
    prepared: set[str] = field(default_factory=set)

    @property
    def room(self) -> int:
        """How many more containers it accepts."""
        return max(0, self.capacity - self.held) if self.usable else 0


@dataclass(eq=False)
class Ticket:
    """A place in the queue.

    Attributes:
        client: that waits.
        image: of the container.
        repository: of the task, or empty.
        number: of earlier tickets.
        asked: when the client last sent the request, in seconds of any clock.
        listeners: pending requests for it.
    """

    client: str
    image: str
    repository: str
    number: int
    asked: float = 0.0
    listeners: int = 0


def best(candidates: Iterable[Candidate], image: str, repository: str) -> Candidate | None:
    """The server for a container of `image`; None if none has capacity."""
    with_room = [each for each in candidates if each.room]

    def rank(each: Candidate) -> tuple[bool, bool, float, str]:
        ready = image == "host" or image in each.images
        load = each.held / each.capacity
        # Preparing a repository takes seconds, an image minutes: neither justifies a nearly full server.
        known = bool(repository) and repository in each.prepared and load < 0.9
        return (not ready, not known, load, each.url)

    return min(with_room, key=rank, default=None)


def next_ticket(queue: Sequence[Ticket], holding: Counter[str]) -> Ticket | None:
    """The next ticket; None for an empty queue.

    Args:
        queue: waiting tickets.
        holding: client → number of its containers.
    """
    return min(queue, key=lambda ticket: (holding[ticket.client], ticket.number), default=None)
