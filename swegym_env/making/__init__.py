"""Tasks made from any project that has tests, in Python, C, C++, JavaScript or TypeScript: `swegym make-tasks`.

    sources.py      an archive, a directory or a git repository → its files and latest commits, in memory
    repository.py   the git repository of the made tasks, and their patches
    settings.py     the settings of a run
    projects.py     what differs: projects tested by pytest, and by a command whose log is read
    sandboxes.py    the project's sandboxes and its tests' results there; inside/ is what runs in them
    baseline.py     which of the clean project's tests are stable, and which lines each reaches
    code.py         a Python file with its syntax tree, and edits of it
    operators.py    ways to inject a bug into Python, on the syntax tree; other languages: `languages.mutations`
    candidates.py   all bugs that can be injected, and the project's own commits reverted, in order
    validation.py   which candidates are tasks
    issues.py       the issue, from a failing test's output; rewritten by a language model where one is given
    journal.py      the findings on disk, from which an interrupted run continues
    maker.py        the pipeline through all of these

Nothing of a source runs on the host: its files are parsed there, and run in sandboxes.
"""
