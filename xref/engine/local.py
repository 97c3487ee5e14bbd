"""A subject in this process: scripts are performed here, or in a forked child where one may end the process."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import warnings
from collections.abc import Iterator

from xref.engine.candidate import Candidate
from xref.engine.clock import CrashedError, limited
from xref.engine.executor import Executor
from xref.engine.keys import Keys, without_keys
from xref.engine.process import Answer, Forked, die_with_parent, replies_from
from xref.engine.steps import Died, Replies, Reply, Script
from xref.engine.wire import Channel

__all__ = ["Local"]

_SECONDS, _HAZARDOUS_SECONDS = 300.0, 10.0  # for a step of a script that does not say
_SPARE = 2.0  # seconds for a child to say itself that its clock has rung


class Local:
    """A candidate that is examined in this process.

    Hazardous scripts are performed in a forked child where that is possible: JAX has threads of its own, and a GPU
    belongs to the process that opened it. Elsewhere a clock ends a loop of Python, and nothing else.
    """

    def __init__(self, candidate: Candidate, *, golden: bool = False) -> None:
        self.traits = candidate.traits(golden=golden)
        self._framework = candidate.framework
        self._executor = Executor(candidate.verbs, candidate.framework, candidate.device)
        self._keys = Keys()
        self._forks = hasattr(os, "fork") and self._framework.name == "torch" and candidate.device == "cpu"

    def perform(self, script: Script) -> Replies:
        """Return the replies to a script."""
        if script.hazardous and self._forks:
            return Replies(script, self._forked(without_keys(script)))
        drops, planned = self._keys.planned(script)
        replies = Replies(script, list(self._performed(planned, copies=True))[drops:])
        self._keys.note(script, replies)
        return replies

    def forget(self) -> None:
        """Keep no array any longer: a call has written into one."""
        self._keys.forget()

    def close(self) -> None:
        """Give the arrays back that are kept."""
        self._executor.clear()
        self._keys.clear()

    def _performed(self, script: Script, *, copies: bool) -> Iterator[Reply]:
        seconds = script.seconds or (_HAZARDOUS_SECONDS if script.hazardous else _SECONDS)
        replies = self._executor.perform(script, copies=copies)
        try:
            while True:
                with limited(seconds):
                    reply = next(replies, None)
                if reply is None:
                    return
                yield reply
        except CrashedError as error:
            yield Died(how=str(error), late=True)

    def _forked(self, script: Script) -> list[Reply]:
        ours, theirs = socket.socketpair()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # forking beside threads: nothing here needs them in the child
            pid = os.fork()
        if pid == 0:
            self._in_child(script, Channel(theirs))
        theirs.close()
        child, channel = Forked(pid), Channel(ours)
        seconds = (script.seconds or _HAZARDOUS_SECONDS) + _SPARE
        try:
            return list(replies_from(channel, child, script, lambda step: seconds))
        finally:
            child.kill()
            child.wait()
            channel.close()

    def _in_child(self, script: Script, channel: Channel) -> None:
        code = 1
        try:
            die_with_parent()
            signal.setitimer(signal.ITIMER_REAL, 0)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            sys.stdout = sys.stderr = os.fdopen(silent, "w")  # they may be no files of 1 and 2, as in a notebook
            faulthandler.disable()
            self._framework.arrays.use_one_thread()
            for place, reply in enumerate(self._performed(script, copies=False)):
                channel.send(Answer(place, reply))
            code = 0
        finally:
            os._exit(code)  # no exit handlers: they are the parent's
