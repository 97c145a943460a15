-- What `delays` must be: the same, as a batch query.
select
  carrier,
  origin,
  count(*) as departures,
  count(distinct dest) as destinations,
  count_if(dep_delay is null) as cancelled,
  max(dep_delay) as longest
from {{ source('nyc', 'departures') }}
group by carrier, origin
