{#- dbt run-operation arrive --args '{day: 2}': the departures of a day arrive, as another system would write them. -#}
{% macro arrive(day) %}
  {% do run_query('create table if not exists ' ~ source('nyc', 'departures') ~ ' (day int, hour int, carrier string, origin string, dest string, dep_delay int, arrived_at timestamp) using delta') %}
  {% do run_query('create table if not exists ' ~ source('nyc', 'airports') ~ ' using delta as select * from ' ~ ref('airport_names')) %}
  {% do run_query('insert into ' ~ source('nyc', 'departures') ~ ' select *, current_timestamp() from ' ~ ref('flights') ~ ' where day = ' ~ day | int) %}
{% endmacro %}
