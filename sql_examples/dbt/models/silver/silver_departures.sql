-- Departures with names. An airport that is corrected or added later changes the rows of all its departures.
{{ config(materialized='materialized_view') }}
select d.day, d.carrier, l.name as airline, d.dest, p.name as airport, d.dep_delay, d.cancelled
from {{ ref('bronze_departures') }} as d
join {{ ref('airlines') }} as l on d.carrier = l.carrier
left join {{ source('nyc', 'airports') }} as p on d.dest = p.faa
