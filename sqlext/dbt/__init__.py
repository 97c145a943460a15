"""dbt: the package of materializations that comes with sqlext, and dbt in the process that hosts the flows."""
