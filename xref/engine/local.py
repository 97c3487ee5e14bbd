"""A subject in this process: scripts are performed here, or in a forked child where one may end the process."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import warnings
import weakref
from collections.abc import Callable

from xref.engine.candidate import Candidate
from xref.engine.clock import CrashedError, limited
from xref.engine.executor import Executor
from xref.engine.keys import Keys, without_keys
from xref.engine.process import Answer, Forked, die_with_parent, ending, replies_from
from xref.engine.steps import Died, Replies, Reply, Script
from xref.engine.wire import Channel
from xref.spec import Traits

__all__ = ["Local"]

_SECONDS, _HAZARDOUS_SECONDS = 300.0, 10.0  # for a script that does not say


class Local:
    """A candidate that is examined in this process.

    Hazardous scripts are performed in a forked child where that is possible, all of them in one until it ends: JAX has
    threads of its own, and a GPU belongs to the process that opened it. Elsewhere a clock ends a loop of Python, and
    nothing else.
    """

    elsewhere = False

    def __init__(self, candidate: Candidate, *, golden: bool = False, traits: Traits | None = None) -> None:
        """Take the candidate, and its traits if they are known: they take some trials."""
        self.traits = traits or candidate.traits(golden=golden)
        self._framework = candidate.framework
        self._executor = Executor(candidate.verbs, candidate.framework, candidate.device, alone=not golden)
        self._keys = Keys()
        self._child: tuple[Forked, Channel] | None = None
        self._ending: Callable[[], object] = lambda: None
        self._forks = hasattr(os, "fork") and self._framework.name == "torch" and candidate.device == "cpu"

    def perform(self, script: Script) -> Replies:
        """Return the replies to a script."""
        if script.hazardous and self._forks:
            return Replies(script, self._forked(without_keys(script)))
        drops, planned = self._keys.planned(script)
        replies = Replies(script, self._performed(planned)[drops:])
        self._keys.note(script, replies)
        return replies

    def forget(self) -> None:
        """Keep no array any longer: a call has written into one."""
        self._keys.forget()

    def close(self) -> None:
        """Give the arrays back that are kept, and end the forked child."""
        self._end()
        self._executor.clear()
        self._keys.clear()

    def _performed(self, script: Script) -> list[Reply]:
        """Return the replies to a script that is performed here, by one clock for all of its steps."""
        seconds = script.seconds or (_HAZARDOUS_SECONDS if script.hazardous else _SECONDS)
        replies: list[Reply] = []
        try:
            with limited(seconds):
                replies += self._executor.perform(script)
        except CrashedError as error:
            replies.append(Died(how=str(error), late=True))
        return replies

    def _forked(self, script: Script) -> list[Reply]:
        """Return the replies of the forked child, which serves one script after another until it ends."""
        if self._child is None:
            self._child = self._fork()
        child, channel = self._child
        seconds = script.seconds or _HAZARDOUS_SECONDS
        replies: list[Reply] = []
        try:
            channel.send(script)
            replies += replies_from(channel, child, script, lambda step: seconds)
        except OSError:
            replies.append(Died(how=ending(child)))
        finally:
            if len(replies) < len(script.steps) or isinstance(replies[-1], Died):
                self._end()
        return replies

    def _fork(self) -> tuple[Forked, Channel]:
        ours, theirs = socket.socketpair()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # forking beside threads: nothing here needs them in the child
            pid = os.fork()
        if pid == 0:
            ours.close()
            self._in_child(Channel(theirs))
        theirs.close()
        child = Forked(pid), Channel(ours)
        self._ending = weakref.finalize(self, _ended, *child)
        return child

    def _end(self) -> None:
        self._child = None
        self._ending()

    def _in_child(self, channel: Channel) -> None:
        try:
            die_with_parent()
            signal.setitimer(signal.ITIMER_REAL, 0)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            sys.stdout = sys.stderr = os.fdopen(silent, "w")  # they may be no files of 1 and 2, as in a notebook
            faulthandler.disable()
            self._framework.arrays.use_one_thread()
            while True:
                script = channel.receive(Script)
                for place, reply in enumerate(self._executor.perform(script, copies=False)):
                    channel.send(Answer(place, reply))
        finally:
            os._exit(1)  # no exit handlers: they are the parent's


def _ended(child: Forked, channel: Channel) -> None:
    child.kill()
    child.wait()
    channel.close()
