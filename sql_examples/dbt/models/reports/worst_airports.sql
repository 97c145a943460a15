-- The top three move when a delay or a name does.
{{ config(materialized='materialized_view') }}
select coalesce(airport, dest) as airport, departures, mean_delay
from {{ ref('airport_delays') }}
where departures >= 5
order by mean_delay desc, dest
limit 3
