"""dbt: the package of materializations that ships with sqlext, and dbt in the process that hosts the flows."""
