{{ config(materialized='materialized_view') }}
select airline, count(*) as departures, count_if(cancelled) as cancelled, avg(dep_delay) as mean_delay
from {{ ref('silver_departures') }}
group by airline
