"""The page: a read-only view of a host's flows, views and jobs, served by the host or saved as one file.

Data flows one way: `collect` (live) or `stored` (a warehouse folder) -> `snapshot` -> `render` (HTML) and `painter` (SVG).
It needs `pip install 'sqlext[page]'`, except for `address`, which the command line always imports.
"""
