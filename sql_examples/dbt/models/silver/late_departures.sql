-- Nothing is aggregated here: rows are appended as they come.
{{ config(materialized='streaming_table', on_schema_change='append_new_columns', wait=true) }}
select d.day, a.name as airline, d.origin, d.dest, d.dep_delay
from stream {{ ref('bronze_departures') }} as d
join {{ ref('airlines') }} as a on d.carrier = a.carrier
where d.dep_delay > 60
