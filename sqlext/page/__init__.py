"""The page: what the hosting process does, for people who look; read-only, served by that process or saved as one file.

Data flows one way: `collect` (live) or `stored` (a warehouse at rest) -> `snapshot` -> `render` (HTML) and `charts` (SVG).
Needs `pip install 'sqlext[page]'`; `address` does not, so that the command line can always be shown.
"""
