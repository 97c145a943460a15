-- Two gold tables, joined by a reader: both count the same departures.
select *
from (select sum(departures) as departures, sum(cancelled) as cancelled from {{ ref('airport_delays') }}) as a
full join (select sum(departures) as departures, sum(cancelled) as cancelled from {{ ref('airline_delays') }}) as b
  on a.departures = b.departures and a.cancelled = b.cancelled
where a.departures is null or b.departures is null
