{{ config(materialized='bounded_table', recovery=true) }}
select dest, count(*) as departures
from stream {{ source('nyc', 'departures') }}
group by dest global window end of stream
