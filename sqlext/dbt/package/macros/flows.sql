{#-
  Return the flow that has created a relation and keeps it up to date, as a dictionary of the columns of SHOW FLOWS; none: there is
  no such flow. Others may add rows to the relation.
-#}
{% macro find_flow(relation) %}
  {% do return(sqlext.flows_into(relation) | selectattr('kind', 'equalto', 'streaming table') | first | default(none)) %}
{% endmacro %}


{#- Return all flows that write to a relation. -#}
{% macro flows_into(relation) %}
  {%- set found = [] -%}
  {%- for flow in sqlext.flows() if flow.target.lower().split('.')[-2:] == [relation.schema | lower, relation.identifier | lower] -%}
    {%- do found.append(flow) -%}
  {%- endfor -%}
  {% do return(found) %}
{% endmacro %}


{#- Return all flows, each as a dictionary of the columns of SHOW FLOWS, which also lists materialized views: they are left out. -#}
{% macro flows() %}
  {%- set found = [] -%}
  {%- if execute -%}
    {%- for flow in sqlext._dicts('show flows') if flow.kind != 'materialized view' -%}
      {%- do found.append(flow) -%}
    {%- endfor -%}
  {%- endif -%}
  {% do return(found) %}
{% endmacro %}


{#- Wait until all rows that had arrived are in the relation, of each flow that writes to it; without a flow, return at once. -#}
{% macro wait_for_flow(relation, timeout=none) %}
  {%- for flow in sqlext.flows_into(relation) -%}
    {% do run_query('wait flow ' ~ sqlext._flow_name(flow) ~ (" timeout '" ~ timeout ~ "'" if timeout else '')) %}
  {%- endfor -%}
{% endmacro %}


{#- Before `dbt test`, wait for the flows of all streaming tables of the project. For `on-run-start`. -#}
{% macro wait_for_flows(timeout=none) %}
  {%- if execute and flags.WHICH == 'test' -%}
    {%- for node in graph.nodes.values() if node.config.materialized == 'streaming_table' -%}
      {% do sqlext.wait_for_flow(api.Relation.create(schema=node.schema, identifier=node.alias), timeout) %}
    {%- endfor -%}
  {%- endif -%}
{% endmacro %}


{#-
  Drop the flow of a deleted model: dbt run-operation sqlext.drop_flow --args '{name: my_model}'. Its table is kept unless
  `drop_table` is true.
-#}
{% macro drop_flow(name, drop_table=false) %}
  {%- set relation = sqlext._named(name) -%}
  {% do run_query('drop flow if exists ' ~ relation) %}
  {%- if drop_table -%}
    {% do run_query('drop table if exists ' ~ relation) %}
  {%- endif -%}
  {% do log('flow ' ~ relation ~ ' dropped' ~ (', with its table' if drop_table else '; its table is kept'), info=true) %}
{% endmacro %}
