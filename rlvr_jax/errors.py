"""The one exception that means: the user can mend this."""


class UserError(ValueError):
    """A wrong input, said in one line that names the thing, its value and what would be accepted.

    Command lines print the message alone and exit with status 2; anything else that is raised is a defect
    of this project and keeps its traceback.
    """
