{#- A model that a job fills: its query has GLOBAL WINDOW END OF STREAM. Each run recomputes it, in one transaction. -#}
{% materialization bounded_table, adapter='spark' %}
  {%- set relation = this.incorporate(type='table') -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- set properties = sqlext._flow_properties() -%}
  {%- if config.get('recovery') is not none -%}
    {%- do properties.update({'execution.batch.job-recovery.enabled': sqlext._plain(config.get('recovery'))}) -%}
  {%- endif -%}
  {%- if not modules.re.search('global\\s+window\\s+end\\s+of\\s+stream', compiled_code, modules.re.IGNORECASE) -%}
    {% do exceptions.raise_compiler_error("The query of a bounded_table needs GLOBAL WINDOW END OF STREAM, after GROUP BY or HAVING, or after FROM and WHERE. Add it there, or use materialized='table'.") %}
  {%- endif -%}

  {{ run_hooks(pre_hooks) }}

  {%- if config.get('expectations') -%}
    {% do exceptions.raise_compiler_error("`expectations` are for tables that are kept up to date, and " ~ relation ~ " is a bounded_table. Filter its rows in the query.") %}
  {%- endif -%}
  {%- set flows = sqlext.flows_into(relation) if existing is not none else [] -%}
  {%- if flows -%}
    {% do exceptions.raise_compiler_error("A flow keeps " ~ relation ~ " up to date, and a job would replace its rows. Drop the flow first: DROP FLOW " ~ flows[0].full_name ~ ".") %}
  {%- endif -%}
  {%- if existing is not none and sqlext.find_materialized_view(relation) is not none -%}
    {% do exceptions.raise_compiler_error(relation ~ " is a materialized view, and a job would replace its rows. Drop it first: dbt run-operation sqlext.drop_materialized_view --args '{name: " ~ relation ~ "}'.") %}
  {%- endif -%}
  {%- if existing is not none and not existing.is_delta -%}
    {% do adapter.drop_relation(existing) %}
  {%- endif -%}
  {%- call statement('main') -%}
    create or replace table {{ relation }} using delta
    {{ sqlext._table_clauses() }}
    {{ comment_clause() }}
    {{ sqlext._tblproperties(properties) }}
    as
    {{ compiled_code }}
  {%- endcall -%}
  {% do apply_grants(relation, config.get('grants'), should_revoke(existing, full_refresh_mode=True)) %}
  {% do sqlext._comment_columns(relation) %}

  {{ run_hooks(post_hooks) }}

  {{ return({'relations': [relation]}) }}
{% endmaterialization %}
