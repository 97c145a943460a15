-- Rows as they came, appended; what is above reads this table.
{{ config(
    materialized='streaming_table',
    wait=true,
    expectations={
        'known_origin': {'expect': "origin IN ('EWR', 'JFK', 'LGA')", 'on_violation': 'drop row'},
        'has_carrier': 'carrier IS NOT NULL'
    }
) }}
select day, hour, carrier, origin, dest, dep_delay, dep_delay is null as cancelled
from stream {{ source('nyc', 'departures') }}
