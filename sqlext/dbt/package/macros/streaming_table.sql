{#-
  A model that a flow keeps up to date. A run creates the flow, gives it the model's query if that has changed, or else leaves it
  alone. A query that cannot be taken in place is refused: only `--full-refresh` recomputes the table, from what its streams hold.

  The definition is kept in the table's properties: a fingerprint of query and clauses, and the options themselves.
-#}
{% materialization streaming_table, adapter='spark' %}
  {%- set relation = this.incorporate(type='table') -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- set properties = sqlext._flow_properties() -%}
  {%- set clauses = sqlext._checked_clauses() -%}
  {%- set fingerprint = sqlext._fingerprint(compiled_code ~ clauses ~ properties.get('state.backend.type', '')) -%}
  {%- if config.get('contract').enforced -%}
    {% do exceptions.raise_compiler_error("A streaming table cannot enforce a contract: dbt checks it by running the query, and a stream has no end. Leave `contract` out, and use tests.") %}
  {%- endif -%}

  {{ run_hooks(pre_hooks) }}

  {%- set flow = sqlext.find_flow(relation) -%}
  {%- set there = sqlext._properties_of(relation) if existing is not none and not existing.is_view else {} -%}
  {%- set is_ours = 'sqlext.flow' in there -%}
  {%- if existing is not none and not is_ours -%}
    {%- if not existing.is_view and not should_full_refresh() -%}
      {% do exceptions.raise_compiler_error("There is a table " ~ relation ~ " already, which no flow has created. `dbt run --full-refresh` drops it and creates a streaming table in its place.") %}
    {%- endif -%}
    {#- EXPLAIN refuses what CREATE would refuse, before anything is dropped. -#}
    {% do run_query('explain ' ~ sqlext._create('refresh', relation, clauses, properties, compiled_code)) %}
    {% do sqlext._drop(existing) %}
    {%- set existing = none -%}
  {%- endif -%}
  {%- if is_ours and flow is none and not should_full_refresh() -%}
    {% do exceptions.raise_compiler_error("There is a table " ~ relation ~ " already, and the flow that made it is not there: it was dropped, or is in another spark.sqlext.home, or the table is a copy. Its streams may no longer hold all that the table was made of. `dbt run --full-refresh` recomputes it from what they hold; else rename the table.") %}
  {%- endif -%}

  {%- set stays = flow is not none and is_ours and not should_full_refresh() -%}
  {%- set is_kept = stays and (
      there.get('sqlext.dbt.fingerprint') == fingerprint or not sqlext._applies_change(relation, flow, compiled_code)) -%}
  {%- if not is_kept -%}
    {%- do properties.update({'sqlext.dbt.fingerprint': fingerprint}) -%}
  {%- endif -%}
  {%- if is_kept -%}
    {% do sqlext._keep_flow(relation, flow, properties, there) %}
  {%- elif stays -%}
    {%- set said = sqlext._rows(sqlext._create('refresh', relation, clauses, properties, compiled_code))[0][0] -%}
    {%- do store_raw_result(name='main', message=said.split('; ')[1:] | join('; ') or 'altered', code='refresh', rows_affected='-1') -%}
    {% do sqlext._comment_columns(relation) %}
  {%- else -%}
    {%- call statement('main') -%}
      {{ sqlext._create('replace' if is_ours else 'refresh', relation, clauses, properties, compiled_code) }}
    {%- endcall -%}
    {% do apply_grants(relation, config.get('grants'), should_revoke(existing, full_refresh_mode=True)) %}
    {% do sqlext._comment_columns(relation) %}
  {%- endif -%}
  {%- if config.get('wait', false) -%}
    {% do sqlext.wait_for_flow(relation, config.get('wait_timeout')) %}
  {%- endif -%}

  {{ run_hooks(post_hooks) }}

  {{ return({'relations': [relation]}) }}
{% endmaterialization %}


{% macro _create(way, relation, clauses, properties, sql) %}
  create or {{ way }} streaming table {{ relation }}
  {{ clauses }}
  {{ comment_clause() }}
  {{ sqlext._tblproperties(properties) }}
  as
  {{ sql }}
{% endmacro %}


{#- Return whether a changed query is to take the place of the flow's, by `on_configuration_change` and `on_schema_change`. -#}
{% macro _applies_change(relation, flow, sql) %}
  {%- set wanted = config.get('on_configuration_change') | string -%}
  {%- if wanted == 'continue' -%}
    {% do exceptions.warn("The query of " ~ relation ~ " has changed; its flow keeps the old one, since `on_configuration_change` is `continue`. `dbt run --full-refresh` recomputes the table.") %}
    {% do return(false) %}
  {%- elif wanted == 'fail' -%}
    {% do exceptions.raise_compiler_error("The query of " ~ relation ~ " has changed, and `on_configuration_change` is `fail`. `dbt run --full-refresh` recomputes the table.") %}
  {%- endif -%}
  {%- set policy = config.get('on_schema_change') -%}
  {%- if policy in ('fail', 'append_new_columns') -%}
    {%- set changes = sqlext._column_changes(relation, sql) -%}
    {%- set refused = changes.gone + changes.retyped + (changes.new if policy == 'fail' else []) -%}
    {%- if refused -%}
      {% do exceptions.raise_compiler_error("The columns of " ~ relation ~ " would change (" ~ refused | join(', ') ~ "), and `on_schema_change` is `" ~ policy ~ "`. `dbt run --full-refresh` recomputes the table.") %}
    {%- endif -%}
  {%- endif -%}
  {% do return(true) %}
{% endmacro %}


{#- Return the differences between the columns of a query and a table, each as a phrase. -#}
{% macro _column_changes(relation, sql) %}
  {%- set before = {} -%}
  {%- for row in sqlext._rows('describe table ' ~ relation) if row[0] and not row[0].startswith('#') -%}
    {%- do before.setdefault(row[0] | lower, row[1]) -%}  {#- partition columns are listed twice -#}
  {%- endfor -%}
  {%- set after = {} -%}
  {%- for row in sqlext._rows('describe query ' ~ sql) -%}
    {%- do after.update({row[0] | lower: row[1]}) -%}
  {%- endfor -%}
  {%- set changes = {'new': [], 'gone': [], 'retyped': []} -%}
  {%- for name, kind in after.items() -%}
    {%- if name not in before -%}
      {%- do changes.new.append('new: ' ~ name) -%}
    {%- elif before[name] != kind -%}
      {%- do changes.retyped.append(name ~ ': ' ~ before[name] ~ ' becomes ' ~ kind) -%}
    {%- endif -%}
  {%- endfor -%}
  {%- for name in before if name not in after -%}
    {%- do changes.gone.append('gone: ' ~ name) -%}
  {%- endfor -%}
  {% do return(changes) %}
{% endmacro %}


{#- Keep a flow, alter its changed options, and start it if it does not run. -#}
{% macro _keep_flow(relation, flow, properties, there) %}
  {%- set changed = {} -%}
  {%- set done = [] -%}
  {%- for key, value in properties.items() if there.get(key) != value -%}
    {%- do changed.update({key: value}) -%}
  {%- endfor -%}
  {%- for key in there if sqlext._is_option(key) and key not in properties -%}
    {% do exceptions.warn("`" ~ key ~ "` is no longer an option of the model; the flow of " ~ relation ~ " keeps `" ~ there[key] ~ "` until `ALTER FLOW` sets another value, or `dbt run --full-refresh` recreates it.") %}
  {%- endfor -%}
  {%- if changed -%}
    {%- set options = {} -%}
    {%- for key, value in changed.items() if sqlext._is_option(key) -%}
      {%- do options.update({key: value}) -%}
    {%- endfor -%}
    {%- if options -%}
      {% do run_query('alter flow ' ~ sqlext._flow_name(flow) ~ ' set (' ~ sqlext._pairs(options) ~ ')') %}
    {%- endif -%}
    {% do run_query('alter table ' ~ relation ~ ' set ' ~ sqlext._tblproperties(changed)) %}
    {%- do done.append('altered') -%}
  {%- endif -%}
  {%- if flow.status in ('STOPPED', 'FAILED', 'FENCED', 'LOST', 'RETRYING') -%}
    {% do run_query('start flow ' ~ sqlext._flow_name(flow)) %}
    {%- do done.append('started') -%}
  {%- endif -%}
  {%- do store_raw_result(name='main', message=(done | join(', ')) or 'unchanged', code='skip', rows_affected='-1') -%}
{% endmacro %}
