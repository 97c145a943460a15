{#-
  A model that refreshes keep up to date. A run creates the view; if the view differs from the model, a run alters or recreates it;
  and it refreshes the view.

  The table's property `sqlext.dbt.fingerprint` identifies the query, and the clauses that only CREATE OR REPLACE changes. All else
  is compared with what the view has.
-#}
{% materialization materialized_view, adapter='spark' %}
  {%- set relation = this.incorporate(type='table') -%}
  {%- set existing = load_cached_relation(this) -%}
  {%- set clauses = sqlext._checked_clauses() -%}
  {%- set properties = sqlext._properties() -%}
  {%- do properties.update({'sqlext.dbt.fingerprint': sqlext._fingerprint(compiled_code ~ clauses)}) -%}
  {%- set create = sqlext._create_view(relation, clauses, properties, compiled_code) -%}
  {%- if config.get('contract').enforced -%}
    {% do exceptions.raise_compiler_error("A materialized view cannot enforce a contract, which dbt supports for tables and views only. Leave `contract` out, and use tests.") %}
  {%- endif -%}

  {{ run_hooks(pre_hooks) }}

  {%- set view = sqlext.find_materialized_view(relation) -%}
  {%- set there = sqlext._properties_of(relation) if existing is not none and not existing.is_view else {} -%}
  {%- set is_ours = view is not none and there.get('sqlext.view') == view.id -%}
  {%- if existing is not none and not is_ours -%}
    {%- set flows = sqlext.flows_into(relation) -%}
    {%- if flows -%}
      {% do exceptions.raise_compiler_error("A flow keeps " ~ relation ~ " up to date. Drop the flow first: DROP FLOW " ~ flows[0].full_name ~ ".") %}
    {%- endif -%}
    {%- if not existing.is_view and not should_full_refresh() -%}
      {% do exceptions.raise_compiler_error("There is a table " ~ relation ~ " already, which is no materialized view. `dbt run --full-refresh` drops it and creates a materialized view in its place.") %}
    {%- endif -%}
    {#- EXPLAIN refuses what CREATE would refuse, before anything is dropped. -#}
    {% do run_query('explain ' ~ create) %}
    {% do adapter.drop_relation(existing) %}
    {%- set existing = none -%}
  {%- endif -%}

  {%- set is_kept = existing is not none and not should_full_refresh() -%}
  {%- set changes = sqlext._changes_to_apply(relation, sqlext._view_changes(relation, view, there, properties)) if is_kept else {} -%}
  {%- if is_kept and 'query' not in changes -%}
    {% do sqlext._alter_and_refresh(relation, changes) %}
  {%- else -%}
    {%- call statement('main') -%} {{ create }} {%- endcall -%}
    {% do sqlext._comment_columns(relation) %}
  {%- endif -%}
  {% do apply_grants(relation, config.get('grants'), should_revoke(existing, full_refresh_mode=True)) %}

  {{ run_hooks(post_hooks) }}

  {{ return({'relations': [relation]}) }}
{% endmaterialization %}


{% macro _create_view(relation, clauses, properties, sql) %}
  create or replace materialized view {{ relation }}
  {{ clauses }}
  {{ 'comment ' ~ sqlext._text(sqlext._description()) if sqlext._description() else '' }}
  {{ sqlext._tblproperties(properties) }}
  {{ sqlext._schedule() }}
  refresh policy {{ sqlext._policy() }}
  as
  {{ sql }}
{% endmacro %}


{#- Return the model's description, if `persist_docs` asks for it and there is one; else an empty text. -#}
{% macro _description() %}
  {% do return(model.description or '' if config.persist_relation_docs() else '') %}
{% endmacro %}


{% macro _policy() %}
  {% do return((config.get('refresh_policy') or 'auto') | upper | replace('_', ' ')) %}
{% endmacro %}


{#- Return the clause that says when a view is refreshed by itself; an empty text: by hand only. -#}
{% macro _schedule() %}
  {%- set given = config.get('schedule') -%}
  {%- if config.get('trigger') or config.get('at_most_every') -%}
    {%- if given or config.get('trigger') | string | lower != 'on_update' -%}
      {% do exceptions.raise_compiler_error("`trigger` can only be `on_update`, and excludes `schedule`; `at_most_every` needs it. Write trigger='on_update', or leave both out.") %}
    {%- endif -%}
    {%- set given = {'on_update': true, 'at_most_every': config.get('at_most_every')} -%}
  {%- endif -%}
  {%- if not given -%}
    {% do return('') %}
  {%- elif given is string -%}
    {% do return(given if modules.re.match('(schedule|trigger)\\s', given, modules.re.IGNORECASE) else 'schedule ' ~ given) %}
  {%- endif -%}
  {%- set every = given.get('every') -%}
  {%- set on_update = given.get('on_update') -%}
  {%- set at_most_every = given.get('at_most_every') -%}
  {%- set others = given | reject('in', ('every', 'on_update', 'at_most_every')) | list -%}
  {%- if others or (every and on_update) or not (every or on_update) or (at_most_every and not on_update) -%}
    {% do exceptions.raise_compiler_error("`schedule` cannot be " ~ given ~ ". Write {'every': '10 minutes'}, {'on_update': true}, or {'on_update': true, 'at_most_every': '10 minutes'}.") %}
  {%- endif -%}
  {%- if every -%}
    {% do return('schedule every ' ~ sqlext._text(every)) %}
  {%- endif -%}
  {% do return('trigger on update' ~ (' at most every ' ~ sqlext._text(at_most_every) if at_most_every else '')) %}
{% endmacro %}


{#- Return the meaning of a schedule's clause, the same for two clauses that mean the same: its kind, and seconds. -#}
{% macro _meaning(clause) %}
  {%- set text = clause | lower -%}
  {%- if not text -%}
    {% do return(('by hand', 0)) %}
  {%- elif 'trigger' not in text -%}
    {% do return(('every', sqlext._seconds(text))) %}
  {%- endif -%}
  {% do return(('on update', sqlext._seconds(text) if 'every' in text else 60)) %}
{% endmacro %}


{#- Return how many seconds a text such as `1 hour 30 minutes` or `2 min` is. -#}
{% macro _seconds(text) %}
  {%- set units = {'mic': 0.000001, 'us': 0.000001, 'mil': 0.001, 'ms': 0.001, 's': 1, 'm': 60, 'h': 3600, 'd': 86400, 'w': 604800} -%}
  {%- set seconds = [] -%}
  {%- for count, unit in modules.re.findall("([0-9]+(?:[.][0-9]+)?)[\\s']*([a-z]+)", text | lower) -%}
    {%- do seconds.append((count | float) * (units.get(unit[:3]) or units.get(unit[:1]) or 0)) -%}
  {%- endfor -%}
  {% do return(seconds | sum | round(3)) %}
{% endmacro %}


{#- Return what differs between a view and its model: by the name of each difference, the statements that end it. -#}
{% macro _view_changes(relation, view, there, properties) %}
  {%- set alter = 'alter materialized view ' ~ relation -%}
  {%- set changes = {} -%}
  {%- if there.get('sqlext.dbt.fingerprint') != properties['sqlext.dbt.fingerprint'] -%}
    {%- do changes.update({'query': []}) -%}
  {%- endif -%}
  {#- A target lag is a property of the model, and stands among the schedules of the view. -#}
  {%- set schedule = sqlext._schedule() -%}
  {%- set wants_lag = not schedule and (properties.get('target-lag') or 'null') | string | lower != 'null' -%}
  {%- set has_lag = (view.schedule or '').startswith('TARGET LAG') -%}
  {%- if sqlext._meaning(schedule) != sqlext._meaning('' if wants_lag and has_lag else view.schedule or '') -%}
    {%- do changes.update({'schedule': [alter ~ (' alter ' ~ schedule if schedule else ' drop schedule')]}) -%}
  {%- endif -%}
  {%- set policy = sqlext._policy() -%}
  {%- if policy.split() != view.policy.split() -%}
    {%- do changes.update({'refresh policy': [alter ~ ' set refresh policy ' ~ policy]}) -%}
  {%- endif -%}
  {%- set changed = {} -%}
  {%- for key, value in properties.items() if key != 'sqlext.dbt.fingerprint' and there.get(key) != value -%}
    {%- do changed.update({key: value}) -%}
  {%- endfor -%}
  {%- if wants_lag and not has_lag -%}
    {%- do changed.update({'target-lag': properties['target-lag']}) -%}
  {%- endif -%}
  {%- if changed -%}
    {%- do changes.update({'properties': [alter ~ ' set ' ~ sqlext._tblproperties(changed)]}) -%}
  {%- endif -%}
  {%- set comments = sqlext._changed_comments(relation) -%}
  {%- if comments -%}
    {%- do changes.update({'comments': comments}) -%}
  {%- endif -%}
  {% do return(changes) %}
{% endmacro %}


{#- Return the statements that write the descriptions that a relation does not have, if `persist_docs` asks for it. -#}
{% macro _changed_comments(relation) %}
  {%- set statements = [] -%}
  {%- if sqlext._description() or config.persist_column_docs() -%}
    {%- set there = {'columns': {}} -%}
    {%- set part = namespace(name='columns') -%}
    {%- for row in sqlext._rows('describe table extended ' ~ relation) -%}
      {%- if not row[0] or row[0].startswith('#') -%}
        {%- set part.name = row[0] -%}
      {%- elif part.name == 'columns' -%}
        {%- do there.columns.update({row[0] | lower: row[2]}) -%}
      {%- elif row[0] == 'Comment' -%}
        {%- do there.update({'comment': row[1]}) -%}
      {%- endif -%}
    {%- endfor -%}
    {%- if sqlext._description() and sqlext._description() != there.get('comment') -%}
      {%- do statements.append('comment on table ' ~ relation ~ ' is ' ~ sqlext._text(sqlext._description())) -%}
    {%- endif -%}
    {%- do statements.extend(sqlext._column_comments(relation, there.columns)) -%}
  {%- endif -%}
  {% do return(statements) %}
{% endmacro %}


{#- Return the changes that are to be made, by `on_configuration_change`: all, or none. -#}
{% macro _changes_to_apply(relation, changes) %}
  {%- set wanted = config.get('on_configuration_change') | string -%}
  {%- set differs = relation ~ " differs from its model (" ~ changes | join(', ') ~ ")" -%}
  {%- if changes and wanted == 'continue' -%}
    {% do exceptions.warn("The materialized view " ~ differs ~ ". It is refreshed as it is, since `on_configuration_change` is `continue`; `dbt run --full-refresh` recreates it.") %}
    {% do return({}) %}
  {%- elif changes and wanted == 'fail' -%}
    {% do exceptions.raise_compiler_error("The materialized view " ~ differs ~ ", and `on_configuration_change` is `fail`. `dbt run --full-refresh` recreates it.") %}
  {%- endif -%}
  {% do return(changes) %}
{% endmacro %}


{#- Apply changes that need no new view, then bring the view up to date; dbt shows what the refresh did. -#}
{% macro _alter_and_refresh(relation, changes) %}
  {%- for statements in changes.values() -%}
    {%- for statement in statements -%}
      {% do run_query(statement) %}
    {%- endfor -%}
  {%- endfor -%}
  {%- set said = sqlext._rows('refresh materialized view ' ~ relation)[0][0] -%}
  {%- set done = ['altered'] if changes else [] -%}
  {%- do done.append(said.split(': ')[1:] | join(': ')) -%}
  {%- do store_raw_result(name='main', message=done | join(', '), code='refresh', rows_affected='-1') -%}
{% endmacro %}


{#- Return the materialized view of a relation's name, as a dictionary of the columns of SHOW MATERIALIZED VIEWS; none: there is none. -#}
{% macro find_materialized_view(relation) %}
  {%- if execute -%}
    {%- for view in sqlext._dicts('show materialized views') if view.full_name.replace('`', '').lower().split('.')[-2:] == [relation.schema | lower, relation.identifier | lower] -%}
      {% do return(view) %}
    {%- endfor -%}
  {%- endif -%}
  {% do return(none) %}
{% endmacro %}


{#-
  Drop the view of a deleted model, with its table: dbt run-operation sqlext.drop_materialized_view --args '{name: my_model}'.
  If others read it, only with cascade: true, and these go, too.
-#}
{% macro drop_materialized_view(name, cascade=false) %}
  {%- set relation = sqlext._named(name) -%}
  {% do run_query('drop materialized view if exists ' ~ relation ~ (' cascade' if cascade else '')) %}
  {% do log('materialized view ' ~ relation ~ ' dropped', info=true) %}
{% endmacro %}
