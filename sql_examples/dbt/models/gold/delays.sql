{{ config(materialized='streaming_table', flush_interval='10 seconds', persist_docs={'relation': true, 'columns': true}) }}
select
  carrier,
  origin,
  count(*) as departures,
  count(distinct dest) as destinations,
  count_if(dep_delay is null) as cancelled,
  max(dep_delay) as longest
from stream {{ ref('bronze_departures') }}
group by carrier, origin
