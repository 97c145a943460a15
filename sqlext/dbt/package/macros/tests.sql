{#- All rows that had arrived are in the table. Fails with a flow's own error if it does not run or is not done in time. -#}
{% test flushed(model, timeout='10 minutes') %}
  {%- if execute and not sqlext.flows_into(model) -%}
    select 'no flow keeps {{ model }} up to date' as problem
  {%- else -%}
    {%- do sqlext.wait_for_flow(model, timeout) -%}
    select 'not flushed' as problem where false
  {%- endif -%}
{% endtest %}


{#- Once all rows that had arrived are in the table, it equals another relation, such as a view with the batch query. -#}
{% test flushed_equals(model, compare_model, timeout='10 minutes') %}
  {%- do sqlext.wait_for_flow(model, timeout) -%}
  {%- set columns = '*' -%}
  {%- if execute -%}
    {%- set columns = adapter.get_columns_in_relation(model) | map(attribute='quoted') | join(', ') -%}
  {%- endif -%}
  (select 'only in {{ model }}' as problem, * from (select {{ columns }} from {{ model }} except all select {{ columns }} from {{ compare_model }}))
  union all
  (select 'only in {{ compare_model }}' as problem, * from (select {{ columns }} from {{ compare_model }} except all select {{ columns }} from {{ model }}))
{% endtest %}
