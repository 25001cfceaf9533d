"""What ends a command without a traceback; anything else that is raised is a defect of this project and keeps it."""


class UserError(ValueError):
    """A wrong input, said in one line that names the thing, its value and what would be accepted: exit status 2."""


class RunStopped(RuntimeError):
    """A run that cannot go on, said in one line that names the cause and what is left of it: exit status 3."""


class Preempted(BaseException):
    """Somebody asked the process to end, and it did where it can go on later: exit status 75.

    As KeyboardInterrupt, it is no Exception, which code on its way might take for a failure of its own.
    """
