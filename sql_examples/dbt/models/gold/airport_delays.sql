{{ config(materialized='materialized_view') }}
select dest, airport, count(*) as departures, count_if(cancelled) as cancelled, avg(dep_delay) as mean_delay
from {{ ref('silver_departures') }}
group by dest, airport
