{#- dbt run-operation name_airport --args '{faa: SJU, name: San Juan}': somebody corrects an airport's name, or adds an airport. -#}
{% macro name_airport(faa, name) %}
  {%- set row = "select '" ~ faa | replace("'", "\\'") ~ "' as faa, '" ~ name | replace("'", "\\'") ~ "' as name" -%}
  {% do run_query('merge into ' ~ source('nyc', 'airports') ~ ' as t using (' ~ row ~ ') as s on t.faa = s.faa when matched then update set * when not matched then insert *') %}
{% endmacro %}
