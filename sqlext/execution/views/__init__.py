"""Materialized views: a query over tables that change in any way, kept up to date by refreshes."""
